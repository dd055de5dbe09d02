from __future__ import annotations

import pytest
import torch

from vcotta.data.digits import digits_network
from vcotta.experiments.digits import OPTIONS, digits_adapter, digits_network_for, digits_stream, warm_up_digits
from vcotta.methods import list_methods


def test_every_method_has_settings_and_no_view_mirrors_a_digit() -> None:
    assert list(OPTIONS) == list_methods()
    model = digits_network(0).eval()
    from vcotta import to_variational

    for method in list_methods():
        adapter = digits_adapter(method, to_variational(model) if method == "vcotta" else model, seed=1)
        assert adapter.seed == 1
        assert not getattr(adapter.config, "flip", False)
        assert getattr(adapter.config, "views", 0) <= 8


def test_the_warm_up_changes_the_standard_deviations() -> None:
    model = digits_network(0).eval()
    net = warm_up_digits(model, seed=0)
    assert net.fc.weight_rho.std() > 0


def test_the_stream_is_the_standard_one_at_severity_5() -> None:
    stream = digits_stream(seed=2)
    assert len(stream.domains) == 15
    assert {severity for _, severity in stream.domains} == {5}
    assert stream.images_per_domain == 797


def test_weights_are_for_methods_that_need_a_warmed_network(tmp_path) -> None:
    with pytest.raises(ValueError, match="plain network"):
        digits_network_for("bn", 0, tmp_path / "w", lambda label, form: lambda *values: None)


def test_training_is_reproducible() -> None:
    one, two = digits_network(3), digits_network(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
