"""The fast path gives the plain path's numbers; here in float32 on the CPU, traced but run by torch itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import vcotta
from vcotta import Runtime, WarmUpConfig, build_adapter, to_variational, warm_up
from vcotta.data import batches, load_digits
from vcotta.methods import find_method
from vcotta.models import build_network
from vcotta.models.wide_resnet import digits_network
from vcotta.nn import runtime
from vcotta.nn.runtime import dense_groups
from vcotta.training import trainer as training
from vcotta.training.trainer import TrainConfig, train

from ..methods.promises import network_for


@pytest.fixture
def traced(monkeypatch):
    """Compile by tracing alone: what the compiler sees is tested, its code generator is not waited for."""
    calls = []

    def compiled(net, images):
        calls.append(len(images))
        return function(net, images)

    function = torch.compile(runtime._forward, dynamic=False, backend="eager")
    monkeypatch.setattr(runtime, "_compiled", lambda: compiled)
    yield calls
    torch._dynamo.reset()


def build(name, model, **options):
    return build_adapter(name, to_variational(model) if find_method(name).needs_variational else model, **options)


@pytest.mark.parametrize(
    ("name", "options"), [("vcotta", {}), ("vcotta", {"full_batch": 2}), ("cotta", {"threshold": 1.1})]
)
def test_the_fast_path_agrees_with_the_plain_path(name, options, tiny, images, traced, monkeypatch) -> None:
    monkeypatch.setattr("vcotta.methods.passes._PIXELS_AT_ONCE", 4 * 6 * 64)  # four views of six images at a time
    plain = build(name, tiny(), views=8, lr=1e-3, **options)
    fast = build(name, tiny(), views=8, lr=1e-3, runtime=Runtime(compile=True), **options)
    for seed in range(4):
        expected, found = plain(images(seed=seed)), fast(images(seed=seed))
        assert torch.allclose(found, expected, atol=1e-4)
    assert fast.last["forwards"] == plain.last["forwards"]
    assert set(traced) == ({18} if name == "vcotta" else {24})  # 3 x 3 views for vcotta, 2 x 4 for cotta
    for a, b in zip(fast.networks["teacher"].parameters(), plain.networks["teacher"].parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_short_last_batch_and_a_single_image_take_the_plain_path(tiny, images, traced) -> None:
    plain = build("vcotta", tiny(), views=2)
    fast = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    for n in (6, 5, 1):
        assert torch.allclose(fast(images(n)), plain(images(n)), atol=1e-4)
    assert traced == [18]


@pytest.mark.parametrize("norm", ["group", "none"])
def test_networks_without_batch_statistics_are_fast_too(norm, tiny, images, traced) -> None:
    plain, fast = (
        build("vcotta", tiny(norm), views=2),
        build("vcotta", tiny(norm), views=2, runtime=Runtime(compile=True)),
    )
    assert torch.allclose(fast(images()), plain(images()), atol=1e-4)
    assert traced == [18]


def test_an_adapter_of_the_fast_path_is_saved_and_loaded(images, traced, tmp_path) -> None:
    network = build_network("wrn-10-1", classes=4)
    adapter = build("vcotta", network, views=2, runtime=Runtime(compile=True))
    adapter(images())
    vcotta.save(adapter, tmp_path / "a")
    again = vcotta.load(tmp_path / "a")
    assert torch.equal(again(images(seed=1)), adapter(images(seed=1)))


def test_a_single_image_first_and_a_reset_do_not_spoil_the_fast_path(tiny, images, traced) -> None:
    adapter = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    adapter(images(1))
    assert not traced
    adapter(images(3))
    assert traced == [9]
    adapter.reset()
    adapter(images(6))
    assert traced == [9, 18]
    again = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    again.load_state_dict(adapter.state_dict())
    again(images(3))  # a short batch after a break is still a short batch
    assert len(traced) == 2


def test_predict_compiles_nothing_new(tiny, images, traced) -> None:
    adapter = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    adapter.predict(images(3))
    assert not traced
    adapter(images(6))
    seen = len(traced)
    adapter.predict(images(3))
    assert len(traced) == seen
    adapter.predict(images(6))
    assert len(traced) > seen


def test_a_shape_that_is_fixed_outlives_small_batches_resets_and_states(tiny, images, traced) -> None:
    other = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    other(images(3))
    adapter = build("vcotta", tiny(), views=2, runtime=Runtime(compile=True))
    adapter.compile_for(images(6).shape)
    traced.clear()
    for change in (lambda: None, adapter.reset, lambda: adapter.load_state_dict(other.state_dict())):
        change()
        adapter(images(3))
        assert not traced
        adapter(images(6))
        assert traced == [18]
        traced.clear()


def test_the_default_on_a_cpu_is_the_plain_path() -> None:
    assert Runtime() == Runtime("cpu", "fp32", channels_last=False, compile=False)
    with pytest.raises(ValueError, match="precision"):
        Runtime(precision="fp8")


def test_fp64_computes_in_float64_what_fp32_rounds(tiny, images) -> None:
    rounded, precise = (vcotta.build_adapter("tent", tiny(), runtime=Runtime(precision=p)) for p in ("fp32", "fp64"))
    for seed in range(3):
        ours, theirs = rounded(images(seed=seed)), precise(images(seed=seed))
        assert (ours.dtype, theirs.dtype) == (torch.float32, torch.float64)
        assert 0 < (ours - theirs).abs().max() < 1e-5
    assert {p.dtype for p in precise.networks["model"].parameters()} == {torch.float64}


@pytest.mark.parametrize("name", vcotta.list_methods())
def test_every_method_runs_in_fp64(name, tiny, images) -> None:
    model = network_for(name, tiny)()
    model = vcotta.to_variational(model) if find_method(name).needs_variational else model
    source = [(images(24), torch.arange(24) % 4)]
    adapter = vcotta.build_adapter(name, model, source=source, runtime=Runtime(precision="fp64"))
    for seed in range(2):
        assert adapter(images(seed=seed)).dtype == torch.float64


@pytest.mark.parametrize("augmix", [False, True])
def test_training_with_augmix_is_compiled_but_for_a_short_last_batch_and_keeps_to_the_plain_one(augmix, traced) -> None:
    data = load_digits()[0]
    config = TrainConfig(epochs=2, lr=0.01, shift=2, augmix=augmix)
    plain, fast = (
        train(digits_network(0), batches(data.images[:70], data.labels[:70], 50), config, runtime=how)
        for how in (Runtime(), Runtime(compile=True))
    )
    assert traced == ([150] * 2 if augmix else [])
    for name, expected in plain.state_dict().items():
        assert torch.allclose(fast.state_dict()[name], expected, atol=1e-4), name


def test_compiled_training_computes_groups_densely_and_keeps_to_the_plain_one(traced, monkeypatch) -> None:
    asked = []

    def recorded(net):
        asked.append(net)
        return dense_groups(net)

    monkeypatch.setattr(training, "dense_groups", recorded)
    data = load_digits()[0]
    convolutions = [nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)]
    plain = nn.Sequential(*convolutions, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 10))
    fast = copy.deepcopy(plain)
    for net, compiled in ((plain, False), (fast, True)):
        loader = batches(data.images[:40], data.labels[:40], 20)
        config = TrainConfig(epochs=1, augmix=True)
        train(net, loader, config, runtime=Runtime(precision="fp64", compile=compiled))
    assert asked == [fast]
    assert len(traced) == 2
    assert type(fast[3]) is nn.Conv2d
    for name, expected in plain.state_dict().items():
        torch.testing.assert_close(fast.state_dict()[name], expected, msg=name)


@pytest.mark.parametrize("name", ["tent", "cotta"])
def test_group_norm_on_a_cpu_is_not_kept_channels_last_where_torch_would_crash(name, tiny, images) -> None:
    with pytest.warns(UserWarning, match="`channels_last` is left off"):
        adapter = build_adapter(name, tiny("group"), runtime=Runtime(channels_last=True))
    assert torch.equal(adapter(images()), build_adapter(name, tiny("group"))(images()))
    assert build_adapter(name, tiny(), runtime=Runtime(channels_last=True)).runtime.channels_last


@pytest.mark.filterwarnings("ignore:`channels_last` is left off")
def test_training_and_warm_up_survive_group_norm_as_a_first_layer_too() -> None:
    data, runtime = load_digits()[0], Runtime(channels_last=True)
    loader = batches(data.images[:20], data.labels[:20], 10, shuffle_seed=0)
    net = nn.Sequential(nn.GroupNorm(1, 3), nn.AvgPool2d(8), nn.Flatten(), nn.Linear(48, 10))
    train(net, loader, TrainConfig(epochs=1), runtime=runtime)
    warm_up(net, loader, WarmUpConfig(epochs=1), runtime=runtime, progress=False)


@pytest.mark.parametrize(
    "options",
    [
        {"groups": 2},
        {"groups": 4, "stride": 2, "padding": 1, "bias": False},
        {"groups": 4, "dilation": 2},
    ],
)
def test_outputs_and_gradients_are_those_of_the_groups(options) -> None:
    net = nn.Conv2d(8, 12, 3, **options).double()
    images = torch.rand(3, 8, 9, 9, dtype=torch.float64, requires_grad=True)
    wanted = [images, *net.parameters()]

    def outputs_and_gradients():
        out = net(images)
        return out, torch.autograd.grad((out * out.sin()).sum(), wanted)

    plain, gradients = outputs_and_gradients()
    with dense_groups(net):
        assert type(net) is not nn.Conv2d
        dense, also = outputs_and_gradients()
    torch.testing.assert_close(dense, plain)
    torch.testing.assert_close(also, gradients)


def fails_inside(net, grouped) -> None:
    with dense_groups(net):
        assert type(grouped) is not nn.Conv2d
        assert type(net.conv_1_3x3) is nn.Conv2d
        raise RuntimeError("stop")


def test_layers_and_their_parameters_are_as_before_even_after_an_error() -> None:
    net = build_network("resnext-29-4x32d", 10)
    before, grouped = dict(net.named_parameters()), net.stage_1[0].conv_conv
    with pytest.raises(RuntimeError, match="stop"):
        fails_inside(net, grouped)
    assert type(grouped) is nn.Conv2d
    assert all(before[name] is parameter for name, parameter in net.named_parameters())


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", groups=2),
        type("Own", (nn.Conv2d,), {})(4, 4, 1, groups=2),
    ],
    ids=["no groups", "many groups", "other padding", "a subclass"],
)
def test_other_layers_are_left_alone(layer) -> None:
    kind = type(layer)
    with dense_groups(layer):
        assert type(layer) is kind
