from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from vcotta.bayes import mixture_kl_bound, to_variational, variational_parameters
from vcotta.methods.parts.mean_teacher import update_teacher
from vcotta.nn.elementwise import SMALL, alike, flat, for_each_layer, shaped


def moved(net: nn.Module) -> nn.Module:
    net = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net


def kl_and_slopes(networks: list[nn.Module], compiled: bool) -> list[Tensor]:
    student, source, teacher = networks
    student.zero_grad()
    kl = mixture_kl_bound(student, source, teacher, torch.tensor(0.3), compiled=compiled)
    kl.backward()
    return [kl.detach(), *(p.grad.clone() for _, *pair in variational_parameters(student) for p in pair)]


def same_answers(tiny, student_format=torch.channels_last) -> None:
    """The compiled forms of the divergence and of the teacher's average give what the plain ones do."""
    torch.manual_seed(0)
    source = to_variational(tiny()).to(memory_format=torch.channels_last).requires_grad_(False)
    student, teacher = moved(source).to(memory_format=student_format).requires_grad_(True), moved(source)
    plain, compiled = (kl_and_slopes([student, source, teacher], compiled) for compiled in (False, True))
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(plain, compiled, strict=True))
    other = copy.deepcopy(teacher)
    update_teacher(teacher, student, 0.9, torch.tensor(True))
    update_teacher(other, student, 0.9, torch.tensor(True), compiled=True)
    pairs = zip(teacher.parameters(), other.parameters(), strict=True)
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


def test_a_flat_view_runs_through_storage_and_is_shaped_back_in_any_layout() -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        tensor = torch.arange(24.0).view(1, 2, 3, 4).contiguous(memory_format=layout)
        assert flat(tensor).is_contiguous()
        assert flat(tensor).data_ptr() == tensor.data_ptr()
        assert torch.equal(shaped(flat(tensor), tensor), tensor)


def test_one_compilation_serves_tensors_of_every_shape() -> None:
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x / 2, dynamic=True, backend=counter)
    for shape in ((8,), (2, 3), (4, 3, 3, 3), (5, 2, 1, 1), (7,)):
        tensor = nn.Parameter(torch.ones(shape))
        assert torch.equal(shaped(compiled(flat(tensor)), tensor), tensor / 2)
    assert counter.frame_count == 1


def test_only_dense_tensors_of_one_layout_are_alike() -> None:
    tensor = torch.rand(2, 3, 4, 4)
    assert alike(tensor, tensor + 1)
    assert not alike(tensor, tensor.contiguous(memory_format=torch.channels_last))
    assert not alike(tensor[..., ::2], tensor[..., ::2])
    assert not alike(tensor, tensor[:1])


@pytest.mark.parametrize("student_format", [torch.channels_last, torch.contiguous_format])
def test_arithmetic_on_flat_views_is_that_on_the_tensors(student_format, tiny, monkeypatch) -> None:
    seen: list[int] = []

    def uncompiled(function):
        def run(*tensors):
            seen.extend(t.ndim for t in tensors if isinstance(t, Tensor))
            found = function(*tensors)
            results = found if isinstance(found, tuple) else (found,)
            assert all(result.shape == tensors[1].shape for result in results)  # element by element, nothing summed
            return found

        return run

    monkeypatch.setattr("vcotta.bayes.gaussian.fused", uncompiled)
    monkeypatch.setattr("vcotta.methods.parts.mean_teacher.fused", uncompiled)
    same_answers(tiny, student_format)
    assert 1 in seen  # the flat form was used at all
    assert set(seen) <= {0, 1}  # flat, or a number such as the teacher's share


@pytest.mark.slow
def test_the_compiled_kernels_give_what_the_plain_arithmetic_gives(tiny) -> None:
    same_answers(tiny)


def test_small_layers_share_one_call_and_give_what_each_gives_alone() -> None:
    shapes, calls = [(2, 3), (SMALL + 1,), (4,), (1, 2, 2, 3)], list[int]()
    layers = [[torch.rand(shape), torch.rand(shape)] for shape in shapes]
    layers[3][0] = layers[3][0].contiguous(memory_format=torch.channels_last)

    def formula(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(x.numel())
        return x * y, x.exp()

    together = for_each_layer(formula, layers)
    assert sorted(calls) == [6 + 4 + 12, SMALL + 1]
    for found, layer in zip(together, layers, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(found, formula(*layer), strict=True))
