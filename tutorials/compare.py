"""Compare three methods and read the report.

Three methods on the same stream, a report, and five questions to ask it.
"""

# %% [markdown]
# ## One stream, three methods
#
# A *stream* gives every method the same images in the same order. Here each of four corruptions brings 500 digits.

# %%
import subprocess
import sys

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

stream = vcotta.make_stream(
    "continual",
    test_data,
    ("gaussian_noise", "snow", "contrast", "fog"),
    batch_size=50,
    limit=500,
)
print(stream)

# %% [markdown]
# `dataset="digits"` chooses the settings that each method has for this network and these images; for your own leave it
# out. VCoTTA draws random views, so it runs with three seeds; `bn` and `tent` draw nothing.

# %%
errors = {}
planned = [
    ("bn", net, 0),
    ("tent", net, 0),
    *(("vcotta", warmed, seed) for seed in range(3)),
]
for name, start, seed in planned:
    adapter = vcotta.build_adapter(name, start, dataset="digits", seed=seed)
    run = vcotta.run_stream(adapter, stream, f"runs/{name}-{seed}", overwrite=True)
    errors[name] = run.summary()["mean"]["error"]
    print(f"{name:7} seed {seed}: error {errors[name]:6.1%}")
assert errors["vcotta"] < 0.9 * errors["bn"]

# %% [markdown]
# ## The report
#
# In a terminal this is `vcotta report runs --out report`:

# %%
subprocess.run(
    [sys.executable, "-m", "vcotta", "report", "runs", "--out", "report"], check=True
)

# %% [markdown]
# `report/report.html` is one file that needs no network, beside it are tables and figures. This is the first one:
#
# ![Error of each method on each corruption](report/figures/error.png)
#
# ## Five questions to ask it
#
# 1. **Is it better than `bn`?** What learns and does worse has learned its own mistakes.
# 2. **On every corruption, or on one?** A mean can hide a method that wins on noise and loses on fog.
# 3. **Is the difference larger than the luck?** After ± is the 95 % interval over seeds.
# 4. **Does it know when it is wrong?** Entropy minimisation often worsens [ECE and NLL](calibration.md).
# 5. **What does it cost?** The report counts passes, which do not depend on the machine, and seconds, which do.
#
# VCoTTA started from the warmed network. How much of the gain is that?

# %%
run = vcotta.run_stream(vcotta.build_adapter("bn", warmed), stream)
print(f"bn on the warmed network: error {run.summary()['mean']['error']:.1%}")

# %% [markdown]
# The stream was chosen so that the three differ clearly. On easier ones `bn` on the warmed network was as good as
# VCoTTA, or slightly better: always run this line on your own stream. At the command line this is [`vcotta
# run`](../how-to/run-and-resume.md) for each method, then `vcotta report`.
