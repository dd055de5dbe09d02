"""What to do when it gets worse.

Five ways in which adaptation makes a good network worse, and a remedy for each.
"""

# %% [markdown]
# ## Measure three things first
#
# The error of `source` (your network as it is), of `bn` (which learns nothing) and of your method, on the same
# labelled piece of the stream. If `source` is bad on clean images, the network is not set up right; if `bn` is worse
# than `source`, the batches are too small or too one-sided; if your method is worse than `bn`, it learns the wrong
# thing.

# %%
import subprocess
import sys
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from torch import nn

import vcotta
from vcotta.data import batches, load_digits
from vcotta.models import Normalised, build_network, save_weights
from vcotta.training import TrainConfig, train

train_data, test_data = load_digits()
loader = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)
net = train(
    build_network("wrn-10-1", 10, stem_stride=2, base=8),
    loader,
    TrainConfig(epochs=12, shift=2),
)
warmed = vcotta.warm_up(net, loader, vcotta.WarmUpConfig(flip=False))


def error_of(
    name: str,
    start: nn.Module,
    protocol: str = "continual",
    *,
    guard: Any = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> float:
    """Return a method's error on digits in snow, then with little contrast; `settings` are the method's."""
    options = {
        "corruptions": ("snow", "contrast"),
        "batch_size": 50,
        "limit": 300,
        "severity": 4,
    } | options
    stream = vcotta.make_stream(protocol, test_data, **options)
    adapter = vcotta.build_adapter(
        name, start, dataset="digits", guard=guard, **(settings or {})
    )
    return vcotta.run_stream(adapter, stream).summary()["mean"]["error"]


good = {
    name: error_of(name, start)
    for name, start in (("source", net), ("bn", net), ("vcotta", warmed))
}
print({name: f"{error:.1%}" for name, error in good.items()})
assert good["vcotta"] < good["source"] / 2

# %% [markdown]
# ## The normalisation is wrong
#
# The most common mistake: the network was trained on normalised images, and the normalisation stayed behind in the
# training script. Adapters give it plain images in [0, 1].

# %%
CODE = """
from torch import nn


def make(classes):
    block = lambda i, o: nn.Sequential(nn.Conv2d(i, o, 3, 2, 1), nn.BatchNorm2d(o), nn.ReLU())
    return nn.Sequential(block(3, 16), block(16, 32), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes))
"""
Path("my_network.py").write_text(CODE)
mine = build_network("my_network.py:make", 10)
whole = Normalised(mine, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
train(whole, loader, TrainConfig(epochs=8))
save_weights(mine, "mine.safetensors")  # without its normalisation

# %% [markdown]
# `vcotta check` measures the clean error and, if it is bad, tries the usual suspects.

# %%
command = [
    "check",
    "--dataset",
    "digits",
    "--model",
    "my_network.py:make",
    "--weights",
    "mine.safetensors",
]
subprocess.run([sys.executable, "-m", "vcotta", *command])

# %% [markdown]
# The remedy: put the normalisation inside the model, with a wrapper of your own or with `vcotta.models.Normalised`.

# %%
broken, mended = (
    error_of("source", model, corruptions=("none",)) for model in (mine, whole)
)
print(
    f"clean images: without its normalisation {broken:.1%} wrong, with it {mended:.1%}"
)
assert mended < broken

# %% [markdown]
# ## The batches are too small
#
# Most methods normalise a batch by its own statistics, and those of two images are poor. VCoTTA also uses those of the
# training images and of recent batches.

# %%
sizes = (2, 5, 10, 50)
by_size = {
    name: [error_of(name, start, batch_size=size, limit=100) for size in sizes]
    for name, start in (("source", net), ("bn", net), ("vcotta", warmed))
}
for name, errors in by_size.items():
    print(
        f"{name:7}",
        "  ".join(
            f"{size} images {error:5.1%}"
            for size, error in zip(sizes, errors, strict=True)
        ),
    )
assert by_size["bn"][0] > by_size["bn"][-1]

figure, axis = plt.subplots(figsize=(5, 3))
axis.set_title("Error by the size of a batch")
for (name, errors), marker in zip(by_size.items(), "osD", strict=True):
    axis.plot(sizes, [100 * error for error in errors], marker=marker, label=name)
axis.set(xlabel="images in a batch", ylabel="error (%)", xscale="log", ylim=0)
axis.set_xticks(sizes, sizes)
axis.minorticks_off()
axis.legend()

# %% [markdown]
# The remedy: collect ten images or more before you call the adapter, as [the camera](camera.md) does, or use VCoTTA.
#
# ## The labels are correlated
#
# Normalised by the statistics of a batch of nothing but sevens, sevens look like an average digit. The protocol
# `correlated` imitates cameras that deliver such streams.

# %%
correlated = {
    name: error_of(name, start, "correlated")
    for name, start in (("source", net), ("bn", net), ("vcotta", warmed))
}
for name, error in correlated.items():
    print(f"{name:7} shuffled {good[name]:5.1%}, correlated {error:5.1%}")

# %% [markdown]
# Two settings help: `statistics="inferred"` trusts the batch's statistics only as far as batches seem to hold many
# classes, and `label_prior=True` learns along the stream which classes are likely now. Both are VCoTTA's defaults, and
# options of every other method with batch statistics.

# %%
both = {"statistics": "inferred", "label_prior": True}
neither = {"statistics": "batch", "label_prior": False}
mended = error_of("bn", net, "correlated", settings=both)
misled = error_of("vcotta", warmed, "correlated", settings=neither)
print(f"correlated: bn with both {mended:.1%}, vcotta with neither {misled:.1%}")
assert mended < correlated["bn"]
assert correlated["vcotta"] < misled

# %% [markdown]
# The remedy: use VCoTTA, or give your method both settings; one without them warns once (`DiversityWarning`). [A
# study](../../studies/streams/page.md) compares them with RoTTA. If `source` is still the best of all, do not adapt on
# this stream.
#
# ## The step is too large
#
# Self-training amplifies its own mistakes. TENT with thirty times its usual step size, three times through the same
# stream:

# %%
options = {"protocol": "loops", "rounds": 3, "severity": 5}
usual = error_of("tent", net, **options)
large = error_of("tent", net, settings={"lr": 0.3}, **options)
guarded = error_of("tent", net, settings={"lr": 0.3}, guard=True, **options)
print(
    f"usual step {usual:.1%}, large step {large:.1%}, large step with a guard {guarded:.1%}"
)
assert usual < guarded < large

# %% [markdown]
# The remedy: a smaller `lr`. A [guard](../how-to/guards.md) limits the damage, but does not make a bad step size good.
#
# ## There is no data to warm up on
#
# VCoTTA needs labelled source images before testing; often a few are enough. Without any, use a method that needs none
# (`vcotta methods`).

# %%
few = batches(train_data.images[:100], train_data.labels[:100], 50, shuffle_seed=0)
start = vcotta.warm_up(net, few, vcotta.WarmUpConfig(flip=False))
print(
    f"vcotta warmed up on 100 images {error_of('vcotta', start):.1%}, on 1000 {good['vcotta']:.1%}"
)
print(
    "without source data:",
    {name: f"{error_of(name, net):.1%}" for name in ("bn", "tent", "cotta")},
)
