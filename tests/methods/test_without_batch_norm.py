"""Every method on networks without BatchNorm."""

import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

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
def test_without_batch_norm_nothing_is_inferred_but_the_label_prior(method, images) -> None:
    net = maker("vit")()
    net = to_variational(net) if method == "vcotta" else net
    options = {"views": 1, "inference": "x0"} if method == "vcotta" else {}

    def answers(**settings):
        adapter = build_adapter(method, net, lr=0.0, **options, **settings)
        repeated = images(8)[:1].repeat(8, 1, 1, 1)
        log_probs = [adapter(repeated) for _ in range(20)][-1]
        assert "batch_share" not in adapter.last
        return log_probs, adapter.last["forwards"]

    plain, inferred, prior = (
        answers(statistics=statistics, label_prior=known)
        for statistics, known in (("batch", False), ("inferred", False), ("inferred", True))
    )
    assert torch.equal(plain[0], inferred[0])
    assert plain[1] == inferred[1] == prior[1]
    favourite = plain[0].argmax(1)
    assert torch.equal(prior[0].argmax(1), favourite)
    assert (prior[0].max(1).values > plain[0].max(1).values).all()  # one class at a time, so the next is likely it


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
