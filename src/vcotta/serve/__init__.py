"""An adapter behind HTTP: bundles, and the server that runs them (extra ``serve``).

`vcotta.serve.bundle` needs nothing but the package itself; the modules that speak HTTP need FastAPI and uvicorn, and
are imported by the command `vcotta serve` alone.
"""

from vcotta.serve.bundle import Bundle, Preprocess, load_bundle, make_bundle, save_bundle
from vcotta.serve.factory import NetworkFacts

__all__ = ["Bundle", "NetworkFacts", "Preprocess", "load_bundle", "make_bundle", "save_bundle"]
