from __future__ import annotations

from vcotta.experiments.board import Board
from vcotta.files import write_json


def write(folder, text: str, batches: int = 4) -> None:
    folder.mkdir(exist_ok=True)
    write_json(folder / "manifest.json", {"method": "bn", "batches": batches})
    (folder / "records.jsonl").write_text(text)


def test_progress_is_read_from_the_folders_of_the_runs(tmp_path) -> None:
    one, two, told = tmp_path / "one", tmp_path / "two", []
    board = Board([one, two], lambda *line: told.append(line))
    board.look()
    assert told == []
    board.begin()
    assert told.pop() == (0, 0, 0)
    write(one, "{}\n{}\n{")  # a line is counted when it is whole
    board.look()
    assert told.pop() == (2, 8, 0)  # the one that has not begun is guessed to be as long
    write(one, "{}\n{}\n{}\n{}\n")
    (one / "summary.json").touch()
    write(two, "{}\n", batches=10)
    board.look()
    assert told.pop() == (5, 14, 1)
    board.end()
    assert told.pop() == (14, 14, 2)


def test_a_run_that_went_on_from_a_checkpoint_is_counted_anew(tmp_path) -> None:
    told = []
    board = Board([tmp_path], lambda *line: told.append(line))
    for text, done in (("{}\n{}\n{}\n", 3), ("{}\n", 1), ("{}\n{}\n", 2)):
        write(tmp_path, text)
        board.look()
        assert told.pop() == (done, 4, 0)
