from __future__ import annotations

import torch

from vcotta.nn.optim import load_optimizer


def test_restored_moments_have_the_memory_layout_of_their_parameters() -> None:
    weight = torch.ones(2, 3, 2, 2).contiguous(memory_format=torch.channels_last).requires_grad_()
    adam = torch.optim.Adam([weight], fused=True)
    weight.sum().backward()
    adam.step()
    state = adam.state_dict()
    state["state"][0]["exp_avg"] = state["state"][0]["exp_avg"].contiguous()
    load_optimizer(adam, state)
    assert adam.state[weight]["exp_avg"].stride() == weight.stride()
