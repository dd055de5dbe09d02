"""The memory of a server is measured in its own process, row by row."""

from __future__ import annotations

import json
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]


def test_a_row_is_added_to_those_of_the_file(script, tmp_path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps({"rows": {"before": {"requests": 5}}}))
    script.main(["--row", "after", "--json", str(path), "--network", "wrn-10-1", "--requests", "2"])
    found = json.loads(path.read_text())
    assert found["rows"]["before"] == {"requests": 5}
    row = found["rows"]["after"]
    assert row["requests"] == 2
    assert 0 < row["between_requests_mib"] <= row["peak_of_requests_mib"]
    assert row["peak_of_checkpoint_mib"] > 0
    assert row["cpu_seconds_a_request"] > 0
    assert found["versions"].keys() == {"vcotta", "torch", "python"}
