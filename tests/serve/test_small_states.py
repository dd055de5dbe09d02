"""What streams share is in no state: frozen tensors with ``trains="norm"``, and what was prepared on source data."""

from __future__ import annotations

import pytest
import torch

from vcotta import build_adapter, load
from vcotta._util.tensorfile import read_state
from vcotta.models.wide_resnet import digits_network
from vcotta.runs.checkpoints import KIND
from vcotta.serve import Bundle, Preprocess, make_bundle
from vcotta.serve.adapters import Adapters
from vcotta.serve.service import Service
from vcotta.serve.streams import StreamLimits

from .test_merging import send, start, variational


def probed(seed: int = 0) -> Bundle:
    pixels = (torch.rand(2, 40, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 255).to(torch.uint8)
    adapter = build_adapter("tent", digits_network(), guard=True, probe=(pixels, torch.arange(40) % 10))
    names = [str(label) for label in range(10)]
    return make_bundle(adapter, "wrn-10-1", names, Preprocess(32), batch_size=6, guard=True, base=8, stem_stride=2)


def test_small_states_are_a_small_share_of_whole_ones_and_come_back_from_the_disk_and_from_an_export(
    tmp_path, images
) -> None:
    whole, small = variational("all"), variational("norm")
    each = Adapters(small).state_bytes
    assert each < Adapters(whole).state_bytes / 4
    with start(small) as roomy:
        expected = [send(roomy, images, name, range(3)) for name in "ab"]
    with start(small, tmp_path / "state", streams=StreamLimits(memory=each)) as service:
        found = {name: [] for name in "ab"}
        for seed in range(3):
            for name in "ab":
                found[name] += send(service, images, name, range(seed, seed + 1))
        assert service.streams.evictions > 3
        for name, answers in zip("ab", expected, strict=True):
            assert all(map(torch.equal, found[name], answers))
        service.export("a", tmp_path / "a.safetensors").result(60)
        kept = load(tmp_path / "a.safetensors")
        assert torch.equal(kept(images(6, 9)).double().exp(), send(service, images, "a", range(9, 10))[0])


def test_streams_hold_the_probe_once_and_no_checkpoint_has_it(tmp_path, images) -> None:
    bundle = probed()
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        for name in "ab":
            service.predict(images(6, size=(32, 32)), stream=name).result(60)
        places = {
            stream.engine.adapter.prepared["probe_images"].data_ptr()
            for stream in (service.find("a"), service.find("b"), service.streams.default)
        }
        assert len(places) == 1
        assert service.find("a").engine.nbytes < bundle.prepared["probe_images"].nbytes
        service.export("a", tmp_path / "a.safetensors").result(60)
        expected = send_large(service, images)
    (path,) = (tmp_path / "state" / "streams" / "b" / "checkpoints").iterdir()
    assert read_state(path, KIND)["adapter"]["prepared"] == {}
    assert load(tmp_path / "a.safetensors").prepared.keys() == bundle.prepared.keys()
    adapter = load(tmp_path / "a.safetensors")
    assert torch.equal(adapter(images(6, 3, size=(32, 32))).double().exp(), expected)
    with Service(bundle, state=tmp_path / "state", wait=0.0) as service:
        service.predict(images(6, size=(32, 32)), adapt=False, stream="b").result(60)
        prepared = service.find("b").engine.adapter.prepared["probe_images"]
        assert prepared.data_ptr() == service.streams.default.engine.adapter.prepared["probe_images"].data_ptr()


def send_large(service: Service, images) -> torch.Tensor:
    return service.predict(images(6, 3, size=(32, 32)), stream="a").result(60).answer.probabilities


def test_a_state_without_its_probe_is_refused_by_adapters_with_another_and_one_with_it_is_read() -> None:
    ours, other = Adapters(probed()), Adapters(probed(1))
    state = ours.build().state_dict()
    with pytest.raises(ValueError, match="Use the bundle it was made with"):
        other.build().load_state_dict(state)
    whole = state | {"prepared": ours.build().prepared}
    del whole["prepared_sha256"]  # as checkpoints had it before
    adapter = ours.build()
    place = adapter.prepared["probe_images"].data_ptr()
    adapter.load_state_dict(whole)
    assert adapter.prepared["probe_images"].data_ptr() == place
    adapter = other.build()
    adapter.load_state_dict(whole)
    assert torch.equal(adapter.prepared["probe_images"], whole["prepared"]["probe_images"])
    assert "prepared_sha256" not in adapter.state_dict()
