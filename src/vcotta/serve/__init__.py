"""Bundles, and the HTTP server that adapts to its requests; all modules but `bundle` need the extra ``serve``."""

from vcotta.serve.bundle import Bundle, NetworkCard, Preprocess, load_bundle, make_bundle, save_bundle

__all__ = ["Bundle", "NetworkCard", "Preprocess", "load_bundle", "make_bundle", "save_bundle"]
