"""Serve your own network and watch it.

A network of your own behind HTTP: it adapts, exports metrics, and keeps its state over a restart.
"""

# %% [markdown]
# ## The network, in a file
#
# The server builds the network itself, so its code has to be importable. It needs the extra `serve` (`pip install
# '.[serve]'` in a clone).

# %%
import io
import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image

import vcotta
from vcotta.data import batches, load_digits, to_tensor
from vcotta.models import build_network
from vcotta.serve import Preprocess, make_bundle, save_bundle
from vcotta.training import TrainConfig, train

CODE = '''
from torch import nn


def block(inputs, outputs):
    return [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]


def make(classes=10):
    """Takes images in [0, 1]; BatchNorm comes early, so nothing else normalises them."""
    layers = [nn.AvgPool2d(4), nn.BatchNorm2d(3), *block(3, 16), *block(16, 32), *block(32, 64)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
'''
Path("my_network.py").write_text(CODE)

# %% [markdown]
# ## Train it, warm it up
#
# The pictures are the digits, enlarged.


# %%
def enlarge(images: np.ndarray) -> np.ndarray:
    """Make pictures of 224 x 224 pixels."""
    return np.stack(
        [np.asarray(Image.fromarray(image).resize((224, 224))) for image in images]
    )


train_data, test_data = load_digits()
loader = batches(
    enlarge(train_data.images[:500]), train_data.labels[:500], 50, shuffle_seed=0
)
net = train(build_network("my_network:make", 10), loader, TrainConfig(epochs=20))
adapter = vcotta.build_adapter(
    "vcotta",
    net,
    source=loader,
    flip=False,
    views=2,
    warmup=vcotta.WarmUpConfig(epochs=2),
)

# %% [markdown]
# ## One file for the server
#
# A *bundle* holds the warmed weights, the method with its settings and guard, the class names and how pictures are
# resized.

# %%
names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
save_bundle(
    make_bundle(adapter, "my_network:make", names, Preprocess(224), batch_size=16),
    "digits.bundle",
)
print(f"{Path('digits.bundle').stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# ## Start it
#
# In a terminal: `vcotta serve digits.bundle --trust my_network:make --token-file token`. A bundle that names your code
# is served only with `--trust`. Whoever has the token may change the model. Port 0 means any free one.

# %%
token = "a-long-random-text-in-real-life"
Path("token").write_text(token)
Path("token").chmod(0o600)


def start() -> tuple[subprocess.Popen[str], str]:
    """Start the server, and return it with its address."""
    command = [
        sys.executable,
        "-m",
        "vcotta",
        "serve",
        "digits.bundle",
        "--trust",
        "my_network:make",
    ]
    server = subprocess.Popen(
        [*command, "--token-file", "token", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    print(server.stdout.readline().strip())
    return server, server.stdout.readline().split()[-1]


server, address = start()

# %% [markdown]
# ## Send pictures
#
# PNG or JPEG files of any size go in a form, in the field `images`; `examples/client.py` is a client to copy.


# %%
def get(path: str) -> bytes:
    """Ask the server."""
    with urllib.request.urlopen(address + path) as answer:
        return answer.read()


def send(pictures: np.ndarray, path: str = "/v1/predict") -> dict[str, Any]:
    """Send pictures as PNG files."""
    body = b""
    for place, picture in enumerate(pictures):
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        head = f'--EDGE\r\nContent-Disposition: form-data; name="images"; filename="{place}.png"\r\n\r\n'
        body += head.encode() + file.getvalue() + b"\r\n"
    headers = {
        "Content-Type": "multipart/form-data; boundary=EDGE",
        "Authorization": f"Bearer {token}",
    }
    request = urllib.request.Request(address + path, body + b"--EDGE--\r\n", headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


pictures = vcotta.corrupt(enlarge(test_data.images[:160]), "contrast", 3, seed=0)
labels = test_data.labels[:160]
answer = send(
    enlarge(test_data.images[:16]), "/v1/predict?adapt=false&probabilities=false"
)
print(json.dumps(answer["predictions"][0], indent=1))

# %% [markdown]
# `adapt=false` only looked. Now the stream, 16 pictures of low contrast a request:

# %%
found = [
    prediction["label"]
    for place in range(0, 160, 16)
    for prediction in send(pictures[place : place + 16])["predictions"]
]
with torch.no_grad():
    plain = net(to_tensor(pictures)).argmax(1).numpy()
print(
    f"plain network {np.mean(plain != labels):.1%} wrong, server {np.mean(found != labels):.1%}"
)
assert np.mean(found != labels) < np.mean(plain != labels)

# %% [markdown]
# ## Watch it
#
# `/metrics` is for Prometheus; `/` is a status page for people. These lines are worth an alarm when they rise:

# %%
for line in get("/metrics").decode().splitlines():
    if line.startswith(
        (
            "vcotta_images_total",
            "vcotta_guard_events_total",
            "vcotta_skipped_total",
            "vcotta_parameter_distance ",
        )
    ):
        print(line)

# %% [markdown]
# `/v1/state` has the latest batches: how unsure the answers are (entropy), and how far the weights have moved
# (distance). We cover the lens, that is, send noise, and look again:

# %%
noise = np.random.default_rng(0).integers(0, 256, (16, 224, 224, 3), np.uint8)
for _ in range(4):
    send(noise)
history = json.loads(get("/v1/state"))["history"]

figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), constrained_layout=True)
figure.suptitle("Ten requests of low contrast, then four of noise")
for axis, key in zip(axes, ("entropy", "parameter_distance"), strict=True):
    axis.plot(
        [entry["step"] for entry in history],
        [entry[key] for entry in history],
        marker="o",
    )
    axis.set(xlabel="batch", ylabel=key.replace("_", " "))
    axis.axvspan(10.5, 14.5, color="0.9")
    axis.set_xticks(range(2, 15, 4))

# %% [markdown]
# An alarm on the entropy finds a covered lens at once. The guard learns what is usual here from 50 images per class;
# after that it stops the model from learning such pictures.
#
# ## Stop and start again
#
# On SIGTERM or Ctrl-C the server saves its state; the next start continues from there.

# %%
server.send_signal(signal.SIGTERM)
print(server.communicate(timeout=60)[0].strip())
server, address = start()
state = json.loads(get("/v1/state"))
print(
    f"{state['steps']} batches seen, {state['network']} for {', '.join(state['class_names'][:3])}, ..."
)
server.terminate()
server.communicate(timeout=60)
assert state["steps"] == 14

# %% [markdown]
# [Operations](../operations/index.md) describes batches, limits, restarts and sizing.
