from __future__ import annotations

from torch import nn

from vcotta.methods.parts.layers import train_early_normalisation


class Transformer(nn.Module):
    """The names of a vision transformer, no more."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"norm1": nn.LayerNorm(2)}) for _ in range(12)])
        self.norm = nn.LayerNorm(2)


def test_late_blocks_and_the_last_norm_of_a_transformer_are_left_alone() -> None:
    for net in (Transformer(), nn.Sequential(Transformer())):
        assert len(train_early_normalisation(net, "SAR")) == 2 * 9
        trained = {name.removeprefix("0.").rpartition(".")[0] for name, p in net.named_parameters() if p.requires_grad}
        assert trained == {f"blocks.{k}.norm1" for k in range(9)}


def test_other_networks_are_trained_throughout(tiny) -> None:
    assert len(train_early_normalisation(tiny(), "SAR")) == 4
    assert len(train_early_normalisation(tiny("group"), "SAR")) == 4
