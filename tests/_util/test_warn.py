from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import vcotta
from vcotta._util.warn import warn
from vcotta.bayes import WarmUpConfig, warm_up


def test_outside_the_package_it_is_the_line_of_the_call() -> None:
    with pytest.warns(UserWarning, match="look here") as caught:
        warn("look here")
    assert caught[0].filename == __file__


def test_a_warning_from_deep_inside_shows_the_callers_line() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
    images = torch.rand(120, 3, 4, 4)
    loader = [(images, (images.flip(-1)[:, 0, 0, 0] > images[:, 0, 0, 0]).long())]
    for _ in range(200):
        loss = nn.functional.cross_entropy(net(images), loader[0][1])
        for parameter, slope in zip(net.parameters(), torch.autograd.grad(loss, [*net.parameters()]), strict=True):
            parameter.data -= slope
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warm_up(net, loader, WarmUpConfig(epochs=1, held_back=0.5), progress=False)
    (mirrored,) = (one for one in caught if "mirrored" in str(one.message))
    assert mirrored.filename == __file__


def calls_of_warnings(source: str) -> list[str]:
    """The lines that call ``warnings.warn`` or import it by name, whatever its arguments."""
    return re.findall(r"^.*(?:\bwarnings\.warn(?:_explicit)?\(|\bfrom warnings import\b).*$", source, re.MULTILINE)


def test_every_warning_of_the_package_shows_the_callers_line() -> None:
    sources = Path(vcotta.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if calls_of_warnings(path.read_text())] == ["warn.py"]


@pytest.mark.parametrize(
    "line", ['warnings.warn("look here")', "    warnings.warn(text, stacklevel=2)", "from warnings import warn"]
)
def test_a_plain_warning_is_found(line) -> None:
    assert calls_of_warnings(f"import warnings\n\n{line}\n") == [line]


def test_a_warning_while_an_adapter_is_built_shows_the_callers_line() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 2))
    with pytest.warns(UserWarning, match="predict without adapting") as caught:
        vcotta.build_adapter("tent", net)
    assert {one.filename for one in caught} == {__file__}
