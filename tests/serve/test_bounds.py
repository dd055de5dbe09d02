"""Bounds of bundles: what a method uses by default counts, too, and no setting of the package is refused."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

pytest.importorskip("fastapi")

from vcotta import build_adapter, configure, list_methods
from vcotta.methods import DATASETS, find_method
from vcotta.models import build_network
from vcotta.serve import Preprocess, make_bundle
from vcotta.serve.bounds import check_batch, check_numbers

CASES = [(name, preset) for name in list_methods() for preset in (None, *find_method(name).presets)]


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize(("method", "preset"), CASES)
def test_no_published_setting_is_out_of_bounds(method, preset, dataset) -> None:
    named = {"preset": preset} if preset else {}
    check_numbers(asdict(configure(method, dataset=dataset, **named)))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e-13, -1e7])
def test_numbers_that_are_useless_anywhere_are_refused(value) -> None:
    with pytest.raises(ValueError, match="`anything`"):
        check_numbers({"anything": value})


def test_batches_of_exactly_the_bound_pass() -> None:
    check_batch(2**15, 3, (4, 128, 128))
    with pytest.raises(ValueError, match="Choose a smaller batch size"):
        check_batch(2**15 + 1, 3, (4, 128, 128))


@pytest.fixture
def bundle():
    return make_bundle(build_adapter("cotta", build_network("wrn-10-1", 2)), "wrn-10-1", ["a", "b"], Preprocess(224))


def test_views_count_towards_the_size_of_a_batch(bundle) -> None:
    with pytest.raises(ValueError, match="with 32 views each"):
        replace(bundle, batch_size=4096)


def test_views_that_a_bundle_leaves_out_count_as_the_default(bundle) -> None:
    left = {name: value for name, value in bundle.settings.items() if name != "views"}
    with pytest.raises(ValueError, match="with 32 views each"):
        replace(bundle, settings=left, batch_size=4096)
