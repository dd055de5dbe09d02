"""The study of small batches mixes statistics as VCoTTA does, and keeps the rows of other networks."""

from __future__ import annotations

import json

import pytest

from studies.small_batches import run as script
from vcotta import build_adapter
from vcotta.experiments.build import stream_for
from vcotta.models import save_weights
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.spec import RunSpec


@pytest.mark.parametrize(("prior", "share"), [(None, None), (8, 4 / (4 + 8 * 28 / 32))])
def test_the_error_is_that_of_bn_with_vcottas_mixture(prior, share) -> None:
    net, spec = digits_network(), RunSpec("bn", limit=10, table=224)
    options = {} if share is None else {"statistics": "prior", "alpha": share}
    adapter = build_adapter("bn", net, **options)
    stream = stream_for(RunSpec("bn", corruptions=("spatter",), batch_size=4, limit=10, table=224))
    wrong = sum(int((adapter(batch.images).argmax(1) != batch.labels).sum()) for batch in stream.batches())
    assert script.error(spec, net, "spatter", 4, prior) == pytest.approx(10 * wrong)


def test_rows_of_other_networks_are_kept_and_ones_own_replaced(tmp_path) -> None:
    out, weights = tmp_path / "found.json", tmp_path / "plain.safetensors"
    save_weights(digits_network(), weights)
    other = {"network": "cifar10, resnet-20", "size": 2, "prior": 4, "clean": 1.0, "corrupted": 2.0}
    out.write_text(json.dumps({"setting": {}, "rows": [other, other | {"network": "digits"}]}))
    script.main(["--weights", str(weights), "--sizes", "2", "--images", "4", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert rows[0] == other
    assert [(row["network"], row["size"], row["prior"]) for row in rows[1:]] == [
        ("digits", 2, prior) for prior in script.PRIORS
    ]
