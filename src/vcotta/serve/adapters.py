"""Builds the adapters of a bundle, one for each stream, with one frozen source network and probe for all of them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vcotta.methods import Adapter, build_adapter, configure, find_method
from vcotta.methods.state import state_bytes
from vcotta.nn.batch_norm import batch_norms
from vcotta.nn.runtime import Runtime
from vcotta.serve.bundle import Bundle

__all__ = ["Adapters"]


class Adapters:
    """Builds adapters that start as the bundle says; all must run in one thread, as they share the source network.

    Args:
        bundle: The bundle to serve.
        runtime: Device and precision.
        trusted: As for `Bundle.build_network`.
        pool: Batch size to compile for; None for the bundle's.

    Attributes:
        bundle: The bundle without its tensors.
        source: Predicts as the source network does, and never changes.
        normalised: Predicts as the source network normalised by the batch, and never changes; None without BatchNorm.
        source_bytes: Bytes of the source network.
        state_bytes: Bytes of an adapter's state after one step, without the source network.

    Raises:
        ValueError: The network cannot be built, or has another number of outputs than there are class names.
    """

    def __init__(
        self, bundle: Bundle, runtime: Runtime | None = None, trusted: str | None = None, pool: int | None = None
    ) -> None:
        self.bundle = replace(bundle, weights={}, prepared={})
        self._runtime = runtime or Runtime()
        self._batch = (bundle.batch_size if pool is None else pool, *bundle.preprocess.shape)
        self.source: Adapter = build_adapter("source", bundle.build_network(trusted), runtime=self._runtime)
        self._prepared: dict[str, Tensor] = self.source.placed(bundle.prepared)
        self.normalised: Adapter | None = None
        if any(norm.running_mean is not None for norm in batch_norms(self.source.start)):
            self.normalised = find_method("bn")(self.source.start, runtime=self._runtime, share_start=True)
        self.source_bytes: int = sum(tensor.nbytes for tensor in self.source.start.state_dict().values())
        tried = self.build()
        outputs = tried(torch.zeros(1, *bundle.preprocess.shape)).shape[1]
        if outputs != len(bundle.class_names):
            raise ValueError(f"Expected a network with {len(bundle.class_names)} outputs, but it has {outputs}.")
        self.state_bytes = state_bytes(tried)

    def build(self) -> Adapter:
        """Build an adapter at its start."""
        bundle = self.bundle
        adapter: Adapter = find_method(bundle.method)(
            self.source.start,
            configure(bundle.method, **bundle.settings),
            seed=bundle.seed,
            runtime=self._runtime,
            guard=bundle.build_guard(),
            share_start=True,
        )
        adapter.compile_for(self._batch)
        if self._prepared:
            adapter.adopt(self._prepared, share=True)
        return adapter
