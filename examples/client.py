"""Send images to `vcotta serve` and print its predictions; the standard library is enough.

vcotta bundle --out digits.bundle
head -c 24 /dev/urandom | base64 > token && chmod 600 token
vcotta serve digits.bundle --token-file token &
python examples/client.py http://127.0.0.1:8000 --token-file token picture.png another.jpg

With ``--look`` the model answers without adapting to the images, and no token is needed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import secrets
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any


def form(files: list[Path]) -> tuple[str, bytes]:
    """Return content type and body of a form with image files."""
    edge = secrets.token_hex(16)
    parts = [
        f'--{edge}\r\nContent-Disposition: form-data; name="images"; filename="{number}"\r\n\r\n'.encode()
        + file.read_bytes()
        + b"\r\n"
        for number, file in enumerate(files)
    ]
    return f"multipart/form-data; boundary={edge}", b"".join(parts) + f"--{edge}--\r\n".encode()


def predict(server: str, files: list[Path], token: str | None, look: bool = False, tries: int = 5) -> dict[str, Any]:
    """Return the server's answer; if its queue is full (429), try again in a moment."""
    kind, body = form(files)
    headers = {"Content-Type": kind} | ({"Authorization": f"Bearer {token}"} if token else {})
    address = f"{server.rstrip('/')}/v1/predict?adapt={'false' if look else 'true'}"
    for left in reversed(range(tries)):
        try:
            with urllib.request.urlopen(urllib.request.Request(address, body, headers), timeout=60) as answer:
                found: dict[str, Any] = json.load(answer)
                return found
        except urllib.error.HTTPError as error:
            if error.code != 429 or not left:
                sys.exit(f"{error.code}: {why(error)}")
            time.sleep(float(error.headers.get("Retry-After", 1)))
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            sys.exit(f"Expected a server of vcotta at {server}, but: {reason}. Start one: vcotta serve BUNDLE")
    raise AssertionError


def why(error: urllib.error.HTTPError) -> str:
    """Return the reason that the server gives, or the meaning of the status if it is no server of vcotta."""
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return f"{error.reason}. Expected a server of vcotta at {error.url}, but got another one."


def main() -> None:
    """Ask, and print a line an image."""
    parser = argparse.ArgumentParser(description="Send images to a server of vcotta.")
    parser.add_argument("server", help="Address, such as http://127.0.0.1:8000")
    parser.add_argument("images", nargs="+", type=Path)
    parser.add_argument("--token-file", type=Path)
    parser.add_argument("--look", action="store_true", help="Do not adapt to the images.")
    asked = parser.parse_args()
    try:
        token = asked.token_file.read_text().strip() if asked.token_file else None
        answer = predict(asked.server, asked.images, token, asked.look)
    except OSError as error:  # of a file; `predict` reports the server's errors
        sys.exit(f"Expected a file that can be read, but got {error.filename}: {error.strerror}.")
    for file, found in zip(asked.images, answer["predictions"], strict=True):
        print(f"{file}: {found['name']} ({found['probability']:.1%}, entropy {found['entropy']:.2f})")


if __name__ == "__main__":
    main()
