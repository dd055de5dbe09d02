"""Who may change the state."""

from __future__ import annotations

import hmac
import json

import pytest

from vcotta.serve import auth
from vcotta.serve.auth import ALL, Auth, hash_token, read_tokens
from vcotta.serve.requests import RefusedError

TOKEN = "0123456789abcdef"


def status(rule: Auth, **headers: str) -> int:
    try:
        rule.check(headers)
    except RefusedError as error:
        return error.status
    return 200


def test_only_requests_with_the_token_may_change_the_state() -> None:
    closed = Auth(TOKEN)
    assert status(closed, authorization=f"Bearer {TOKEN}") == 200
    assert status(closed, authorization=f"bearer {TOKEN}") == 200
    for wrong in (
        "",
        TOKEN,
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        "Bearer é",
    ):
        assert status(closed, authorization=wrong) == 401
    assert status(closed) == 401


def test_tokens_are_compared_in_constant_time(monkeypatch) -> None:
    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr(auth.hmac, "compare_digest", lambda a, b: compared.append((len(a), len(b))) or real(a, b))
    assert status(Auth(TOKEN), authorization="Bearer x") == 401
    assert compared == [(32, 32)] * 2


def test_without_a_token_a_page_of_another_origin_changes_nothing() -> None:
    local = Auth(None)
    assert status(local, host="127.0.0.1:8000") == 200
    assert status(local, host="localhost:8000", origin="http://localhost:8000") == 200
    assert status(local, host="localhost:8000", origin="http://evil.example") == 403
    assert status(local, host="localhost:8000", origin="null") == 403
    assert status(local, host="evil.example:8000") == 403  # a name that was made to point here
    assert status(local, host="[") == 403
    assert status(local) == 403


def test_a_token_is_at_least_16_visible_ascii_characters(tmp_path) -> None:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\n")
    assert read_tokens(path) == {ALL: hash_token(TOKEN)}
    for bad in ("short", "two words of some length", "ä" * 20, ""):
        path.write_text(bad)
        with pytest.raises(ValueError, match="at least 16"):
            read_tokens(path)


def test_a_bad_token_among_many_is_named_by_its_stream(tmp_path) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(json.dumps({ALL: TOKEN, "camera-7": "short"}))
    with pytest.raises(ValueError, match=r"without spaces in .*tokens, entry 'camera-7', but its 5 characters"):
        read_tokens(path)


def test_a_token_file_that_others_can_read_gets_a_warning(tmp_path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        read_tokens(path)
