"""Small networks, images, runs and the command line, as many tests use them."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vcotta import cli
from vcotta.runs.run import Run

torch.set_num_threads(1)


class TinyNet(nn.Module):
    """Two convolutions and a linear layer on images of any size; the normalisation layer is the caller's choice."""

    def __init__(self, norm: str = "batch", channels: int = 3, classes: int = 4) -> None:
        super().__init__()
        self.norm, self.channels, self.classes = norm, channels, classes
        self.conv1 = nn.Conv2d(channels, 8, 3, padding=1, stride=2)
        self.norm1 = _norm(norm, 8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, 8)
        self.fc = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.fc(x.mean((2, 3)))


def _norm(kind: str, width: int) -> nn.Module:
    return {
        "batch": nn.BatchNorm2d(width),
        "group": nn.GroupNorm(2, width),
        "none": nn.Identity(),
    }[kind]


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[], None]]:
    """A function that presses Ctrl-C, with Python's usual handler: under ``nohup`` a process starts without it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def tiny() -> Callable[..., nn.Module]:
    """A factory of seeded tiny networks whose BatchNorm statistics are not the trivial ones."""

    def make(norm: str = "batch", seed: int = 0, **arguments: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            net = TinyNet(norm, **arguments)
            net.train()
            net(torch.rand(64, net.channels, 8, 8))
        return net.eval()

    return make


@pytest.fixture
def images() -> Callable[..., Tensor]:
    """A factory of seeded images in [0, 1]."""

    def make(n: int = 6, seed: int = 0, channels: int = 3, size: tuple[int, int] = (8, 8)) -> Tensor:
        return torch.rand(n, channels, *size, generator=torch.Generator().manual_seed(seed))

    return make


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run the command line in this process; returns (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["vcotta", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        output = capsys.readouterr()
        return end.value.code or 0, output.out, output.err

    return call


@pytest.fixture
def make_run():
    """Make a run with chosen numbers of errors, of 20 images a batch and two batches a domain."""

    def make(method, errors, *, seconds=0.5, alphas=None, nll=0.5, confidence=0.9):
        records, timing = [], []
        for index, (domain, severity, wrong) in enumerate(
            (domain, severity, wrong) for (domain, severity), wrong in errors.items() for _ in range(2)
        ):
            labels = np.arange(20) % 4
            predictions = np.where(np.arange(20) < wrong, (labels + 1) % 4, labels)
            last = {"forwards": 1} if alphas is None else {"forwards": 1, "alpha": alphas[index]}
            records.append(
                {
                    "batch": index,
                    "domain": domain,
                    "severity": severity,
                    "n": 20,
                    "errors": wrong,
                    "nll": nll,
                    "brier": 0.25,
                    "labels": labels.tolist(),
                    "predictions": predictions.tolist(),
                    "confidences": [confidence] * 20,
                    "last": last,
                }
            )
            timing.append({"batch": index, "seconds": seconds, "peak_memory": 1000})
        return Run({"method": method, "batches": len(records)}, records, timing)

    return make


@pytest.fixture(scope="session")
def browser():
    """A real browser without a window; the test is skipped where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not (binary and driver):
        pytest.skip("no chromium with its chromedriver is installed, so the page is not tried in one")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield opened
    opened.quit()
