"""With ``trains="norm"`` networks share what does not adapt, and states leave it out."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import vcotta
from vcotta import Guard, Runtime, build_adapter, to_variational
from vcotta._util.tensorfile import read_state
from vcotta.bayes import gaussian_kl, kl_divergence, mixture_kl_bound, variational_parameters
from vcotta.methods import VCoTTA, VCoTTAConfig
from vcotta.methods import state as state_module
from vcotta.methods.class_mix import recorded_settings
from vcotta.methods.parts.layers import normalisation_and_classifier
from vcotta.methods.parts.mean_teacher import update_teacher
from vcotta.methods.probe import pull
from vcotta.runs.checkpoints import KIND, restore, save_checkpoint

LEARNS = {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}
LEARNS |= {f"fc.{name}" for name in ("weight", "bias", "weight_rho", "bias_rho")}


def build(model: nn.Module, **options) -> VCoTTA:
    guard, runtime = options.pop("guard", False), options.pop("runtime", None)
    settings = {"views": 2, "trains": "norm", "full_batch": 2} | options
    return build_adapter("vcotta", to_variational(model), guard=guard, runtime=runtime, **settings)


def stepped(model: nn.Module, images, steps: int = 2, **options) -> VCoTTA:
    adapter = build(model, **options)
    for seed in range(steps):
        adapter(images(seed=seed))
    return adapter


def tensors_of(adapter: VCoTTA) -> dict[int, torch.Tensor]:
    nets = (adapter.start, *adapter.networks.values())
    found = [tensor for net in nets for tensor in net.state_dict(keep_vars=True).values()]
    moments = [t for values in adapter.optimizer.state_dict()["state"].values() for t in values.values()]
    return {tensor.data_ptr(): tensor for tensor in [*found, *moments]}


def size(adapter: VCoTTA) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(adapter).values())


def shares_the_rest(adapter: VCoTTA) -> bool:
    ours = dict(adapter.start.state_dict(keep_vars=True))
    return all(
        (tensor is ours[name]) == (name not in LEARNS)
        for net in adapter.networks.values()
        for name, tensor in net.state_dict(keep_vars=True).items()
    )


def test_only_normalisation_and_classifier_are_trained(tiny, images) -> None:
    adapter = stepped(tiny(), images)
    moved = {
        name
        for name, tensor in adapter.networks["student"].state_dict().items()
        if not torch.equal(tensor, adapter.start.state_dict()[name])
    }
    assert {"norm1.weight", "norm2.bias", "fc.weight"} <= moved <= LEARNS
    trained = {id(p) for group in adapter.optimizer.param_groups for p in group["params"]}
    assert {name for name, p in adapter.networks["student"].named_parameters() if id(p) in trained} == LEARNS


def test_a_last_convolution_is_the_classifier_of_a_network_that_has_no_linear_layer() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.GroupNorm(2, 4), nn.Conv2d(4, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    assert [tuple(p.shape) for p in normalisation_and_classifier(net)] == [(4,), (4,), (5, 4, 1, 1), (5,)]


def test_source_student_and_teacher_hold_the_same_frozen_tensors(tiny, images) -> None:
    adapter = stepped(tiny(), images)
    assert shares_the_rest(adapter)
    everything = stepped(tiny(), images, trains="all")
    learns = sum(t.nbytes for name, t in adapter.start.state_dict().items() if name in LEARNS)
    whole = sum(t.nbytes for t in adapter.start.state_dict().values())
    steps = 4 * len(LEARNS)
    assert size(adapter) == whole + 4 * learns + steps  # student, teacher and two moments
    assert size(everything) > 3 * whole


def test_resets_copies_restarts_and_loaded_states_share_them_too(tiny, images) -> None:
    adapter = stepped(tiny(), images)
    other = copy.deepcopy(adapter)
    assert shares_the_rest(other)
    assert not tensors_of(other).keys() & tensors_of(adapter).keys()
    assert torch.equal(other(images(seed=9)), adapter(images(seed=9)))
    other.load_state_dict(adapter.state_dict())
    assert shares_the_rest(other)
    adapter.restart()
    assert shares_the_rest(adapter)
    adapter.reset()
    assert shares_the_rest(adapter)


def test_a_state_holds_what_adapts_and_a_hash_of_the_source(tiny, images) -> None:
    state = stepped(tiny(), images).state_dict()
    assert all(net.keys() == LEARNS for net in state["networks"].values())
    assert state["networks"].keys() == {"start", "student", "teacher"}
    assert len(state["source"]) == 64
    assert "source" not in stepped(tiny(), images, trains="all").state_dict()


def test_a_state_of_other_frozen_weights_is_refused(tiny, images) -> None:
    model = tiny()
    state = stepped(model, images).state_dict()
    with torch.no_grad():
        model.conv2.weight[0, 0, 0, 0] += 1e-3
    adapter = stepped(model, images)
    before = adapter.state_dict()
    with pytest.raises(ValueError, match=r"source network it was trained from has other weights"):
        adapter.load_state_dict(state)
    after = adapter.state_dict()["networks"]
    assert all(torch.equal(after[role][k], t) for role, net in before["networks"].items() for k, t in net.items())


def test_the_hash_of_a_source_is_computed_once_and_again_when_it_is_loaded(tiny, images, monkeypatch) -> None:
    adapter, other = stepped(tiny(), images), stepped(tiny(seed=5), images)
    first = adapter.state_dict()["source"]
    monkeypatch.setattr(state_module, "weights_sha256", lambda net: "computed again")
    assert adapter.state_dict()["source"] == first
    adapter.load_state_dict(state_module.adapter_state(other, source=True))
    assert adapter.state_dict()["source"] == "computed again"


def test_a_state_in_float64_is_of_the_same_source(tiny, images) -> None:
    state = stepped(tiny(), images).state_dict()
    build(tiny(), runtime=Runtime(precision="fp64")).load_state_dict(state)


def test_a_saved_adapter_has_the_source_or_leaves_it_out(tiny, images, tmp_path) -> None:
    adapter = stepped(tiny(), images)
    vcotta.save(adapter, tmp_path / "whole")
    vcotta.save(adapter, tmp_path / "small", source=False)
    assert (tmp_path / "small").stat().st_size < (tmp_path / "whole").stat().st_size
    whole = vcotta.load(tmp_path / "whole", tiny(seed=5))
    small = vcotta.load(tmp_path / "small", to_variational(tiny()))
    expected = adapter(images(seed=7))
    assert torch.equal(whole(images(seed=7)), expected)
    assert torch.equal(small(images(seed=7)), expected)
    with pytest.raises(ValueError, match=r"leaves its weights out. Give it: vcotta.load\(path, model="):
        vcotta.load(tmp_path / "small")
    with pytest.raises(ValueError, match="another network"):
        vcotta.load(tmp_path / "small", to_variational(tiny(seed=5)))


def test_leaving_the_source_out_changes_nothing_where_all_adapts(tiny, images, tmp_path) -> None:
    adapter = stepped(tiny(), images, trains="all")
    vcotta.save(adapter, tmp_path / "a", source=False)
    assert torch.equal(vcotta.load(tmp_path / "a", tiny(seed=5))(images()), adapter(images()))


def test_a_checkpoint_of_a_run_is_small_and_continues(tiny, images, tmp_path) -> None:
    adapter, resumed = stepped(tiny(), images), build(tiny())
    save_checkpoint(tmp_path, {}, adapter, 2, {})
    (path,) = tmp_path.rglob("*.safetensors")
    assert not any("conv" in name for name in read_state(path, KIND)["adapter"]["networks"]["teacher"])
    assert restore(tmp_path, {}, resumed).batches == 2
    assert torch.equal(resumed(images(seed=7)), adapter(images(seed=7)))


def test_the_guard_pulls_what_adapts_and_leaves_the_rest(tiny, images) -> None:
    adapter = stepped(tiny(), images, guard=Guard())
    frozen = {id(t): t.clone() for t in adapter.frozen()}
    student, start = adapter.networks["student"].fc, adapter.start.fc
    expected = torch.lerp(student.weight, start.weight, 0.25)
    assert pull(adapter, 0.25)
    assert torch.allclose(student.weight, expected)
    assert all(torch.equal(t, frozen[id(t)]) for t in adapter.frozen())


def test_averaging_leaves_shared_standard_deviations_bit_for_bit(tiny) -> None:
    net = to_variational(tiny(), sigma_ratio=0.37)
    twin = copy.deepcopy(net, {id(t): t for t in net.parameters()})
    before = [p.clone() for p in net.parameters()]
    update_teacher(twin, net, 0.9)
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_divergences_pass_over_shared_tensors(tiny) -> None:
    net = to_variational(tiny(), sigma_ratio=0.3).requires_grad_(False)
    shared = {id(t): t for name, t in net.named_parameters() if not name.startswith("fc")}
    student, teacher = copy.deepcopy(net, dict(shared)), copy.deepcopy(net, dict(shared))
    with torch.no_grad():
        student.fc.weight += 0.1
    student.fc.requires_grad_(True)
    terms = [
        gaussian_kl(mean, rho.exp().log1p(), prior, prior_rho.exp().log1p())
        for (_, mean, rho), (_, prior, prior_rho) in zip(
            variational_parameters(student), variational_parameters(net), strict=True
        )
    ]
    assert kl_divergence(student, net).item() == pytest.approx(sum(terms).item(), rel=1e-5)
    bound = mixture_kl_bound(student, net, teacher, 0.3)
    bound.backward()
    assert bound.item() == pytest.approx(sum(terms).item(), rel=1e-5)
    assert student.fc.weight.grad.abs().sum() > 0
    assert kl_divergence(net, copy.deepcopy(net, {id(t): t for t in net.parameters()})).item() == 0.0


def test_drift_is_per_weight_that_adapts(tiny, images) -> None:
    adapter = stepped(tiny(), images, steps=3)
    learned = sum(mean.numel() for name, mean, _ in variational_parameters(adapter.start) if name.startswith("fc"))
    expected = kl_divergence(adapter.networks["student"], adapter.start) / learned
    assert adapter.drift().item() == pytest.approx(expected.item())
    assert adapter.drift().item() > 0


def test_a_classifier_without_a_posterior_adapts_without_a_divergence(images) -> None:
    class Linear(nn.Linear):
        """A subclass, which stays as it is."""

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.Flatten(), Linear(256, 3)).eval()
    net = to_variational(model, unsupported="keep")
    adapter = VCoTTA(net, replace(VCoTTAConfig(), views=1, trains="norm"))
    for seed in range(3):
        adapter(images(seed=seed))
    assert adapter.drift().item() == 0.0
    assert not torch.equal(adapter.networks["student"][3].weight, adapter.start[3].weight)


def test_records_and_states_from_before_the_setting_are_those_of_all(tiny, images) -> None:
    assert "trains" not in recorded_settings(VCoTTAConfig())
    assert recorded_settings(VCoTTAConfig(trains="norm"))["trains"] == "norm"
    state = stepped(tiny(), images, trains="all").state_dict()
    del state["config"]["trains"]
    stepped(tiny(), images, trains="all").load_state_dict(state)
    with pytest.raises(ValueError, match="trains='all', this adapter has trains='norm'"):
        stepped(tiny(), images).load_state_dict(state)
