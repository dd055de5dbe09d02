"""Calibration and abstaining.

Confidences you can read as probabilities, and a rule that withholds the answers most likely to be wrong.
"""

# %% [markdown]
# ## Is 90 % sure right 90 % of the time?
#
# A network is *calibrated* if, of all answers it gives with probability 0.9, nine in ten are right. On images unlike
# the training images most are far too sure. We send blurred, noisy and foggy digits through the plain network, through
# TENT, which sharpens its own predictions, and through VCoTTA.

# %%
import torch
from matplotlib import pyplot as plt
from torch import Tensor

import vcotta
from vcotta.data import batches, load_digits
from vcotta.models import build_network
from vcotta.training import TrainConfig, train

train_data, test_data = load_digits()
loader = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)
net = train(
    build_network("wrn-10-1", 10, stem_stride=2, base=8),
    loader,
    TrainConfig(epochs=12, shift=2),
)
warmed = vcotta.warm_up(net, loader, vcotta.WarmUpConfig(flip=False))

domains = ("defocus_blur", "shot_noise", "fog")
stream = vcotta.make_stream("continual", test_data, domains, batch_size=50, limit=400)
labels = torch.cat([batch.labels for batch in stream])
answers = {}
for name, start in (("source", net), ("tent", net), ("vcotta", warmed)):
    adapter = vcotta.build_adapter(name, start, dataset="digits")
    answers[name] = torch.cat(
        [adapter(batch.images) for batch in stream]
    )  # log-probabilities

scores = {
    name: [
        score(log_probs, labels)
        for score in (vcotta.metrics.error, vcotta.metrics.ece, vcotta.metrics.nll)
    ]
    for name, log_probs in answers.items()
}
for name, (error, ece, nll) in scores.items():
    print(f"{name:8} error {error:6.1%}   ECE {ece:.3f}   NLL {nll:.3f}")
assert scores["vcotta"][1] < scores["source"][1] / 2

# %% [markdown]
# ECE is the average gap between confidence and accuracy; NLL, the negative log-likelihood, is infinite for one answer
# given with certainty and wrong.
#
# ## The reliability picture
#
# The mean confidence of bins of answers beside their accuracy: below the diagonal the network is too sure.


# %%
def reliability(log_probs: Tensor, bins: int = 8) -> tuple[Tensor, Tensor]:
    """Mean confidence and accuracy of equally large bins."""
    confidence, guess = log_probs.exp().max(1)
    order = confidence.argsort()
    parts = order.chunk(bins)
    right = (guess == labels).float()
    return torch.stack([confidence[p].mean() for p in parts]), torch.stack(
        [right[p].mean() for p in parts]
    )


figure, axis = plt.subplots(figsize=(4.5, 4))
axis.set_title("Accuracy at each confidence")
axis.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="calibrated")
for (name, log_probs), marker in zip(answers.items(), "osD", strict=True):
    axis.plot(*reliability(log_probs), marker=marker, label=name)
axis.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
axis.legend()

# %% [markdown]
# ## Abstain
#
# Where a wrong answer costs more than none, withhold the doubtful ones. `predict(images, coverage=0.8)` answers
# without adapting, and marks in `abstain` the answers whose entropy is above the 0.8 quantile of the last 1 000.

# %%
adapter = vcotta.build_adapter("vcotta", warmed, dataset="digits")
withheld, wrong = [], []
for batch in stream:
    found = adapter.predict(batch.images, coverage=0.8)
    withheld.append(found.abstain)
    wrong.append(found.probabilities.argmax(1) != batch.labels)
    adapter(batch.images)  # now adapt
withheld, wrong = torch.cat(withheld), torch.cat(wrong).float()

answered = {}
for place, domain in enumerate(domains):
    part = slice(400 * place, 400 * (place + 1))
    kept = ~withheld[part]
    answered[domain] = kept.float().mean()
    print(
        f"{domain:13} {answered[domain]:4.0%} answered, {wrong[part][kept].mean():5.1%} of these wrong,",
        end=" ",
    )
    print(f"{wrong[part].mean():5.1%} if all were answered")
assert min(answered, key=answered.get) == "fog"
assert wrong[~withheld].mean() < wrong.mean() / 1.5

# %% [markdown]
# Fog, the hardest of the three, is answered least, because the bound comes from the past of the stream.
# [Uncertainty](../how-to/guards.md#uncertainty) lists what else `predict` says; on a server it is `POST
# /v1/predict?adapt=false&coverage=0.8`.
