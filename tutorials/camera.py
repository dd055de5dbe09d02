"""A camera that writes pictures into a folder.

A loop that labels new pictures of a folder as they arrive, adapts, and continues where it was stopped.
"""

# %% [markdown]
# ## A folder of pictures
#
# Training pictures in class folders, `training/0` to `training/9`, and a day's unlabelled pictures on which fog rises,
# three of a kind in a row. We make both from the digits.

# %%
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from PIL import Image
from torch import Tensor

import vcotta
from vcotta.data import (
    FilePixels,
    batches,
    class_folders,
    image_suffixes,
    load_digits,
    to_tensor,
)
from vcotta.models import build_network
from vcotta.training import TrainConfig, train

train_data, test_data = load_digits()
for place, (pixels, label) in enumerate(
    zip(train_data.images, train_data.labels, strict=True)
):
    folder = Path("training", str(label))
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(folder / f"{place:04}.png")

random = np.random.default_rng(0)
runs = np.split(
    test_data.labels[:360].argsort(kind="stable"), range(3, 360, 3)
)  # three of a kind
order = np.concatenate([runs[place] for place in random.permutation(len(runs))])
pictures = [
    vcotta.corrupt(
        test_data.images[place : place + 1],
        "fog",
        1 + 5 * time // len(order),
        seed=time,
    )[0]
    for time, place in enumerate(order)
]
truth = test_data.labels[order]  # only to count mistakes at the end

figure, axis = plt.subplots(figsize=(8, 0.8))
axis.set_title("Every 30th picture of the day")
axis.imshow(np.concatenate(pictures[::30], 1))
axis.axis("off")

# %% [markdown]
# ## A network for it
#
# `class_folders` reads pictures with their labels: the sub-folders are the classes. `read()` decodes them all; without
# it they stay in their files. For photographs give another size, 224 for example.

# %%
data = class_folders("training", 32).read()
loader = batches(data.images, data.labels, 50, shuffle_seed=0)
net = train(
    build_network("wrn-10-1", 10, stem_stride=2, base=8),
    loader,
    TrainConfig(epochs=8, shift=2),
)
adapter = vcotta.build_adapter(
    "vcotta",
    net,
    source=loader,
    flip=False,
    views=8,
)
print(
    f"{len(data)} pictures in {len(data.class_names)} classes: {' '.join(data.class_names)}"
)

# %% [markdown]
# ## The loop
#
# Pictures come in bursts. The loop waits until it has `at_least` so many, as larger batches have better statistics; a
# program that runs for ever would sleep and look again where this one returns.


# %%
def new_pictures(folder: Path, seen: list[str]) -> list[str]:
    """Names that were not seen before, in order; a name with a leading dot is a file that is still being written."""
    found = (
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() in image_suffixes()
    )
    return sorted(
        name for name in found if not name.startswith(".") and name not in seen
    )


def arrivals(
    folder: Path, seen: list[str], at_least: int
) -> Iterator[tuple[list[str], Tensor]]:
    """Yield new pictures, `at_least` so many at once."""
    while len(names := new_pictures(folder, seen)) >= at_least:
        yield names, to_tensor(FilePixels(folder, tuple(names), 32, "resize")[:])


# %% [markdown]
# After each batch we save the adapter and then, by renaming, the names that were seen: a kill at any moment leaves a
# pair that belongs together. The next call continues exactly there. (The latest saved adapter is enough.)


# %%
def label(
    adapter: vcotta.Adapter, folder: Path, state: Path, at_least: int
) -> dict[str, int]:
    """Label what is new in a folder, adapt to it, and remember both."""
    state.mkdir(exist_ok=True)
    memory = state / "seen.json"
    seen = json.loads(memory.read_text()) if memory.exists() else []
    if seen:
        adapter = vcotta.load(state / f"{len(seen)}.vcotta")
    else:
        adapter.reset()
    answers = {}
    for names, images in arrivals(folder, seen, at_least):
        answers |= dict(zip(names, adapter(images).argmax(1).tolist(), strict=True))
        seen += names
        vcotta.save(adapter, state / f"{len(seen)}.vcotta")
        aside = state / "seen.new"
        aside.write_text(json.dumps(seen))
        aside.replace(memory)
    return answers


# %% [markdown]
# ## A day
#
# `day` plays the camera: after each burst it calls `label`, which starts from its files every time. We let it collect
# 16 pictures, then take each burst as it is, then ask the network that does not adapt.


# %%
def day(name: str, adapter: vcotta.Adapter, at_least: int) -> float:
    """Write the pictures in bursts of 1 to 20, label them on the way, and return the error."""
    folder, bursts, answers, start = Path(name), np.random.default_rng(1), {}, 0
    folder.mkdir()
    while start < len(pictures):
        end = min(start + int(bursts.integers(1, 21)), len(pictures))
        for time in range(start, end):
            aside = folder / f".{time:04}.png"
            Image.fromarray(pictures[time]).save(aside)
            aside.rename(folder / f"{time:04}.png")
        start = end
        answers |= label(
            adapter,
            folder,
            Path(f"{name}-state"),
            at_least if end < len(pictures) else 1,
        )
    right = [answers[f"{time:04}.png"] == truth[time] for time in range(len(pictures))]
    return 1 - sum(right) / len(right)


errors = {
    "vcotta, 16 or more at once": day("collected", adapter, 16),
    "vcotta, bursts as they come": day("bursts", adapter, 1),
    "bn, 16 or more at once": day("bn", vcotta.build_adapter("bn", net), 16),
    "source": day("source", vcotta.build_adapter("source", net), 16),
}
for name, error in errors.items():
    print(f"{name:28} {error:6.1%} wrong")
assert errors["vcotta, 16 or more at once"] < 0.7 * errors["source"]

# %% [markdown]
# If your camera sees one kind of thing for minutes, see [when it gets
# worse](when_it_gets_worse.md#the-labels-are-correlated).
