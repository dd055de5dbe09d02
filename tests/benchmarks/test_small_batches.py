"""The benchmark of small batches mixes statistics as VCoTTA does, and keeps the rows of other networks."""

from __future__ import annotations

import json

import pytest

from vcotta import build_adapter
from vcotta.data.digits import digits_network


@pytest.mark.parametrize(("prior", "share"), [(None, None), (8, 4 / (4 + 8 * 28 / 32))])
def test_the_error_is_that_of_bn_with_vcottas_mixture(script, prior, share) -> None:
    net, digits = digits_network(), script.find_benchmark("digits")
    options = {} if share is None else {"statistics": "prior", "alpha": share}
    stream = script.stream_for(digits, corruptions=("spatter",), batch_size=4, limit=10, table=224)
    adapter = build_adapter("bn", net, **options)
    wrong = sum(int((adapter(batch.images).argmax(1) != batch.labels).sum()) for batch in stream.batches())
    assert script.error(net, digits, "spatter", 4, prior, 10) == 10 * wrong


def test_rows_of_other_networks_are_kept_and_ones_own_replaced(script, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(script, "start_network", lambda *_: digits_network())
    out = tmp_path / "found.json"
    other = {"network": "cifar10, resnet-20", "size": 2, "prior": 4, "clean": 1.0, "corrupted": 2.0}
    out.write_text(json.dumps({"setting": {}, "rows": [other, other | {"network": "digits"}]}))
    script.main(["--sizes", "2", "--images", "4", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert rows[0] == other
    assert [(row["network"], row["size"], row["prior"]) for row in rows[1:]] == [
        ("digits", 2, prior) for prior in script.PRIORS
    ]
