"""Passes that several processes share: statistics, noise and gradients are those of the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vcotta.nn.batch_norm import keep_views_apart, use_batch_statistics
from vcotta.nn.distributed import World, join_world
from vcotta.nn.sharing import Sharing, current, use_sharing

from ..distributed import free_port, together


class Normalise(nn.BatchNorm2d):
    """A kind of BatchNorm that is not torch's own but ends in its function, as timm's does."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(F.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps))


def _pass(world: World | None) -> dict[str, Tensor]:
    """A pass through normalisation of several kinds, and its gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(Normalise(3), nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.BatchNorm1d(72)).double()
    x, target = torch.rand(5, 3, 8, 8).double(), torch.rand(5, 72).double()
    net.train()
    with (world or World()).active():
        loss = (current().split(net, x) - target).square().mean() + net[
            1
        ].weight.square().sum()  # a term without images
        gradients = current().average(torch.autograd.grad(loss, list(net.parameters())))
    found = {f"gradient {name}": g for (name, _), g in zip(net.named_parameters(), gradients, strict=True)}
    return found | {"loss": loss.detach()} | dict(net.named_buffers())


def test_batch_norm_of_any_kind_uses_and_learns_from_the_whole_batch(tmp_path) -> None:
    alone = _pass(None)
    for found in together(_pass, tmp_path):
        torch.testing.assert_close(found, alone, rtol=1e-10, atol=1e-12)


def _moments(world: World) -> list[Tensor]:
    """Noise and statistics of two views of five images, as a pass sees them."""
    views = torch.arange(20.0).double().view(10, 2)
    seen: list[Tensor] = []

    def look(rows: Tensor) -> Tensor:
        seen.extend(current().var_mean(rows.unflatten(0, (2, -1)), [1]))
        return rows + current().noise_like(rows)

    torch.manual_seed(3)
    with world.active():
        return [current().split(look, views, views=2), *seen]


def test_noise_of_an_image_and_statistics_of_a_view_are_the_same_in_any_process(tmp_path) -> None:
    alone = _moments(World())
    for found in together(_moments, tmp_path):
        torch.testing.assert_close(found, alone)


def _noise(world: World) -> list[Tensor]:
    def look(rows: Tensor) -> Tensor:
        tokens = current().noise_like(rows.repeat_interleave(3, 0))  # three rows an image, as patches
        return rows + current().noise_like(rows) + tokens.unflatten(0, (-1, 3)).sum(1)

    torch.manual_seed(3)
    with world.active():
        return [current().split(look, torch.zeros(5, 2, 4, 4).to(memory_format=form)) for form in FORMATS]


FORMATS = (torch.contiguous_format, torch.channels_last)


def test_noise_is_drawn_in_the_memory_order_of_one_process(tmp_path) -> None:
    for found in together(_noise, tmp_path):
        torch.testing.assert_close(found, _noise(World()), rtol=0, atol=0)


def test_the_hook_in_force_belongs_to_the_thread_that_set_it() -> None:
    ours, seen = Sharing(), []
    with use_sharing(ours):
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join()
        assert current() is ours
    assert seen[0] is current()
    assert seen[0] is not ours


def test_layers_that_ask_the_hook_compile_without_a_graph_break() -> None:
    net, views = nn.Sequential(nn.BatchNorm2d(2)), torch.rand(6, 2, 4, 4)
    keep_views_apart(net)
    use_batch_statistics(net, True, views=3)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.equal(compiled(views), net(views))


def test_a_process_that_torchrun_did_not_start_is_refused_with_the_command_to_use(monkeypatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="torchrun --nproc-per-node 2 -m vcotta run"), join_world():
        pass


GROUP_OF_ONE = """
import os
from pathlib import Path

import torch
from vcotta.nn.distributed import join_world

with join_world() as world:
    world.exchange("here")
    torch.optim.Adam([torch.zeros(1, requires_grad=True)]).step()  # the first optimiser imports much of torch
print([task.read_text().strip() for task in Path("/proc/self/task").glob("*/comm")])
"""


def test_no_thread_of_the_group_outlives_it_to_abort_the_process_at_its_end() -> None:
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    ended = subprocess.run(
        [sys.executable, "-c", GROUP_OF_ONE], env=os.environ | place, capture_output=True, text=True, check=True
    )
    assert "gloo" not in ended.stdout
