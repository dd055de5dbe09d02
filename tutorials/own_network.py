"""Your own network in five minutes.

A network of your own that adapts to fog, noise and blur, measured beside the plain network, saved and loaded.
"""

# %% [markdown]
# ## The network
#
# You need a `torch.nn.Module` with convolutions or linear layers that takes images in [0, 1], normalises them itself
# and returns logits, and the data it was trained on. Here it is a small CNN for handwritten digits.

# %%
import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn

import vcotta
from vcotta.data import batches, load_digits


class SmallNet(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            self.block(3, 16), self.block(16, 32), self.block(32, 64)
        )
        self.classifier = nn.Linear(64, 10)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        """Halve the image."""
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images in, logits out."""
        return self.classifier(self.features((images - 0.5) / 0.5).mean((2, 3)))


# %% [markdown]
# Train it as you like. `loader` yields `(images, labels)` and can be iterated over several times, as a `DataLoader`
# can.

# %%
train_data, test_data = load_digits()
loader = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)

torch.manual_seed(0)
net = SmallNet()
optimizer = torch.optim.Adam(net.parameters(), 3e-3)
for _ in range(20):
    for images, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(images), labels).backward()
        optimizer.step()
net.eval()

with torch.no_grad():
    clean = (
        torch.cat([net(images).argmax(1) == labels for images, labels in loader])
        .float()
        .mean()
    )
print(f"{clean:.1%} of the training images are right")

# %% [markdown]
# ## The world changes
#
# Now the test digits arrive in fog, then noisy, then with little contrast, then blurred, and nobody tells the network.

# %%
stream = vcotta.make_stream(
    "continual",
    test_data,
    ("fog", "shot_noise", "contrast", "motion_blur"),
    severity=4,
    batch_size=50,
    limit=400,
)
print(stream)

first = {batch.domain: batch.images[:6] for batch in stream}
figure, axes = plt.subplots(1, 4, figsize=(8, 1.1))
figure.suptitle("Six digits in each condition", y=1.1)
for axis, (name, images) in zip(axes, first.items(), strict=True):
    axis.imshow(torch.cat([*images], -1).permute(1, 2, 0))
    axis.set_title(name, fontsize=9)
    axis.axis("off")

# %% [markdown]
# In your own program the stream is whatever yields batches of images. This one also has the labels, to count mistakes.


# %%
def error_of(adapter: vcotta.Adapter) -> float:
    """Send the stream through an adapter and return its error."""
    wrong = [
        adapter(batch.images).argmax(1) != batch.labels for batch in stream
    ]  # predicts, then adapts
    return torch.cat(wrong).float().mean().item()


# %% [markdown]
# ## Adapt
#
# With `source=loader` VCoTTA warms up: it learns, once, from the training data how far each weight may move.
# `flip=False` says that a mirrored digit is no digit any more; leave it out for photographs.

# %%
adapter = vcotta.build_adapter(
    "vcotta",
    net,
    source=loader,
    flip=False,
    views=8,
)
errors = {"vcotta": error_of(adapter)}
for name in ("source", "bn"):
    errors[name] = error_of(vcotta.build_adapter(name, net))
errors["bn, warmed up"] = error_of(vcotta.build_adapter("bn", adapter.start))

for name, error in errors.items():
    print(f"{name:15} {error:6.1%} wrong")
assert errors["vcotta"] < errors["bn"] < errors["source"]

# %% [markdown]
# Three lines to compare yours with, always: `source`, your network as it is; `bn`, which learns nothing, so that a
# method that learns has to beat it; and `bn` on `adapter.start`, the warmed network, which shows what the warm-up
# alone has brought, here nearly all of the gain.
#
# ## What the adapter says about itself
#
# `adapter.last` describes the latest step. `predict` answers without adapting.

# %%
print(
    {
        key: round(value, 3)
        for key, value in adapter.last.items()
        if isinstance(value, float)
    }
)
images = next(iter(stream)).images
found = adapter.predict(images)
print(
    found.probabilities.argmax(1)[:10].tolist(),
    "with entropies",
    found.predictive_entropy[:3].numpy().round(2),
)

# %% [markdown]
# ## Save and load
#
# Pass a network of the same architecture to `load`; the loaded adapter continues exactly where the saved one stopped.
# `reset` returns to the state before the first batch.

# %%
vcotta.save(adapter, "state.vcotta")
loaded = vcotta.load("state.vcotta", SmallNet())
assert torch.equal(loaded(images), adapter(images))
print(loaded.steps, "batches seen")

adapter.reset()
print(adapter.steps, "after the reset")

# %% [markdown]
# Next: [a stream from a folder of pictures](camera.md), or, if your numbers look worse than these, [what to do when
# it gets worse](when_it_gets_worse.md).
