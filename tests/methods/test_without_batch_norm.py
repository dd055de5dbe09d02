"""Every method on networks without BatchNorm."""

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import vcotta
from vcotta import WarmUpConfig, build_adapter, list_methods, sampling, to_point, to_variational
from vcotta.bayes import variational_parameters
from vcotta.methods import find_method
from vcotta.models import build_network

from .networks import WITHOUT_BATCH_NORM, SwinBlock, maker
from .promises import PROMISES
from .subject import Subject, same, snapshot

CASES = [
    (name, network)
    for name in list_methods()
    for network in WITHOUT_BATCH_NORM
    if network == "vit"
    or (
        not find_method(name).needs_tokens
        and (network not in ("convnext", "encoder") or name in ("tent", "cotta", "vcotta"))
    )
]


@pytest.mark.parametrize(("name", "network"), CASES)
@pytest.mark.filterwarnings("ignore:.* has no BatchNorm layer")
def test_a_method_works_without_batch_norm(name, network, images) -> None:
    subject = Subject(name, replace(PROMISES[name], network=None), maker(network), images)
    adapter, batches = subject.build(seed=3, **subject.lr(0.01)), subject.stream(3)
    before = snapshot(adapter)
    first = adapter(batches[0])
    assert first.shape == (6, 4)
    assert torch.allclose(first.exp().sum(-1), torch.ones(6), atol=1e-5)
    assert not adapter.last["skipped"]
    middle = adapter.state_dict()
    rest = [adapter(batch) for batch in batches[1:]]
    after = snapshot(adapter)
    changed = {key for key in after if key in before and not torch.equal(after[key], before[key])}
    assert any(not key.startswith("memory.") for key in changed) == subject.trains
    resumed = subject.build(subject.tiny(), seed=8, **subject.lr(0.01))
    resumed.load_state_dict(middle)
    assert all(torch.equal(resumed(batch), known) for batch, known in zip(batches[1:], rest, strict=True))
    assert same(snapshot(resumed), after)
    adapter.reset()
    assert same(snapshot(adapter), before)
    assert torch.equal(adapter(batches[0]), first)


@pytest.mark.parametrize("name", list_methods())
def test_only_methods_that_need_batch_norm_say_what_they_cannot_do_without_it(name, images) -> None:
    limited = find_method(name).card.without_batch_norm
    assert bool(limited) == (name in ("bn", "rotta"))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        Subject(name, replace(PROMISES[name], network=None), maker("vit"), images).build()
    assert [str(one.message) for one in warned] == (
        [f"ViT has no BatchNorm layer: {name} {limited}"] if limited else []
    )


@pytest.mark.parametrize("name", ["tent", "eata", "rdumb", "sar", "deyo", "roid", "cmf"])
@pytest.mark.parametrize("network", ["vit", "swin", "group norm"])
def test_methods_of_normalisation_layers_train_scale_and_shift_of_layer_norm_and_group_norm(name, network) -> None:
    adapter = build_adapter(name, maker(network)())
    model, trained = adapter.networks["model"], adapter.optimizer.param_groups[0]["params"]
    names = {key for key, parameter in model.named_parameters() if any(parameter is one for one in trained)}
    norms = [
        key for key, module in model.named_modules() if isinstance(module, torch.nn.LayerNorm | torch.nn.GroupNorm)
    ]
    expected = {f"{key}.{part}" for key in norms for part in ("weight", "bias")}
    if name in ("sar", "deyo"):  # as their official codes, without the last norm of a transformer
        expected -= {"norm.weight", "norm.bias"}
    assert names == expected


def test_vcotta_trains_gaussians_class_token_positions_and_normalisation_of_a_transformer(images) -> None:
    adapter = build_adapter("vcotta", to_variational(maker("vit")()), views=2, sampling="local")
    before = snapshot(adapter)
    for seed in range(2):
        adapter(images(seed=seed))
    still = {key for key, value in snapshot(adapter).items() if key in before and torch.equal(value, before[key])}
    assert not {key for key in still if key.startswith("student.")}
    assert {"cls_token", "pos_embed", "blocks.0.attn.qkv.weight_rho", "norm.bias"} <= dict(
        adapter.networks["student"].named_parameters()
    ).keys()


@pytest.mark.parametrize("method", ["tent", "vcotta"])
def test_without_batch_norm_no_statistics_are_inferred_and_the_label_prior_works(method, images) -> None:
    net = maker("vit")()
    net = to_variational(net) if method == "vcotta" else net
    options = {"views": 1, "inference": "x0"} if method == "vcotta" else {}

    def answers(**settings):
        adapter = build_adapter(method, net, lr=0.0, **options, **settings)
        repeated = images(8)[:1].repeat(8, 1, 1, 1)
        log_probs = [adapter(repeated) for _ in range(20)][-1]
        assert "batch_share" not in adapter.last
        return log_probs, adapter.last["forwards"]

    plain, inferred = (answers(statistics=statistics, label_prior=False) for statistics in ("batch", "inferred"))
    prior = answers(statistics="batch", label_prior=True)
    assert torch.equal(plain[0], inferred[0]) == (method == "tent")  # VCoTTA infers a bias for classes
    assert torch.equal(plain[0].argmax(1), inferred[0].argmax(1))
    assert plain[1] == inferred[1] == prior[1]
    favourite = plain[0].argmax(1)
    assert torch.equal(prior[0].argmax(1), favourite)
    assert (prior[0].max(1).values > plain[0].max(1).values).all()  # one class at a time, so the next is likely it


