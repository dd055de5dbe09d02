from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from vcotta.methods.parts.attached import Part, PartShape, attach, find_blocks, measure_parts, stage_sizes, under
from vcotta.models import ResNet, ResNeXt, WideResNet


class Untouched(nn.Module):
    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        return output


class Doubled(nn.Module):
    def forward(self, x: Tensor, output: Tensor) -> Tensor:
        return 2 * output


def test_blocks_of_residual_networks_are_found_by_stage() -> None:
    assert stage_sizes(WideResNet(28, 1)) == [4, 4, 4]
    assert stage_sizes(ResNeXt(29, 2, 4)) == [3, 3, 3]
    assert stage_sizes(ResNet(18, classes=4)) == [2, 2, 2, 2]


def test_a_wrapped_network_has_the_blocks_of_what_it_wraps(tiny) -> None:
    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = tiny()

    assert find_blocks(Wrapper()) == ["body.conv1", "body.conv2"]
    assert stage_sizes(Wrapper()) == [1, 1]


@pytest.mark.parametrize("sizes", [[2, 4], [1, 1, 1, 1, 2], [3]])
def test_parts_with_nothing_to_add_leave_the_outputs_as_they_are(sizes, images) -> None:
    net = WideResNet(16, 1, classes=4).eval()
    expected = net(images())
    parts = attach(net, sizes, [Untouched() for _ in sizes], Part)
    assert torch.equal(net(images()), expected)
    assert [len(part.blocks) for part in parts] == sizes


def test_what_is_attached_takes_the_place_of_the_parts_output(images) -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten())
    expected = net(images())
    attach(net, [1], [Doubled()], Part)
    assert torch.equal(net(images()), 2 * expected)


def test_the_shapes_of_parts_are_measured(images) -> None:
    net = WideResNet(16, 1, classes=4).eval()
    shapes = measure_parts(net, [2, 2, 2], lambda: net(images()))
    assert shapes == [PartShape(16, 16, 1), PartShape(16, 32, 2), PartShape(32, 64, 2)]


def test_blocks_that_do_not_follow_one_another_make_no_part(tiny, images) -> None:
    net = tiny()
    with pytest.raises(ValueError, match="'conv2' does not get the output of 'conv1'"):
        measure_parts(net, [2], lambda: net(images()))


def test_tensors_are_selected_by_prefix() -> None:
    one = torch.zeros(1)
    assert under({"a.b": one, "ab": one}, "a.") == {"b": one}
