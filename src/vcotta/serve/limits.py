"""What a stranger may send, and the error that says no."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Limits", "RefusedError"]

_PILLOWS_OWN = 89_478_485  # Pillow warns of larger images, and refuses twice as large ones, whatever we allow


class RefusedError(Exception):
    """A request that is not served: the HTTP status, and what was expected, what came, what to do.

    Example:
        >>> RefusedError(413, "Expected at most 2 images, but got 3.").status
        413
    """

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@dataclass(frozen=True)
class Limits:
    """Bounds on what one request, and all that wait, may cost.

    Attributes:
        body: Bytes of a request.
        images: Images in a request.
        image_pixels: Pixels of an image file before it is resized, known from its header before it is decoded.
        request_pixels: Pixels of all image files of a request together.
        queue: Images that may wait for the adapter; a request that would make it more is told to come back (429).
        requests: Requests that may be read, decoded or waited for at once; further ones are told so, too (429).
        read_seconds: Seconds a client may take to send a request.
    """

    body: int = 16 * 2**20
    images: int = 256
    image_pixels: int = 25_000_000
    request_pixels: int = 100_000_000
    queue: int = 1024
    requests: int = 64
    read_seconds: float = 30.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"Expected `{field.name}` to be positive, but got {getattr(self, field.name)}.")
        if self.image_pixels > _PILLOWS_OWN:
            raise ValueError(f"Expected `image_pixels` to be at most {_PILLOWS_OWN}, but got {self.image_pixels}.")
        if self.queue < self.images:
            raise ValueError(
                f"Expected `queue` to hold a request of {self.images} images, but got {self.queue}. "
                "Raise `queue` or lower `images`."
            )
