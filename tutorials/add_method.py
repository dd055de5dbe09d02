"""Add your method.

A test-time adaptation method of your own in about thirty lines, measured beside the others and saved like them.
"""

# %% [markdown]
# ## The idea
#
# TENT lowers the entropy of all its predictions, also of those that are wrong. Ours learns only from the images of
# each batch that it is most confident about. We call it `surest`.
#
# A method is a frozen config and a class with two functions. `setup` makes the networks and the optimiser out of a
# copy of the model; `predict_and_adapt` takes a batch and returns log-probabilities.

# %%
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

import vcotta
from vcotta.data import batches, load_digits
from vcotta.methods import (
    Adapter,
    Card,
    NonNegative,
    Settings,
    UnitInterval,
    register_method,
    train_only_normalisation,
)
from vcotta.models import build_network
from vcotta.training import TrainConfig, train


@dataclass(frozen=True)
class SurestConfig(Settings):
    """Settings of Surest: the step size, and the share of a batch to learn from."""

    lr: NonNegative = 1e-3
    share: UnitInterval = 0.5


@register_method
class Surest(Adapter):
    """Entropy minimisation on the surest images of each batch."""

    name = "surest"
    summary = "entropy minimisation on the surest images"
    card = Card(
        "this tutorial",
        "normalisation",
        "nothing",
        "1 forward, 1 backward",
        "paper text",
    )
    Config = SurestConfig
    datasets: ClassVar = {"digits": {"lr": 1e-2}}

    def setup(self, model: nn.Module) -> None:
        """Train scale and shift of the normalisation layers, nothing else."""
        self.networks = {"model": model}
        self.make_optimizer(
            train_only_normalisation(model, "Surest"), "adam", self.config.lr
        )

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Predict, then one step on the entropy of the surest images."""
        log_probs = self.logits(self.networks["model"], images).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        sure = entropy.detach() <= entropy.detach().quantile(self.config.share)
        self.minimise((entropy * sure).sum() / sure.sum())
        self.note(entropy=entropy.mean().detach(), bound=entropy.detach()[sure].max())
        return log_probs


# %% [markdown]
# That is all. `Settings` checks the options by name and range:

# %%
try:
    vcotta.configure("surest", share=2.0)
except ValueError as error:
    print(error)
print(vcotta.configure("surest", dataset="digits"))

# %% [markdown]
# ## Beside the others
#
# The decorator has made it known by name, so everything that takes a method's name takes yours: `build_adapter`,
# `run_stream`, the report, `vcotta.load`.

# %%
train_data, test_data = load_digits()
loader = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)
net = train(
    build_network("wrn-10-1", 10, stem_stride=2, base=8),
    loader,
    TrainConfig(epochs=12, shift=2),
)
stream = vcotta.make_stream(
    "continual", test_data, ("shot_noise", "snow", "contrast", "fog"), batch_size=50
)

errors = {}
for name in ("source", "bn", "tent", "surest"):
    run = vcotta.run_stream(
        vcotta.build_adapter(name, net, dataset="digits"),
        stream,
        f"runs/{name}",
        overwrite=True,
    )
    summary = run.summary()
    errors[name] = summary["mean"]["error"]
    by_domain = "  ".join(
        f"{part['domain']} {part['error']:5.1%}" for part in summary["domains"]
    )
    print(f"{name:7} {errors[name]:5.1%} wrong:  {by_domain}")
assert errors["surest"] < errors["source"] / 2

# %% [markdown]
# `vcotta report runs --out report` puts them into one page. Is the new method worth having? `bn` is the line to beat;
# whether the difference to `tent` means anything takes more data and more networks than this.
#
# ## What you did not have to write
#
# Input checks, the copy of the caller's model, counting of passes, steps that are dropped when a loss is not finite,
# `reset`, `save` and `load` to the bit. They work as long as whatever changes lives in `self.networks`,
# `self.optimizer` or `self.memory`:

# %%
first, second = (batch.images for _, batch in zip(range(2), stream, strict=False))
adapter = vcotta.build_adapter("surest", net, lr=0.01)
adapter(first)
vcotta.save(adapter, "surest.vcotta")
assert torch.equal(vcotta.load("surest.vcotta")(second), adapter(second))
print(
    {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in adapter.last.items()
    }
)

# %% [markdown]
# ## Test the limits
#
# The best tests of a method are cases whose answer you know. With a step size of 0 ours learns nothing, so it must be
# `bn`; with all images it must be TENT.

# %%
for same, options in {"bn": {"lr": 0.0}, "tent": {"lr": 0.01, "share": 1.0}}.items():
    mine = vcotta.build_adapter("surest", net, **options)
    other = vcotta.build_adapter(same, net, **({} if same == "bn" else {"lr": 0.01}))
    for batch in stream.batches():
        assert torch.allclose(mine(batch.images), other(batch.images), atol=1e-4)
        if batch.index == 4:
            break
    print(f"{options} equals {same}")

# %% [markdown]
# From here: [the reference](../how-to/add-a-method.md) says what else a method may do (source data, views, guards,
# several processes), how a file or an installed package adds one to the command line, and which tests a method inside
# vcotta inherits.
