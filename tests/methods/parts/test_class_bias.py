from __future__ import annotations

import pytest
import torch

from vcotta.methods.parts.class_bias import HORIZON, class_bias


def answers(count: int, classes: int = 4, seed: int = 0, sure: float = 4.0) -> torch.Tensor:
    """Logits of images whose classes come in random order, (1, count, classes)."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (count,), generator=generator)
    noise = torch.randn(count, classes, generator=generator)
    return (sure * torch.eye(classes)[labels] + noise).unsqueeze(0)


def stream(batches: list[torch.Tensor]) -> torch.Tensor:
    """The bias after so many batches of logits."""
    memory = None
    for batch in batches:
        bias, memory = class_bias(batch.log_softmax(-1), memory)
    return bias


def test_what_is_added_to_a_class_on_all_images_is_found() -> None:
    added = torch.tensor([1.5, 0.0, -1.0, 0.0])
    bias = stream([answers(50, seed=seed) + added for seed in range(10)])
    assert torch.allclose(bias, added - added.mean(), atol=0.35)
    plain = stream([answers(50, seed=seed) for seed in range(10)])
    assert plain.abs().max() < 0.35


def test_the_bias_is_the_stated_formula() -> None:
    logits = answers(30) + torch.tensor([3.0, 0.0, 0.0, 0.0])
    values = logits[0].double() - logits[0].double().mean(-1, keepdim=True)
    mean, between = values.mean(0), values.var(0, correction=0).mean()
    size = mean.square().mean()
    expected = mean * max(0, 1 - between / (30 * size) / 3) * min(1, between / size)
    assert torch.allclose(class_bias(logits.log_softmax(-1))[0], expected.float(), atol=1e-5)


def test_images_are_remembered_alike_however_they_are_batched_and_older_ones_fade() -> None:
    images = answers(60)
    whole = stream([images])
    singles = stream(list(images.split(1, dim=1)))
    assert torch.allclose(whole, singles, atol=0.1)
    _, memory = class_bias(answers(10, seed=1).log_softmax(-1), torch.full((3, 4), 100.0))
    assert memory[0, 0] == pytest.approx(10 + 100 * 2.718281828 ** (-10 / HORIZON))


def test_of_few_images_and_many_classes_little_is_left() -> None:
    few, many = (class_bias(answers(n, 100, sure=0.0).log_softmax(-1))[0].square().mean() for n in (4, 1000))
    noise = answers(4, 100, sure=0.0)[0].mean(0).var()
    assert few < 0.2 * noise
    assert many < 0.01


def test_answers_that_are_all_alike_say_nothing_of_the_network() -> None:
    alike = torch.tensor([5.0, 0.0, 0.0, 0.0]).expand(1, 50, 4)
    assert torch.equal(class_bias(alike.log_softmax(-1))[0].round(decimals=5), torch.zeros(4))
    one_class = answers(50) * 0.2 + torch.tensor([5.0, 0.0, 0.0, 0.0])
    bias, _ = class_bias(one_class.log_softmax(-1))
    assert ((one_class - bias).argmax(-1) == 0).all()


def test_an_answer_that_is_not_finite_leaves_the_memory_as_it_is() -> None:
    _, memory = class_bias(answers(20).log_softmax(-1))
    broken = answers(20)
    broken[0, 3, 1] = torch.nan
    bias, after = class_bias(broken, memory)
    assert torch.equal(after, memory)
    assert bias.isfinite().all()


def test_views_of_an_image_count_once() -> None:
    logits = answers(20).log_softmax(-1)
    bias, memory = class_bias(logits)
    again, same = class_bias(logits.expand(5, -1, -1))
    assert torch.allclose(bias, again, atol=1e-6)
    assert torch.allclose(memory, same, atol=1e-4)
