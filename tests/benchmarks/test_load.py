"""The load benchmark notices wrong answers, and makes the requests it says it makes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from vcotta.serve.bundle import Preprocess
from vcotta.serve.requests import Limits, RefusedError, decode_npy


@pytest.fixture
def load(script):
    return script


def answer(**changes):
    values = [0.91, *[0.01] * 9]
    prediction = {"label": 0, "name": "0", "probability": 0.91, "probabilities": values} | changes
    return {"predictions": [prediction], "batch": {"adapted": True, "images": 1}}


def not_adapted():
    return answer() | {"batch": {"adapted": False, "images": 1}}


def test_a_right_answer_is_right_and_a_wrong_one_is_noticed(load) -> None:
    assert load.mistake(answer(), 1, True) is None
    assert load.mistake(answer(), 2, True)
    assert load.mistake(answer(), 1, False)
    assert load.mistake(not_adapted(), 1, True) is load.mistake(not_adapted(), 1, False) is None
    for wrong in ({"label": 1, "name": "1"}, {"label": 10}, {"probabilities": [0.5] * 10}, {"probabilities": [1.0]}):
        assert load.mistake(answer(**wrong), 1, True), wrong


def test_broken_arrays_get_the_status_they_are_said_to(load) -> None:
    images = np.zeros((3, 32, 32, 3), np.uint8)
    assert len(decode_npy(load.npy(load.floats(images)), Preprocess(32), Limits())) == 3
    for name, (status, make) in load.BROKEN.items():
        path, headers, body = make(images, random.Random(0))
        if path == "/v1/predict" and headers.get("Content-Type") == "application/x-npy" and name != "token":
            with pytest.raises(RefusedError) as refused:
                decode_npy(body, Preprocess(32), Limits())
            assert refused.value.status == status, name
