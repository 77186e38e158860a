"""What processes took from the caches: lines of a file that many append to."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from gradlet.base.settings import scope
from gradlet.runtime import history


def test_lines_come_back_in_order_and_what_is_broken_is_passed_over(tmp_path: Path) -> None:
    with scope(CACHEDIR=str(tmp_path)):
        assert history.lines() == []
        for number in range(3):
            history.append({"number": number})
        with history.path().open("ab") as file:
            file.write(b'{"number": 7\n[1, 2]\n\xff\xfe\n')
        history.append({"number": 9})
        assert [line["number"] for line in history.lines()] == [0, 1, 2, 9]
        history.clear()
        assert history.lines() == []


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_BYTES", 2000)
    with scope(CACHEDIR=str(tmp_path)):
        for number in range(500):
            history.append({"number": number})
            assert history.path().stat().st_size <= 2000
        kept = [line["number"] for line in history.lines()]
        assert kept[-1] == 499 and kept == list(range(kept[0], 500))


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with scope(CACHEDIR=str(tmp_path / "file")):
        history.append({"number": 1})
        assert history.lines() == []


def _append_many(folder: str, who: int) -> None:
    with scope(CACHEDIR=folder):
        for number in range(50):
            history.append({"who": who, "number": number, "text": "x" * 200})


def test_processes_do_not_mix_their_lines(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_append_many, args=(str(tmp_path), who)) for who in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    with scope(CACHEDIR=str(tmp_path)):
        found = history.lines()
    assert sorted((line["who"], line["number"]) for line in found) == [(w, n) for w in range(4) for n in range(50)]
