"""The label prior of a stream: which classes come next, judged by those before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

__all__ = ["LabelPrior", "Labels"]

WINDOWS = (3.0, 50.0)
"""Distances, in images, over which a neighbour's class counts less (by a factor e)."""
CONCENTRATIONS = (1e3, 10.0, 1.0, 0.1, 0.01)
"""From random order, the first one, to one class at a time."""
FLAT_ODDS = 50.0
"""Odds of random order before the stream begins."""
TEMPER = 0.1
"""Power of the likelihood: the network's mistakes come in clumps, too, as a new domain begins."""
HORIZON = 1000
"""Images over which usual shares and the evidence for a concentration are forgotten (by a factor e)."""
USUAL_IMAGES = 1500
"""Images, beside those of `HORIZON`, that equal shares count as among the usual ones."""
STEPS = 4
"""Steps of EM on a batch."""
PART = 500
"""Most images at once, which bounds the memory needed."""


@dataclass(frozen=True)
class Labels:
    """What was inferred of a batch's labels.

    Attributes:
        log_probs: Log-probabilities of the batch with the prior taken into account, (n, classes).
        correction: What was added to them before they were normalised: the logarithm of the label prior of each image
            in proportion to the usual shares, (n, classes).
        mixed: The probability that the stream's labels come in random order, a scalar on the device.
        state: `LabelPrior.state_dict` with this batch in the stream.
    """

    log_probs: Tensor
    correction: Tensor
    mixed: Tensor
    state: dict[str, Tensor]


