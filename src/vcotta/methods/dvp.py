"""DVP: visual domain prompts, learned pixels that are added to every image (Gan et al., AAAI 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta._util.validation import Count, NonNegative, Positive, UnitInterval
from vcotta.methods.base import Adapter
from vcotta.methods.card import Card
from vcotta.methods.class_mix import StreamSettings
from vcotta.methods.parts.losses import cross_entropy
from vcotta.methods.parts.mean_teacher import student_and_teacher, update_teacher
from vcotta.methods.registry import register_method
from vcotta.nn.optim import OptimizerName
from vcotta.nn.views import random_view

__all__ = ["DVP", "DVPConfig", "Prompts"]


@dataclass(frozen=True)
class DVPConfig(StreamSettings):
    """Settings of DVP. All values are ours: none could be found in public.

    Attributes:
        lr: Step size of the prompts (1e-3, CoTTA's).
        optimizer: ``adam`` or ``sgd``.
        size: Side of each prompt in pixels (30). A later table counts 1 800 trained values, as two squares of 30 x 30
            have.
        beta: Decay of the teacher's average (0.999, CoTTA's).
        homeostasis: Weight of the penalty on the domain-agnostic prompt (0.1, as in synaptic intelligence).
        damping: Added to the squared change of a value over a domain, by which its importance is divided (0.1,
            likewise).
        shift: A new domain begins where the mean confidence differs by more than this from the batch before (0.05).
        flip: Whether the view may mirror the image; not where left and right matter, as in digits.
    """

    lr: NonNegative = 1e-3
    optimizer: OptimizerName = "adam"
    size: Count = 30
    beta: UnitInterval = 0.999
    homeostasis: NonNegative = 0.1
    damping: Positive = 0.1
    shift: NonNegative = 0.05
    flip: bool = True


class Prompts(nn.Module):
    """Two squares of pixels, domain-specific and domain-agnostic, at first 0, that are added to the middle of an image.

    Each has one value for a pixel, the same for all channels. Of an image that is smaller than the squares their middle
    is used.

    Example:
        >>> prompts = Prompts(2)
        >>> _ = nn.init.ones_(prompts.specific)
        >>> prompts(torch.zeros(1, 1, 4, 4))[0, 0, 1]
        tensor([0., 1., 1., 0.], grad_fn=<SelectBackward0>)
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.specific = nn.Parameter(torch.zeros(size, size))
        self.agnostic = nn.Parameter(torch.zeros(size, size))

    def forward(self, images: Tensor) -> Tensor:
        """Return the images with both prompts added; values may leave [0, 1]."""
        missing = [whole - size for whole, size in zip(images.shape[-2:], self.specific.shape, strict=True)]
        (top, left), (bottom, right) = [gap // 2 for gap in missing], [gap - gap // 2 for gap in missing]
        return images + F.pad(self.specific + self.agnostic, (left, right, top, bottom))  # crops where negative


@register_method
class DVP(Adapter):
    r"""Two prompts of pixels are added to every image and learn from their own average; the network never changes.

    The teacher's prompts, the average of the student's, predict the images. The student's minimise the cross-entropy
    with that prediction q on a random view of the images, and the domain-agnostic prompt :math:`\theta` a penalty that
    holds values to which earlier domains were sensitive where the last one left them:

    .. math:: L = \mathrm{CE}(q, p) + \lambda \sum_i \Lambda_i (\theta_i - \theta^*_i)^2, \quad
        \Lambda_i \leftarrow \Lambda_i + \frac{\max(0, \omega_i)}{(\theta_i - \theta^*_i)^2 + \xi}
        \text{ at each new domain,}

    where :math:`\omega_i = -\sum_t g_i(t) (\theta_i(t + 1) - \theta_i(t))` follows the gradient g of the cross-entropy
    through the domain. A new domain begins where the mean confidence of the prediction jumps from one batch to the
    next; then :math:`\theta^* = \theta`.

    **A reconstruction.** No code is public, and neither the paper's formulas nor its values could be read.
    From its abstract and from notes of readers are: a frozen network; two prompts, summed point by point and added to a
    part of the image, whose size and place are free; student and teacher prompts; images and an augmented copy of them;
    the cross-entropy for both prompts and the penalty for the agnostic one, with importances gathered over domains from
    the changes of its values; new domains found by a threshold on the confidence. Ours are: the form of the
    importances, which is that of synaptic intelligence (Zenke, Poole and Ganguli, ICML 2017), whose symbols the notes
    repeat; squares in the middle of the image with one value for all channels; that the teacher sees the image and the
    student the copy, CoTTA's augmentation; that the teacher's prediction, from before the step, is returned; that
    neither prompt is reset; BatchNorm with the statistics of the batch; no preparation on source data, which one list
    says the method needs, without details; and all values.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.BatchNorm2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        >>> DVP(net)(torch.rand(4, 3, 8, 8)).shape
        torch.Size([4, 2])
    """

    name = "dvp"
    summary = "prompts of pixels added to the image, the network frozen"
    card = Card("AAAI 2023", "prompts", "nothing", "2 forwards, 1 backward", "reconstruction", distributed=True)
    Config = DVPConfig
    datasets: ClassVar = {"digits": {"lr": 0.05, "beta": 0.98, "flip": False}}

    def setup(self, model: nn.Module) -> None:
        """Make the prompts of student and teacher; the start network is the one that predicts."""
        self.networks = student_and_teacher(self.runtime.place(Prompts(self.config.size)))
        prompts = self.networks["student"]
        self.make_optimizer(prompts.parameters(), self.config.optimizer, self.config.lr)
        for name in ("importance", "path", "anchor"):
            self.memory[name] = torch.zeros_like(_agnostic(prompts)).detach()
        self.memory["confidence"] = torch.full_like(self.memory["path"][0, 0], -1)  # none before the first batch

    def predict_and_adapt(self, images: Tensor) -> Tensor:
        """Teacher's prediction, one step of the student's prompts towards it, then the average."""
        config = self.config
        student, teacher = self.networks["student"], self.networks["teacher"]
        with torch.no_grad():
            target = self.logits(self.start, teacher(images)).log_softmax(-1)
        confidence = target.exp().amax(-1).mean().to(self.memory["confidence"])
        known = self._begin_domain(confidence)
        view = self.runtime.place_images(random_view(images, flip=config.flip))
        fit = cross_entropy(target, self.logits(self.start, student(view)).log_softmax(-1)).mean()
        agnostic = _agnostic(student)
        penalty = (known["importance"] * (agnostic - known["anchor"]).square()).sum()
        self.note(fit=fit.detach(), penalty=penalty.detach())
        before = agnostic.detach().clone()
        with _gradient_of(self.optimizer, agnostic) as gradients:
            done = self.minimise(fit + config.homeostasis * penalty)
        of_fit = gradients[0] - 2 * config.homeostasis * known["importance"] * (before - known["anchor"])
        known["path"] = known["path"] - of_fit * (agnostic.detach() - before)
        update_teacher(teacher, student, config.beta, done)
        for name, value in (known | {"confidence": confidence}).items():
            self.memory[name] = torch.where(done, value, self.memory[name])
        return target

    @torch.no_grad()
    def _begin_domain(self, confidence: Tensor) -> dict[str, Tensor]:
        """The importances, the path and the anchor for a batch: new ones if a domain begins with it."""
        last, agnostic = self.memory["confidence"], _agnostic(self.networks["student"])
        begins = (last >= 0) & ((confidence - last).abs() > self.config.shift)
        self.note(new_domain=begins)
        known = {name: self.memory[name] for name in ("importance", "path", "anchor")}
        moved = (agnostic - known["anchor"]).square() + self.config.damping
        fresh = {
            "importance": known["importance"] + known["path"].clamp_min(0) / moved,
            "path": torch.zeros_like(known["path"]),
            "anchor": agnostic.detach(),
        }
        return {name: torch.where(begins, fresh[name], known[name]) for name in known}


def _agnostic(prompts: nn.Module) -> Tensor:
    return prompts.get_parameter("agnostic")


@contextmanager
def _gradient_of(optimizer: torch.optim.Optimizer | None, tensor: Tensor) -> Iterator[list[Tensor]]:
    """Inside the block, collect the gradient of a tensor at the optimiser's steps."""
    assert optimizer is not None
    found: list[Tensor] = []

    def keep(*_: Any) -> None:
        found.append(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone())

    hook = optimizer.register_step_pre_hook(keep)
    try:
        yield found
    finally:
        hook.remove()
