"""Test streams: which images arrive in which order, corrupted how."""

from vcotta.streams.protocols import PROTOCOLS, build_protocol
from vcotta.streams.stream import Batch, ProtocolStream, Stream, make_stream

__all__ = ["PROTOCOLS", "Batch", "ProtocolStream", "Stream", "build_protocol", "make_stream"]
