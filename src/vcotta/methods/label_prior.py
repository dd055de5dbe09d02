"""The label prior of a stream, inferred from predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["LabelPrior"]

WINDOW = 50
"""Images over which the label prior forgets (by a factor e)."""
HORIZON = 1000
"""Images over which the evidence for a concentration is forgotten (by a factor e)."""
CONCENTRATIONS = (1e3, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
"""From a flat prior to one class at a time."""
FLAT_ODDS = 20.0
"""How much likelier a flat prior is than any other concentration, before the stream begins."""
STEPS = 10


class LabelPrior:
    r"""The label prior of a stream, inferred from predictions, with its own uncertainty.

    The labels of the batch and of the last `WINDOW` images share a prior :math:`\pi`, drawn from a symmetric Dirichlet
    distribution whose concentration a is one of `CONCENTRATIONS`. Given soft counts n of the batch's classes and m of
    the window's, each a has the evidence of a Dirichlet-multinomial distribution,

    .. math:: \log p(n \mid m, a) = \log \frac{\Gamma(\sum_c a + m_c)}{\Gamma(\sum_c a + m_c + n_c)}
        + \sum_c \log \frac{\Gamma(a + m_c + n_c)}{\Gamma(a + m_c)}

    which adds up along the stream, and :math:`\pi` is the mean of :math:`(a + m_c + n_c) / \sum_c (a + m_c + n_c)` over
    a's posterior. Ten steps of EM (Saerens et al., 2002, with this prior) give n, :math:`\pi` and the predictions
    :math:`r_{ic} \propto p_{ic} \pi_c`. In random order the posterior stays at the largest a, and the prior flat. Not
    in the paper. All numbers stay on the device.

    Attributes:
        counts: m, (classes,); None at the start.
        evidence: Log-evidence of the concentrations; None at the start.

    Example:
        >>> prior, unsure = LabelPrior(), torch.tensor([[0.9, 0.1], [0.6, 0.4]]).log()
        >>> for _ in range(40):
        ...     _ = prior(unsure.repeat(10, 1), update=True)
        >>> bool(prior(unsure)[1, 0].exp() > 0.6)
        True
    """

    def __init__(self) -> None:
        self.counts: Tensor | None = None
        self.evidence: Tensor | None = None

    @torch.no_grad()
    def __call__(self, log_probs: Tensor, *, update: bool = False) -> Tensor:
        """Return the log-probabilities of a batch, (n, classes), with the prior taken into account.

        Args:
            log_probs: What the network predicts, for which all classes are equally likely.
            update: Whether the batch is part of the stream from now on; one with an answer of NaN never is.
        """
        count, classes = log_probs.shape
        first = log_probs.new_tensor([math.log(FLAT_ODDS)] + [0.0] * (len(CONCENTRATIONS) - 1))
        concentration = log_probs.new_tensor(CONCENTRATIONS).unsqueeze(1)
        counts = log_probs.new_zeros(classes) if self.counts is None else self.counts
        evidence = first if self.evidence is None else self.evidence
        past = counts * math.exp(-count / WINDOW)
        before = concentration + past
        total = before.sum(1) + count
        known = torch.lgamma(total - count) - torch.lgamma(total) - torch.lgamma(before).sum(1)
        clean = log_probs.nan_to_num(0.0)  # an answer of NaN counts as unsure
        found = clean.softmax(-1).sum(0)
        for _ in range(STEPS):
            after = before + found
            gained = known + torch.lgamma(after).sum(1)
            prior = ((evidence + gained).softmax(0) / total) @ after
            found = (clean + prior.log()).softmax(-1).sum(0)
        posterior = (log_probs + prior.log()).log_softmax(-1)
        if update:
            sound = log_probs.isfinite().all()
            learned = first + (evidence - first) * math.exp(-count / HORIZON) + gained - gained.max()
            self.counts = torch.where(sound, past + found, counts)
            self.evidence = torch.where(sound, learned, evidence)
        return posterior

    def concentration(self) -> Tensor:
        """Return the geometric mean of the concentration's posterior; large means flat."""
        if self.evidence is None:
            return torch.tensor(CONCENTRATIONS[0])
        return (self.evidence.softmax(0) * self.evidence.new_tensor(CONCENTRATIONS).log()).sum().exp()

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a resumed stream needs."""
        if self.counts is None or self.evidence is None:
            return {}
        return {"counts": self.counts.clone(), "evidence": self.evidence.clone()}

    def load_state_dict(self, state: dict[str, Tensor], device: torch.device | str) -> None:
        """Continue from a `state_dict`."""
        found = (state.get(name) for name in ("counts", "evidence"))
        self.counts, self.evidence = (None if one is None else one.to(device, copy=True) for one in found)
