"""Compare three methods and read the report.

Three methods on the same stream, twice each, in a report with tables and pictures, and the five questions to ask it.
"""

# %% [markdown]
# ## One stream, three methods
#
# A fair comparison gives every method the same network and the same images in the same order. A *stream* fixes the
# images; its seed makes the pixels repeatable. Here each of five corruptions brings 200 digits, in batches of 50.

# %%
import subprocess
import sys

import vcotta
from vcotta.data import batches, load_digits
from vcotta.models import build_network
from vcotta.training import TrainConfig, train

train_data, test_data = load_digits()
loader = batches(train_data.images, train_data.labels, 50, shuffle_seed=0)
net = train(build_network("wrn-10-1", 10, stem_stride=2, base=8), loader, TrainConfig(epochs=12, shift=2))
warmed = vcotta.warm_up(net, loader, vcotta.WarmUpConfig(epochs=10, lr=4e-3, flip=False))

stream = vcotta.make_stream(
    "continual", test_data, ("gaussian_noise", "motion_blur", "snow", "fog", "pixelate"), batch_size=50, limit=200
)
print(stream)

# %% [markdown]
# `dataset="digits"` chooses the settings that each method has for these images. For your own data leave it out and set
# what you know, as in `build_adapter("tent", net, lr=1e-3)`; `vcotta methods tent` lists the options.
#
# A method that draws random numbers has luck, good or bad, so each runs with two seeds. `run_stream` records every batch
# in a folder.

# %%
for seed in (0, 1):
    for name, start in (("bn", net), ("tent", net), ("vcotta", warmed)):
        adapter = vcotta.build_adapter(name, start, dataset="digits", seed=seed)
        run = vcotta.run_stream(adapter, stream, f"runs/{name}-{seed}", overwrite=True)
        mean = run.summary()["mean"]
        print(f"{name:7} seed {seed}: error {mean['error']:6.1%}, ECE {mean['ece']:.3f}")
        if name == "vcotta":
            assert mean["error"] < 0.9 * bn["error"]
        elif name == "bn":
            bn = mean

# %% [markdown]
# ## The report
#
# In a terminal this is `vcotta report runs --out report`:

# %%
subprocess.run([sys.executable, "-m", "vcotta", "report", "runs", "--out", "report"], check=True)

# %% [markdown]
# `report/report.html` is one file that needs no network: send it to a colleague. The folder also has the tables as
# Markdown and CSV, and each figure as PNG and PDF. This is the first one:
#
# ![Error of each method on each corruption](report/figures/error_by_corruption.png)
#
# ## Five questions to ask it
#
# 1. **Is it better than `bn`?** `bn` learns nothing, so this is the line to beat. TENT learns, and on a short stream has
#    little time to gain from it.
# 2. **On every corruption, or on one?** A mean can hide a method that wins on noise and loses on fog. Look at the lines
#    in the figure, not only at the numbers beside it.
# 3. **Is the difference larger than the luck?** The report shows the spread over seeds. Two seeds are enough to see that
#    something is wrong, not enough to rank methods that are close; three to five are usual.
# 4. **Does it know when it is wrong?** ECE is the gap between confidence and accuracy, NLL punishes sure mistakes.
#    Entropy minimisation lowers the error and often worsens both. See [calibration and abstaining](calibration.md).
# 5. **What does it cost?** The report counts passes, which do not depend on the machine, and seconds, which do. VCoTTA
#    pays for its views with many forward passes a batch; `views=8` is a quarter of the usual number.
#
# One more question belongs to VCoTTA: how much of the gain comes from the warm-up, which has seen source data? Run `bn` on
# the warmed network, too.

# %%
run = vcotta.run_stream(vcotta.build_adapter("bn", warmed), stream)
print(f"bn on the warmed network: error {run.summary()['mean']['error']:.1%}")

# %% [markdown]
# The same comparison from the command line, on any of the data sets, is `vcotta run --method NAME --out runs/NAME` for
# each method, then `vcotta report`. A run that was stopped goes on with `--resume`.