def biased(name, images, towards: float):
    """A variational network whose answers differ between images, and that adds to class 0 on all of them."""
    net, seen = maker(name)(), images(64, seed=9)
    head = [module for module in net.modules() if isinstance(module, torch.nn.Linear)][-1]
    with torch.no_grad():
        head.weight *= 2 / net(seen).std(0).mean()
        head.bias -= net(seen).mean(0)
        head.bias[0] += towards
    return to_variational(net)


@pytest.mark.parametrize("network", ["vit", "swin", "group norm"])
def test_vcotta_takes_the_preference_for_a_class_out_of_networks_without_batch_norm(network, images) -> None:
    net = biased(network, images, 2.0)
    shares = {}
    for statistics in ("batch", "inferred"):
        adapter = build_adapter("vcotta", net, lr=0.0, views=0, statistics=statistics, label_prior=False)
        shares[statistics] = torch.cat([adapter(images(32, seed)) for seed in range(4)])[64:].exp().mean(0)[0]
    assert shares["batch"] > 0.4
    assert shares["inferred"] < 0.32


def test_prediction_without_a_step_has_the_bias_taken_out_too_and_files_keep_it(images, tmp_path) -> None:
    adapter = build_adapter("vcotta", biased("vit", images, 2.0), lr=0.0, views=0, label_prior=False)
    adapter(images(32))
    before = {name: tensor.clone() for name, tensor in adapter.memory.items()}
    predicted = adapter.predict(images(32, seed=1), samples=2).probabilities
    assert {"bias_0", "bias_1"} <= before.keys()
    assert all(torch.equal(adapter.memory[name], tensor) for name, tensor in before.items())
    vcotta.save(adapter, tmp_path / "adapter.safetensors")
    assert torch.allclose(adapter(images(32, seed=1)).exp(), predicted, atol=1e-6)
    loaded = vcotta.load(tmp_path / "adapter.safetensors", biased("vit", images, 2.0))
    assert torch.allclose(loaded(images(32, seed=1)).exp(), predicted, atol=1e-6)


def test_networks_with_batch_norm_keep_predictions_and_steps(images, tiny) -> None:
    adapter = build_adapter("vcotta", to_variational(tiny()), views=1)
    adapter(images())
    assert not adapter.memory
    net = adapter.start
    scales = dict(zip(map(id, trained := list(net.parameters())), adapter._step_scales(net, trained), strict=True))
    for _, mean, rho in variational_parameters(net):
        assert scales[id(mean)] == max(mean.square().mean().sqrt().item(), 1e-3)
        assert scales[id(rho)] == 1


def test_without_batch_norm_weights_that_sum_over_many_inputs_take_shorter_steps(images) -> None:
    adapter = build_adapter("vcotta", to_variational(maker("vit")()), views=0, lr=0.01, kl_weight=0.0, full_batch=None)
    before = {name: p.detach().clone() for name, p in adapter.networks["student"].named_parameters()}
    adapter(images())
    inputs = {"blocks.0.mlp.fc2.weight": 16, "head.weight": 8, "patch_embed.proj.weight": 3 * 4 * 4, "norm.weight": 1}
    inputs |= {"pos_embed": 1, "cls_token": 1}
    for name, parameter in adapter.networks["student"].named_parameters():
        if name in inputs:
            moved = (parameter - before[name]).abs().max().item()
            size = before[name].square().mean().sqrt().item()
            assert moved == pytest.approx(0.01 * size / inputs[name] ** 0.5, rel=0.02), name


def test_shifted_windows_see_only_neighbours() -> None:
    block = SwinBlock(8, 2, 1)
    x = torch.rand(1, 4, 4, 8, requires_grad=True)
    for place, seen in {(1, 1): {(1, 1), (1, 2), (2, 1), (2, 2)}, (0, 0): {(0, 0)}, (0, 1): {(0, 1), (0, 2)}}.items():
        (gradient,) = torch.autograd.grad(block(x)[0][place].sum(), x)
        assert {tuple(at.tolist()) for at in (gradient[0].abs().sum(-1) > 1e-9).nonzero()} == seen


@pytest.mark.parametrize("name", ["vit", "swin", "convnext"])
def test_networks_in_the_shape_of_timms_load_by_name_become_variational_and_adapt(name, images, monkeypatch) -> None:
    # A stand-in for the package; the real one is not tried.
    fake = SimpleNamespace(
        is_model=lambda _: True, create_model=lambda _, pretrained, num_classes: maker(name)(classes=num_classes)
    )
    monkeypatch.setitem(sys.modules, "timm", fake)
    net = build_network(f"timm:{name}_tiny", classes=4)
    variational = to_variational(net)
    assert torch.equal(variational(images()), net(images()))
    assert torch.equal(to_point(variational)(images()), net(images()))
    gaussian = {key.rpartition(".")[0] for key, _, _ in variational_parameters(variational)}
    layers = {key for key, module in net.named_modules() if isinstance(module, torch.nn.Linear | torch.nn.Conv2d)}
    assert gaussian == layers
    with torch.no_grad(), sampling(variational):
        assert not torch.allclose(variational(images()), variational(images()))
    adapter = build_adapter(
        "vcotta", net, source=[(images(8), torch.arange(8) % 4)], warmup=WarmUpConfig(epochs=1), views=1
    )
    assert adapter(images()).isfinite().all()
