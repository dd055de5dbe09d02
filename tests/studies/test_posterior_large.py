"""Large networks in the study of the posterior: rows, what is kept, and the tables of them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import pytest
import torch

from studies.posterior import large as script
from studies.posterior import table_large as page
from studies.posterior.meaning import BEFORE, Meaning
from vcotta import Runtime, WarmUpConfig, to_variational
from vcotta.bayes.held_back import Verdict, _explain
from vcotta.experiments.benchmarks import find_benchmark
from vcotta.methods import VCoTTAConfig, configure
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network

# --- what is changed -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", script.WARM_UPS)
def test_each_warm_up_can_be_asked_for_and_differs_from_the_default(name) -> None:
    settings = script.WARM_UPS[name]
    assert settings is None or (WarmUpConfig(**settings) == WarmUpConfig()) == (name == "default")


@pytest.mark.parametrize("name", script.VARIANTS)
def test_each_variant_can_be_asked_for_and_differs_from_the_default(name) -> None:
    assert (configure("vcotta", **script.VARIANTS[name]) == VCoTTAConfig()) == (name == "default")


def test_names_that_say_how_much_are_right() -> None:
    lr, kl, variants = VCoTTAConfig().lr, VCoTTAConfig().kl_weight, script.VARIANTS
    assert variants["half the step"]["lr"] == pytest.approx(lr / 2)
    assert variants["twice the step"]["lr"] == pytest.approx(2 * lr)
    assert variants["a third of the step"]["lr"] == pytest.approx(lr / 3)
    assert variants["ten times the divergence"]["kl_weight"] == pytest.approx(10 * kl)
    assert variants["slower average"]["beta"] > VCoTTAConfig().beta
    warm_ups, own = script.WARM_UPS, WarmUpConfig()
    assert warm_ups["three times the step"]["lr"] == pytest.approx(3 * own.lr)
    assert warm_ups["a third of the step"]["lr"] == pytest.approx(own.lr / 3, rel=0.15)
    assert warm_ups["30 times the divergence"]["kl_weight"] == pytest.approx(30 * own.kl_weight)


def test_the_warm_up_before_is_the_one_of_cifar100_but_for_its_epochs() -> None:
    assert replace(find_benchmark("cifar100").warm_up, epochs=5) == WarmUpConfig(**BEFORE)


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def meaning(images) -> Meaning:
    pixels = (255 * images(6).permute(0, 2, 3, 1)).byte().numpy()
    labels = torch.arange(6).numpy() % 4
    return Meaning(Runtime(), 4, (pixels, labels), iter([(pixels, labels), (255 - pixels, labels)]))


def test_draws_of_almost_no_width_score_as_the_means_do_and_wide_ones_do_not(meaning, tiny) -> None:
    net = to_variational(tiny())
    rhos = [value for name, value in net.named_parameters() if name.endswith("_rho")]
    for rho in rhos:
        rho.data.fill_(-20.0)
    narrow = meaning.of(net)
    assert narrow["clean_draws"]["nll"] == pytest.approx(narrow["clean"]["nll"], abs=2e-4)
    assert narrow["corrupted_draws"]["nll"] == pytest.approx(narrow["corrupted"]["nll"], abs=2e-4)
    assert narrow["spread"] == {"least": 0.0, "median": 0.0}
    for rho in rhos:
        rho.data.copy_(torch.linspace(-3.0, 1.0, rho.numel()).reshape(rho.shape))
    wide = meaning.of(net)
    assert wide["clean"] == narrow["clean"]
    assert abs(wide["clean_draws"]["nll"] - wide["clean"]["nll"]) > 0.01
    assert wide["spread"]["least"] > 0.5


def test_scores_leave_the_network_alone_and_repeat(meaning, tiny) -> None:
    net = to_variational(tiny())
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert meaning.of(net) == meaning.of(net)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not net.training


# --- rows ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Run the script on twelve digits, with warm-ups of a single epoch on few images."""
    monkeypatch.setenv("VCOTTA_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    save_weights(digits_network(0), tmp_path / "net.safetensors")
    made: list[WarmUpConfig] = []

    def warm_up(net, loader, config, **_):
        made.append(config)
        warnings.warn("so 0.5 of its way is kept (error ...)", stacklevel=2)
        return to_variational(net).eval()

    monkeypatch.setattr(script, "warm_up", warm_up)

    def run(*words: str) -> list[dict]:
        script.main(["--dataset", "digits", "--weights", "net.safetensors", "--limit", "12", "--views", "1",
                     "--work", "work", "--out", "rows.json", *words])  # fmt: skip
        return json.loads((tmp_path / "rows.json").read_text())

    run.made = made
    return run


def test_rows_are_written_once_and_a_network_is_warmed_up_once(measure) -> None:
    words = ("--warm-ups", "none", "default", "--keep", "default", "--variants", "2 views", "--epochs", "1")
    rows = measure(*words)
    assert [(one["what"], one["warm_up"], one["variant"]) for one in rows] == [
        ("warm-up", "none", "default"),
        ("warm-up", "default", "default"),
        ("variant", "default", "2 views"),
    ]
    assert [config.epochs for config in measure.made] == [1]
    assert rows[1]["words"] == ["so 0.5 of its way is kept (error ...)"]
    assert [len(one["adapted"]["errors"]) for one in rows] == [4, 4, 4]
    assert all(0 <= one["adapted"]["error"] <= 100 for one in rows)
    assert measure(*words) == rows
    assert len(measure.made) == 1


def test_what_a_warm_up_warned_of_is_kept_with_its_network(measure, tmp_path) -> None:
    measure("--warm-ups", "default", "--epochs", "1")
    (tmp_path / "rows.json").unlink()  # as if killed between the network and its row
    (row,) = measure("--warm-ups", "default", "--epochs", "1")
    assert row["words"]


def test_a_row_with_more_views_is_another_row(measure) -> None:
    words = ("--warm-ups", "none")
    assert len(measure(*words)) == 1
    assert len(measure(*words, "--views", "2")) == 2


# --- tables ----------------------------------------------------------------------------------------------------------


def row(
    warm_up="default", variant="default", what="warm-up", dataset="cifar10", epochs=None, error=9.0, **more
) -> dict:
    pair = {"error": error, "nll": 0.5}
    network = {"cifar10": "wrn-28-10", "imagenet": "resnet-50-v1"}[dataset]
    facts = {"dataset": dataset, "network": network, "epochs": epochs, "warm_up": warm_up, "variant": variant}
    facts |= {"what": what, "limit": 2000 if dataset == "cifar10" else 1000, "views": 8, "torch": "2"}
    facts |= {"hardware": "a GPU", "adapted": pair, "words": [], "spread": {"least": 0.1, "median": 1.5}}
    return facts | dict.fromkeys(("clean", "clean_draws", "corrupted", "corrupted_draws"), pair) | more


@pytest.fixture
def rows(monkeypatch):
    found: list[dict] = [row(dataset="imagenet", error=57.0)]
    monkeypatch.setattr(page, "read_result", lambda *_: found)
    return found


def test_warm_ups_have_their_epochs_and_the_share_of_their_way(rows) -> None:
    said = "The warm-up made the network worse on 399 held-back source images, so 0.25 of its way is kept (...)."
    rows += [row("none"), row(epochs=2), row(words=["something else", said])]
    lines = [one.split(" | ") for one in page.warmups_text().splitlines() if one.startswith(("| none", "| default"))]
    assert [(one[0], one[1], one[-2]) for one in lines] == [
        ("| none", "-", "1"),
        ("| default", "2", "1"),
        ("| default", "5", "0.25"),
        ("| default", "5", "1"),
    ]
    assert lines[0][2] == "9.00 / 0.500"


def test_variants_are_those_of_the_default_warm_up_of_five_epochs(rows) -> None:
    rows += [row(), row(variant="2 views", what="variant", error=9.5), row(epochs=2, error=99.0)]
    rows += [row("none", error=99.0), row("none", variant="32 views", what="variant", error=99.0)]
    rows += [row(dataset="imagenet", variant="batch statistics", what="variant", error=58.0)]
    text = page.variants_text()
    assert "| default | 57.00 / 0.500 | 9.00 / 0.500 |" in text or "| default | 9.00 / 0.500 | 57.00 / 0.500 |" in text
    assert "| 2 views | 9.50 / 0.500 |  |" in text
    assert "99.00" not in text


def test_a_network_without_variants_has_no_column_and_a_row_without_vcotta_an_empty_cell(rows) -> None:
    rows += [row(), row(variant="2 views", what="variant"), row(epochs=10, adapted=None)]
    assert page.variants_text().splitlines()[0] == "| VCoTTA | WRN-28-10, CIFAR-10 |"
    (line,) = (one for one in page.warmups_text().splitlines() if one.startswith("| default | 10"))
    assert line.endswith("| 1 |  |")


def verdict(way: float) -> str:
    numbers = (0.1, 0.4, 0.9)
    return _explain(Verdict(way, 1.0, 399, numbers, numbers, 0.4))


@pytest.mark.parametrize("way", [0.5, 0.25, 0.125])
def test_the_share_of_the_way_is_read_from_the_warning_itself(way) -> None:
    assert page._way([verdict(way)]) == f"{way:g}"


def test_a_way_that_was_taken_back_altogether_is_0() -> None:
    assert page._way([verdict(0.0)]) == "0"
