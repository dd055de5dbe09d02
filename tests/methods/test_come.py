from __future__ import annotations

import pytest
import torch

from vcotta import Runtime
from vcotta.methods import BN, COME, TENT, COMEConfig, TENTConfig
from vcotta.methods.come import opinion_entropy


def opinions(logits: torch.Tensor) -> torch.Tensor:
    """Beliefs and, in the last column, uncertainty, as the paper writes them."""
    evidence = logits.exp()
    total = evidence.sum(-1, keepdim=True) + logits.shape[-1]
    return torch.cat([evidence, torch.full_like(total, logits.shape[-1])], -1) / total


def test_the_entropy_is_that_of_beliefs_and_uncertainty() -> None:
    logits = 3 * torch.randn(50, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shares = opinions(logits)
    assert torch.allclose(shares.sum(-1), torch.ones(50, dtype=torch.float64))
    assert torch.allclose(opinion_entropy(logits), -(shares * shares.log()).sum(-1))


def test_large_logits_do_not_overflow_and_zeros_have_a_finite_gradient() -> None:
    logits = torch.tensor([[500.0, -500.0, 0.0], [0.0, 0.0, 0.0]], requires_grad=True)
    value = opinion_entropy(logits)
    assert value[0].item() == pytest.approx(0, abs=1e-6)
    value.sum().backward()
    assert logits.grad.isfinite().all()


def test_the_gradient_turns_the_logits_and_does_not_lengthen_them() -> None:
    logits = torch.randn(20, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(opinion_entropy(logits).sum(), logits)
    assert gradient.norm(dim=-1).min() > 1e-3
    assert (gradient * logits).sum(-1).abs().max() < 1e-12
    # Without that it is the gradient of the plain entropy of the shares, less its part along the logits.
    shares = opinions(logits)
    (plain,) = torch.autograd.grad(-(shares * shares.log()).sum(), logits)
    along = logits / logits.norm(dim=-1, keepdim=True)
    assert torch.allclose(gradient, plain - (plain * along).sum(-1, keepdim=True) * along)


def test_of_networks_that_are_alike_the_one_with_little_evidence_is_less_sure() -> None:
    weak = opinions(torch.zeros(1, 4))
    assert weak[0].tolist() == pytest.approx([1 / 8] * 4 + [1 / 2])
    strong = opinions(torch.tensor([[10.0, 0, 0, 0]]))
    assert strong[0, -1] < 1e-3


def test_the_steps_are_those_of_the_formulas(tiny, images) -> None:
    adapter = COME(tiny(), COMEConfig(lr=0.05, optimizer="momentum"), runtime=Runtime(precision="fp64"))
    net = tiny().double().train().requires_grad_(False)
    norms = [p.requires_grad_(True) for norm in (net.norm1, net.norm2) for p in norm.parameters()]
    moving = [torch.zeros_like(p) for p in norms]
    for seed in range(4):
        x = images(10, seed).double()
        logits = net(x)
        assert torch.allclose(adapter(x.float()).double(), logits.detach().log_softmax(-1), atol=1e-5)
        length = logits.norm(dim=-1, keepdim=True)
        shares = opinions(logits / length * length.detach())
        loss = -(shares * shares.log()).sum(-1).mean()
        assert adapter.last["loss"] == pytest.approx(loss.item(), rel=1e-6)
        with torch.no_grad():
            for p, speed, gradient in zip(norms, moving, torch.autograd.grad(loss, norms), strict=True):
                speed.mul_(0.9).add_(gradient)
                p.sub_(0.05 * speed)
    trained = [p for p in adapter.networks["model"].parameters() if p.requires_grad]
    assert all(torch.allclose(ours, theirs, atol=1e-6) for ours, theirs in zip(trained, norms, strict=True))


def test_scaling_the_logits_up_is_no_way_to_a_smaller_loss_as_it_is_for_tent(tiny, images) -> None:
    def growth(adapter) -> float:
        before = adapter(images()).std().item()
        for _ in range(30):
            adapter(images())
        return adapter(images()).std().item() / before

    assert growth(COME(tiny(), COMEConfig(lr=0.05))) < growth(TENT(tiny(), TENTConfig(lr=0.05)))


def test_a_network_without_normalisation_predicts_with_a_warning(tiny, images) -> None:
    with pytest.warns(UserWarning, match="COME trains nothing else"):
        adapter = COME(tiny("none"))
    assert torch.equal(adapter(images()), BN(tiny("none"))(images()))