class LabelPrior:
    r"""The label prior of a stream, inferred from predictions, with its own uncertainty.

    Each image has a prior of its own, :math:`\pi_i`, drawn from a Dirichlet distribution with the parameters
    :math:`a\, C\, b_c`: C is the number of classes, b the usual shares of the classes among the predictions of the last
    `HORIZON` images, and a the concentration. Neighbours are evidence: with the soft counts
    :math:`m_{ic} = \sum_{j \neq i} e^{-|i-j|/w} r_{jc}` of the images around it,

    .. math:: \pi_{ic} = \frac{a\, C\, b_c + m_{ic}}{a\, C + \sum_c m_{ic}}, \qquad
        r_{ic} \propto p_{ic} \frac{\pi_{ic}}{b_c}

    A few steps of EM (Saerens et al., 2002, with this prior) give :math:`\pi` and the predictions r together. The
    window w and the concentration a are unknown, too: each pair of `WINDOWS` and `CONCENTRATIONS` has the evidence
    :math:`\sum_i \log \sum_c p_{ic} \pi_{ic} / b_c`, where only images before i are neighbours, and :math:`\pi` is the
    mean over their posterior. The evidence is raised to the power `TEMPER`, as a network's mistakes are not
    independent; b includes this batch and is drawn towards equal shares by `USUAL_IMAGES`. What kind of stream it is
    may change: the posterior returns to where it began over `HORIZON` images (Herbster and Warmuth, 1998).

    In random order neighbours tell nothing, the first concentration has the best evidence, and predictions stay as
    they are. Priors are relative to the usual shares, so that a network that prefers some classes, as many do in a new
    domain, is not soon taken for a stream that shows them more often. Not in the paper. All numbers stay on the device.

    Attributes:
        counts: Soft counts of the images before the next one, (windows, classes); None at the start.
        usual: Counts of the predictions of the last `HORIZON` images, (classes,); None at the start.
        belief: Log-probabilities of windows and concentrations, (windows, concentrations); None at the start.

    Example:
        >>> prior, unsure = LabelPrior(), torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> for _ in range(10):
        ...     _ = prior(unsure.repeat(10, 1), update=True)
        >>> bool(prior(unsure)[1, 0].exp() > 0.6)
        True
    """

    def __init__(self) -> None:
        self.counts: Tensor | None = None
        self.usual: Tensor | None = None
        self.belief: Tensor | None = None

    def __call__(self, log_probs: Tensor, *, update: bool = False) -> Tensor:
        """Return the log-probabilities of a batch, (n, classes), with the prior taken into account.

        Args:
            log_probs: What the network predicts, for which all classes are equally likely.
            update: Whether the batch is part of the stream from now on; one with an answer of NaN never is.
        """
        labels = self.infer(log_probs)
        if update:
            self.load_state_dict(labels.state, log_probs.device)
        return labels.log_probs

    @torch.no_grad()
    def infer(self, log_probs: Tensor) -> Labels:
        """Infer the labels of a batch, (n, classes); the prior stays as it is."""
        classes = log_probs.shape[1]
        now = {
            "counts": log_probs.new_zeros(len(WINDOWS), classes) if self.counts is None else self.counts,
            "usual": log_probs.new_zeros(classes) if self.usual is None else self.usual,
            "belief": _constants(log_probs.device, log_probs.dtype)[0] if self.belief is None else self.belief,
        }
        parts = list[Labels]()
        for part in log_probs.split(PART):
            parts.append(_infer(part, **(parts[-1].state if parts else now)))
        broken = log_probs.isnan().any()
        state = {name: torch.where(broken, now[name], new) for name, new in parts[-1].state.items()}
        whole, correction = (torch.cat([getattr(part, name) for part in parts]) for name in ("log_probs", "correction"))
        return Labels(whole, correction, parts[-1].mixed, state)

    def concentration(self) -> Tensor:
        """Return the geometric mean of the concentration's posterior; large means random order."""
        belief = _first_belief() if self.belief is None else self.belief
        return (belief.exp().sum(0) @ belief.new_tensor(CONCENTRATIONS).log()).exp()

    def fits(self, state: dict[str, Tensor]) -> bool:
        """Whether a `state_dict` is of this version."""
        ndims = {name: tensor.ndim for name, tensor in state.items()}
        return ndims in ({}, {"counts": 2, "usual": 1, "belief": 2})

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a resumed stream needs."""
        named = {"counts": self.counts, "usual": self.usual, "belief": self.belief}
        return {name: tensor.clone() for name, tensor in named.items() if tensor is not None}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str) -> None:
        """Continue from a `state_dict`."""
        found = (state.get(name) for name in ("counts", "usual", "belief"))
        self.counts, self.usual, self.belief = (None if one is None else one.to(device, copy=True) for one in found)


def _infer(log_probs: Tensor, counts: Tensor, usual: Tensor, belief: Tensor) -> Labels:
    """The labels of a batch, given the state before it."""
    images, classes = log_probs.shape
    first, window, concentration = _constants(log_probs.device, log_probs.dtype)
    clean = log_probs.nan_to_num(0.0).log_softmax(-1)  # an answer of NaN counts as unsure
    found = clean.exp()
    place = torch.arange(images, dtype=log_probs.dtype, device=log_probs.device)
    near = torch.exp(-(place - place.unsqueeze(1)).abs() / window).triu(1)  # (windows, images, images)
    since = torch.exp(-(place + 1) / window).mT  # from the end of the batch before
    past, faded = since * counts.unsqueeze(1), math.exp(-images / HORIZON) * usual
    seen = faded + found.sum(0)
    base = (seen + USUAL_IMAGES / classes) / (seen.sum() + USUAL_IMAGES)
    flat, whole = classes * concentration * base, classes * concentration

    def prior(counted: Tensor) -> Tensor:
        """(concentrations, windows, images, classes)."""
        return (flat + counted) / (whole + counted.sum(-1, keepdim=True))

    causal = prior(near.mT @ found + past)
    gained = TEMPER * (causal * (found / base)).sum(-1).log().sum(-1).T
    after = (belief + gained).flatten().log_softmax(0).view_as(belief)
    likely = after.exp().T.view(len(CONCENTRATIONS), len(WINDOWS), 1, 1)
    around, usually = near + near.mT, base.log()
    for _ in range(STEPS):
        correction = (likely * prior(around @ found + past)).sum((0, 1)).log() - usually
        found = (clean + correction).softmax(-1)
    latest = torch.exp((place + 1 - images) / window) @ found + since[:, -1:] * counts.unsqueeze(1)
    stays = math.exp(-images / HORIZON)
    belief = (stays * after.exp() + (1 - stays) * first.exp()).log()
    state = {"counts": latest.squeeze(1), "usual": seen, "belief": belief}
    return Labels((log_probs + correction).log_softmax(-1), correction, after[:, 0].exp().sum(), state)


def _first_belief() -> Tensor:
    """The belief before the stream begins: `FLAT_ODDS` for random order, all other pairs alike."""
    odds = torch.ones(len(WINDOWS), len(CONCENTRATIONS))
    odds[:, 0] = FLAT_ODDS * (len(CONCENTRATIONS) - 1)
    return (odds / odds.sum()).log()


@lru_cache(maxsize=16)
def _constants(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The first belief, windows (windows, 1, 1) and concentrations (concentrations, 1, 1, 1), once for each device."""
    windows, concentrations = torch.tensor(WINDOWS).view(-1, 1, 1), torch.tensor(CONCENTRATIONS).view(-1, 1, 1, 1)
    with torch.inference_mode(False):
        return tuple(one.to(device, dtype) for one in (_first_belief(), windows, concentrations))  # type: ignore[return-value]
