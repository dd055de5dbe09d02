"""Which classes a batch holds: its diversity, and adapters that take it into account."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from vcotta.bayes import to_variational
from vcotta.methods import Guard, build_adapter, configure, find_method
from vcotta.methods.class_mix import recorded_settings
from vcotta.methods.guard import DiversityWarning
from vcotta.nn.runtime import Runtime


def one_hot(labels: torch.Tensor, classes: int, sure: float = 0.98) -> torch.Tensor:
    rest = (1 - sure) / (classes - 1)
    return (torch.nn.functional.one_hot(labels, classes) * (sure - rest) + rest).log()


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(6, 4)).eval()
    net[-1].weight.data.mul_(30)  # sure of its few classes
    return net


@pytest.mark.parametrize("method", ["bn", "tent", "vcotta"])
def test_a_first_image_alone_is_answered_nearly_as_by_the_source(method) -> None:
    model = network()
    start = to_variational(model) if method == "vcotta" else model
    options = {"views": 0} if method == "vcotta" else {}
    adapter = build_adapter(method, start, statistics="inferred", guard=False, **options)
    image = torch.rand(1, 3, 8, 8)
    assert torch.allclose(adapter(image).exp(), model(image).softmax(-1), atol=0.2)
    assert 0 <= adapter.last["batch_share"] < 1 / 9


def test_one_image_at_a_time_comes_to_be_normalised_by_all_of_them() -> None:
    net, images, labels = colours(320)
    adapter, foggy = build_adapter("bn", net, statistics="inferred"), 0.3 * images + 0.6
    shares, answers = [], []
    for image in foggy.split(1):
        answers.append(adapter(image).argmax(1))
        shares.append(adapter.last["batch_share"])
    assert shares[0] < 0.2
    assert shares[-1] > 0.75
    assert (torch.cat(answers)[-100:] == labels[-100:]).all()


@pytest.mark.parametrize("method", ["bn", "vcotta"])
def test_a_resumed_stream_with_both_inferences_equals_an_uninterrupted_one(method) -> None:
    start = to_variational(network()) if method == "vcotta" else network()
    options = {"statistics": "inferred", "label_prior": True} | ({"views": 2} if method == "vcotta" else {})
    whole, batches = build_adapter(method, start, **options), [torch.rand(12, 3, 8, 8) for _ in range(6)]
    for images in batches[:3]:
        whole(images)
    resumed = build_adapter(method, start, **options)
    resumed.load_state_dict(whole.state_dict())
    for images in batches[3:]:
        assert torch.equal(whole.predict(images).probabilities, resumed.predict(images).probabilities)
        assert torch.equal(whole(images), resumed(images))
        assert whole.last == resumed.last


def test_a_resumed_stream_looks_for_clumps_when_an_uninterrupted_one_does() -> None:
    whole, seen = build_adapter("bn", network()), []
    for step in range(40):
        whole(torch.zeros(12, 3, 8, 8))
        if step == 10:
            resumed = build_adapter("bn", network())
            resumed.load_state_dict(whole.state_dict())
        if step > 10:
            resumed(torch.zeros(12, 3, 8, 8))
            assert whole.last == resumed.last
            seen.append("class_diversity" in whole.last)
    assert any(seen)


@pytest.mark.parametrize("method", ["adacontrast", "cotta", "eata", "roid", "sar", "tent", "vcotta"])
def test_predictions_use_the_statistics_that_were_inferred(method) -> None:
    images, kind = torch.rand(24, 3, 8, 8), find_method(method)
    model = to_variational(network()) if kind.needs_variational else network()
    source = [(torch.rand(16, 3, 8, 8), torch.arange(16) % 4)] if kind.needs_source else None
    inferred, batch = (
        build_adapter(method, model, source=source, statistics=name, label_prior=False, guard=False, lr=0.0)
        for name in ("inferred", "batch")
    )
    assert (inferred(images) - batch(images)).abs().max() > 1e-2
    assert 0 < inferred.last["batch_share"] < 1
    assert 0 < inferred.last["random_order"] < 1


@pytest.mark.parametrize("method", ["bn", "vcotta"])
def test_a_network_without_batch_norm_has_nothing_to_infer(method) -> None:
    layers = [nn.Conv2d(3, 6, 3), nn.GroupNorm(2, 6), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)]
    net = nn.Sequential(*layers).double()
    model = to_variational(net) if method == "vcotta" else net
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # bn has nothing to do
        options = {"views": 1} if method == "vcotta" else {}
        adapter = build_adapter(
            method, model.float(), statistics="inferred", runtime=Runtime(precision="fp64"), **options
        )
    for _ in range(3):
        assert adapter(torch.rand(8, 3, 8, 8)).isfinite().all()
    assert "batch_share" not in adapter.last


def test_replayed_images_are_normalised_by_their_own_statistics() -> None:
    adapter, seen = build_adapter("tent", network(), statistics="inferred", lr=0.0), []
    other = torch.rand(16, 3, 8, 8)
    step = adapter.predict_and_adapt

    def with_replay(images: torch.Tensor) -> torch.Tensor:
        net = adapter.networks["model"]
        seen.extend(adapter.logits(net, other, replayed=replayed) for replayed in (True, False))
        return step(images)

    adapter.predict_and_adapt = with_replay
    adapter(0.2 * torch.rand(24, 3, 8, 8))
    plain = build_adapter("bn", network())
    assert torch.allclose(seen[0].log_softmax(-1), plain(other), atol=1e-5)
    assert not torch.allclose(seen[1], seen[0], atol=1e-2)


class Reversed(nn.Module):
    """A network that runs its layers in another order than it lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.second, self.first = nn.Linear(6, 4), nn.BatchNorm2d(6), nn.BatchNorm2d(6)
        self.conv, self.again = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1)
        self.first.running_mean.fill_(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second(self.again(self.first(self.conv(x)).relu())).relu()
        return self.last(x.mean((2, 3)))


@pytest.mark.parametrize("make", [network, Reversed])
def test_views_are_corrected_alike_one_by_one_and_together_in_whatever_order_layers_run(make, monkeypatch) -> None:
    monkeypatch.setattr(
        "vcotta.nn.runtime._compiled", lambda: lambda net, images: net(images)
    )  # as compiled, but quick
    torch.manual_seed(0)
    start = to_variational(make().eval())
    apart, together = (
        build_adapter("vcotta", start, views=2, guard=False, runtime=Runtime(compile=joined))
        for joined in (False, True)
    )
    for images in torch.rand(3, 12, 3, 8, 8):
        assert torch.allclose(apart(images), together(images), atol=1e-4)


def test_vcottas_target_knows_the_label_prior(monkeypatch) -> None:
    adapter = build_adapter("vcotta", to_variational(network()), views=0, guard=False)
    plain, learned = [], []
    target, update = adapter._target, adapter._update
    monkeypatch.setattr(adapter, "_target", lambda *said: plain.append(target(*said)) or plain[-1])
    monkeypatch.setattr(
        adapter, "_update", lambda images, said, alpha: learned.append(said) or update(images, said, alpha)
    )
    flat = 0.9 * torch.rand(1, 3, 8, 8).expand(20, -1, -1, -1)
    for _ in range(12):
        log_probs = adapter(flat + 0.05 * torch.rand(20, 3, 8, 8))
    gained = learned[-1] - plain[-1]
    assert gained.abs().max() > 0.1
    assert (gained.argmax(1) == log_probs.mean(0).argmax()).all()  # towards the class that the stream shows


def test_the_warning_names_the_line_that_called_the_adapter() -> None:
    net, images, labels = colours(320)
    adapter = build_adapter("bn", net, statistics="inferred")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for part in images[labels == 0].split(20):
            adapter(part)
    (warning,) = (one for one in caught if one.category is DiversityWarning)
    assert warning.filename == __file__


def test_a_label_prior_alone_never_alarms_the_guard() -> None:
    guard = Guard(collapse=None, unsure=None, window=40)
    adapter = build_adapter("tent", network(), lr=0.0, label_prior=True, statistics="inferred", guard=guard)
    flat = 0.9 * torch.rand(1, 3, 8, 8).expand(20, -1, -1, -1)
    actions = []
    for _ in range(30):
        adapter(flat + 0.05 * torch.rand(20, 3, 8, 8))
        actions.append(adapter.last.get("guard"))
    assert actions[-20:] == [{"causes": ["diversity"], "action": "note"}] * 20
    assert {"diversity"} >= {cause for action in actions if action for cause in action["causes"]}


def colours(count: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Images whose brightest channel is their class, and a network that finds it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 4
    images = 0.2 + 0.4 * torch.nn.functional.one_hot(labels, 4).float()[..., None, None].expand(-1, -1, 6, 6)
    images = images + 0.2 * torch.rand(images.shape, generator=generator)
    norm, last = nn.BatchNorm2d(4), nn.Linear(4, 4)
    norm.running_mean, norm.running_var = images.mean((0, 2, 3)), images.var((0, 2, 3))
    last.weight.data, last.bias.data = 5 * torch.eye(4), torch.zeros(4)
    return nn.Sequential(norm, nn.AdaptiveAvgPool2d(1), nn.Flatten(), last).eval(), images, labels


def test_a_sorted_stream_gives_one_warning_and_a_shuffled_one_none() -> None:
    net, images, labels = colours(320)
    for order, expected in ((labels.argsort(stable=True), 1), (torch.arange(320), 0)):
        adapter = build_adapter("bn", net)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answers = torch.cat([adapter(part).argmax(1) for part in images[order].split(16)])
        assert len([one for one in caught if "statistics='inferred'" in str(one.message)]) == expected
        assert ((answers != labels[order]).float().mean() > 0.5) == bool(expected)


def test_inferred_statistics_answer_a_sorted_stream() -> None:
    net, images, labels = colours(320)
    order = labels.argsort(stable=True)
    adapter = build_adapter("bn", net, statistics="inferred", label_prior=True)
    answers = torch.cat([adapter(part).argmax(1) for part in images[order].split(16)])
    assert (answers == labels[order]).all()


def test_single_images_give_no_warning_about_classes() -> None:
    adapter = build_adapter("bn", network())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(40):
            adapter(torch.rand(1, 3, 8, 8))


def test_looking_for_clumps_counts_no_pass_and_is_noted_where_it_happens() -> None:
    adapter = build_adapter("bn", network())
    noted = []
    for _ in range(5):
        adapter(torch.rand(16, 3, 8, 8))
        assert adapter.last["forwards"] == 1
        noted.append("effective_classes" in adapter.last)
    assert noted == [False, False, False, True, False]


def test_few_classes_are_an_event_of_the_guard_from_the_first_batch_on_and_one_warning() -> None:
    net, images, labels = colours(320)
    adapter = build_adapter("bn", net, statistics="inferred", guard=Guard(unsure=None))
    vcotta = build_adapter("vcotta", to_variational(net), statistics="inferred", views=0, guard=Guard(unsure=None))
    for one in (adapter, vcotta):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for part in images[labels.argsort(stable=True)].split(16)[:3]:
                one(part)
                assert one.last["guard"] == {"causes": ["diversity"], "action": "note"}
                assert one.last["effective_classes"] < 2
        assert [warning.category for warning in caught] == [DiversityWarning]
    vcotta(images[:64])
    assert "guard" not in vcotta.last


def test_a_step_that_was_taken_is_noted_as_an_update() -> None:
    adapter = build_adapter("tent", network())
    adapter(torch.rand(16, 3, 8, 8))
    assert adapter.last["updated"] is True
    with torch.no_grad():
        adapter.networks["model"][-1].weight.fill_(torch.nan)
    adapter(torch.rand(16, 3, 8, 8))
    assert adapter.last["updated"] is False


def test_manifests_of_usual_settings_are_those_of_before_these_settings() -> None:
    assert recorded_settings(configure("tent")) == {"lr": 1e-3, "optimizer": "adam"}
    assert recorded_settings(configure("tent", label_prior=True))["label_prior"] is True
    assert recorded_settings(configure("bn"))["statistics"] == "batch"  # BN's own field, which it always had
