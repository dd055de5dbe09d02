from __future__ import annotations

import torch

from vcotta.methods import Source


def test_source_is_the_model_in_eval_mode(tiny, images) -> None:
    model = tiny()
    assert torch.equal(Source(model)(images()), model(images()).log_softmax(-1))


def test_splitting_a_batch_does_not_change_the_predictions(tiny, images) -> None:
    adapter, x = Source(tiny()), images()
    assert torch.allclose(torch.cat([adapter(x[:2]), adapter(x[2:])]), adapter(x), atol=1e-6)
