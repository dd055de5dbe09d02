from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import softplus

from vcotta import to_variational
from vcotta.methods.parts.mean_teacher import quantile, smallest, update_teacher


def test_a_teacher_equal_to_its_student_is_a_fixed_point(tiny) -> None:
    student = to_variational(tiny())
    teacher = copy.deepcopy(student)
    for _ in range(100):
        update_teacher(teacher, student, beta=0.9)
    for ours, theirs in zip(teacher.parameters(), student.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4)


def test_the_average_is_taken_of_sigma_and_not_of_rho(tiny) -> None:
    student, teacher = to_variational(tiny(), sigma_ratio=2.0), to_variational(tiny(), sigma_ratio=0.02)
    sigma_old, sigma_new = softplus(teacher.fc.weight_rho), softplus(student.fc.weight_rho)
    rho_average = 0.75 * teacher.fc.weight_rho + 0.25 * student.fc.weight_rho
    update_teacher(teacher, student, beta=0.75)
    assert torch.allclose(softplus(teacher.fc.weight_rho), 0.75 * sigma_old + 0.25 * sigma_new, rtol=1e-4)
    assert not torch.allclose(teacher.fc.weight_rho, rho_average, rtol=1e-2)


def test_means_and_point_parameters_are_averaged_and_buffers_left(tiny) -> None:
    student, teacher = to_variational(tiny(seed=1)), to_variational(tiny(seed=2))
    expected = {k: 0.9 * v + 0.1 * student.state_dict()[k] for k, v in teacher.state_dict().items() if "rho" not in k}
    buffers = {k: v.clone() for k, v in teacher.named_buffers()}
    update_teacher(teacher, student, beta=0.9)
    for name, parameter in teacher.named_parameters():
        if "rho" not in name:
            assert torch.allclose(parameter, expected[name], atol=1e-6)
    assert all(torch.equal(value, buffers[name]) for name, value in teacher.named_buffers())


def test_an_update_that_is_not_taken_leaves_the_teacher_to_the_bit(tiny) -> None:
    student, teacher = to_variational(tiny()), to_variational(tiny())
    for old, new in zip(teacher.parameters(), student.parameters(), strict=True):
        old.data.flatten()[0] = -0.0
        new.data.fill_(torch.nan)
    before = [old.detach().clone().view(torch.int32) for old in teacher.parameters()]
    update_teacher(teacher, student, beta=0.5, done=torch.tensor(False))
    for old, bits in zip(teacher.parameters(), before, strict=True):
        assert torch.equal(old.detach().view(torch.int32), bits)


def test_beta_one_freezes_the_teacher_and_beta_zero_copies_the_student(tiny) -> None:
    student, teacher = tiny(seed=1), tiny(seed=2)
    frozen = copy.deepcopy(teacher)
    update_teacher(teacher, student, beta=1.0)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), frozen.parameters(), strict=True))
    update_teacher(teacher, student, beta=0.0)
    assert all(torch.equal(a, b) for a, b in zip(teacher.parameters(), student.parameters(), strict=True))


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 1001])
@pytest.mark.parametrize("ties", [False, True])
def test_the_quantile_is_that_of_torch(share, count, ties) -> None:
    draws = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=draws).square() * 10 ** (4 * torch.randn(count, generator=draws))
    values = values.clamp_max(3).round() if ties else values
    assert torch.allclose(quantile(values, share), values.quantile(share), rtol=1e-5, atol=0)
    rank = int(share * (count - 1))
    assert torch.equal(smallest(values, rank), values.sort().values[rank])


def test_the_quantile_takes_more_values_than_torch_does() -> None:
    values = torch.linspace(0, 1, 2**24 + 11)
    assert quantile(values, 0.25).item() == pytest.approx(0.25, abs=1e-6)
