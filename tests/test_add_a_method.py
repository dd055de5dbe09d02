"""The method on the page about adding one keeps what every method promises."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import vcotta
from vcotta.methods import registry
from vcotta.report.groups import find_runs

from .methods import contract, promises, subject

PAGE = (Path(__file__).parents[1] / "docs" / "how-to" / "add-a-method.md").read_text()
BLOCKS = re.findall(r"```(?:python|text)\n(.*?)```", PAGE, re.S)
NAME = "pseudo-label"


@pytest.fixture(autouse=True)
def added(tiny, monkeypatch) -> dict[str, Any]:
    """Do what the page says: define the method, register it, promise what its line for the tests says."""
    method, register, _, promise = BLOCKS
    module = types.ModuleType("pseudo_label")  # dataclasses look for the module they are defined in
    monkeypatch.setitem(sys.modules, "pseudo_label", module)
    names = vars(module)
    names.update(vcotta=vcotta, model=tiny(classes=10))
    monkeypatch.setattr(registry, "REGISTERED", dict(registry.REGISTERED))
    exec(method, names)
    exec(register, names)
    names["promise"] = eval(f"{{{promise}}}", vars(promises))[NAME]
    assert names["adapter"].config == names["PseudoLabelConfig"](rate=0.2)
    return names


def test_the_method_takes_about_thirty_lines() -> None:
    body = BLOCKS[0].split("@dataclass")[1]
    assert sum(bool(line.strip()) for line in body.splitlines()) <= 36


def test_its_run_on_a_stream_is_there_to_be_reported(added, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(BLOCKS[2], added)
    (folder,) = find_runs([Path("runs")])
    assert folder.endswith("pseudo-label-in-python")
    assert len(added["run"].summary()["domains"]) == 2


def test_registered_it_is_listed_and_configured_by_name() -> None:
    assert NAME in vcotta.list_methods()
    assert vcotta.methods.configure(NAME, dataset="digits").lr == 1e-2
    with pytest.raises(TypeError, match="`lr`"):
        vcotta.methods.configure(NAME, lr="fast")


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.filterwarnings("ignore:TinyNet has no normalisation layer")
def test_its_outputs_are_log_probabilities(norm, added, tiny, images) -> None:
    contract.check_outputs(subject.Subject(NAME, added["promise"], tiny, images), norm, (8, 14))


@pytest.mark.parametrize("claimed", subject.claims_of("tent", promises.PROMISES["tent"]))
def test_it_keeps_the_contract(claimed, added, tiny, images) -> None:
    check, _ = subject.CLAIMS[claimed]
    check(subject.Subject(NAME, added["promise"], tiny, images))


@pytest.mark.parametrize("case", contract.BAD_INPUT)
def test_it_refuses_bad_input(case, added, tiny, images) -> None:
    contract.check_bad_input(subject.Subject(NAME, added["promise"], tiny, images), case)


def test_nothing_sure_means_no_step(tiny, images) -> None:
    adapter = vcotta.build_adapter(NAME, tiny())
    adapter(images())
    adapter.memory["mean"] = torch.tensor(2.0)
    before = {key: value.clone() for key, value in adapter.networks["model"].state_dict().items()}
    adapter(images(seed=1))
    after = adapter.networks["model"].state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert adapter.last["sure"] == 0
    assert adapter.last["skipped"] is False
