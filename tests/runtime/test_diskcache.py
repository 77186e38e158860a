"""The kernel cache on disk: many processes, damage, no space, limits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gradlet.base.settings import scope
from gradlet.runtime import diskcache

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path) -> Iterator[Path]:
    with scope(CACHEDIR=str(tmp_path), CACHE=1):
        yield tmp_path / "kernels"


def files(folder: Path) -> list[Path]:
    """The entries; what stands in the folder itself is not one."""
    return [p for p in folder.rglob("*") if p.is_file() and p.name != diskcache.PRUNED]


def test_what_was_put_is_found() -> None:
    name = diskcache.key("source", "target")
    assert diskcache.get(name) is None
    assert diskcache.put(name, b"code")
    assert diskcache.get(name) == b"code"
    assert diskcache.put(name, b"")
    assert diskcache.get(name) == b""


def test_the_key_depends_on_every_part_and_where_parts_end() -> None:
    keys = {diskcache.key(*parts) for parts in (("a", "b"), ("ab", ""), ("a", "b", ""), ("b", "a"), ("a",))}
    assert len(keys) == 5
    assert diskcache.key("a", "b") == diskcache.key("a", "b")


def test_the_folder_follows_the_settings(tmp_path: Path) -> None:
    assert diskcache.folder() == tmp_path / "kernels"
    with scope(CACHEDIR="", XDG_CACHE_HOME=str(tmp_path / "xdg")):
        assert diskcache.folder() == tmp_path / "xdg" / "gradlet" / "kernels"
    with scope(CACHEDIR="", XDG_CACHE_HOME=""):
        assert diskcache.folder() == Path.home() / ".cache" / "gradlet" / "kernels"


def test_the_setting_turns_it_off(cache_folder: Path) -> None:
    name = diskcache.key("x")
    with scope(CACHE=0):
        assert not diskcache.put(name, b"code")
        assert not cache_folder.exists()
    diskcache.put(name, b"code")
    with scope(CACHE=0):
        assert diskcache.get(name) is None


@pytest.mark.parametrize("damage", ["truncate", "empty", "flip", "append", "foreign", "header"])
def test_a_damaged_entry_is_ignored_and_written_anew(cache_folder: Path, damage: str) -> None:
    name, content = diskcache.key("x"), bytes(range(200))
    diskcache.put(name, content)
    (path,) = files(cache_folder)
    raw = bytearray(path.read_bytes())
    if damage == "truncate":
        raw = raw[:-1]
    elif damage == "empty":
        raw = bytearray()
    elif damage == "flip":
        raw[-50] ^= 1
    elif damage == "append":
        raw += b"x"
    elif damage == "foreign":
        raw = bytearray(b"something else entirely, long enough to hold a header")
    else:
        raw[3] ^= 0xFF
    path.write_bytes(raw)
    assert diskcache.get(name) is None
    assert diskcache.put(name, content)
    assert diskcache.get(name) == content


def test_a_folder_where_an_entry_should_be_costs_only_the_entry(cache_folder: Path) -> None:
    name = diskcache.key("x")
    (cache_folder / name[:1] / name).mkdir(parents=True)
    assert diskcache.get(name) is None
    assert not diskcache.put(name, b"code")
    assert not [p for p in files(cache_folder) if p.name.startswith(diskcache.TEMPORARY)]


def test_a_folder_that_cannot_be_made_costs_only_speed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with scope(CACHEDIR=str(tmp_path / "file")):
        assert not diskcache.put(diskcache.key("x"), b"code")
        assert diskcache.get(diskcache.key("x")) is None
        assert diskcache.stats().entries == 0
        assert diskcache.clear() == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into read-only folders")
def test_a_read_only_folder_costs_only_speed(tmp_path: Path) -> None:
    diskcache.put(diskcache.key("old"), b"old")
    os.chmod(tmp_path / "kernels", 0o500)
    try:
        assert not diskcache.put(diskcache.key("x"), b"code")
        assert diskcache.get(diskcache.key("old")) == b"old"
    finally:
        os.chmod(tmp_path / "kernels", 0o700)


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="needs /dev/full")
def test_a_full_disk_costs_only_speed(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    real = os.write

    def to_full_disk(descriptor: int, data: bytes) -> int:
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, descriptor)
        os.close(full)
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", to_full_disk)
    assert not diskcache.put(diskcache.key("x"), bytes(10**6))
    monkeypatch.undo()
    assert diskcache.get(diskcache.key("x")) is None
    assert files(cache_folder) == []


def test_the_oldest_entries_go_when_it_is_too_large(cache_folder: Path) -> None:
    names = [diskcache.key(str(i)) for i in range(10)]
    for age, name in enumerate(names):
        diskcache.put(name, bytes(1000))
        path = cache_folder / name[:1] / name
        stamp = time.time() - 10_000 + age * 100
        os.utime(path, (stamp, stamp))
    diskcache.prune(max_bytes=8000)
    left = [diskcache.get(name) is not None for name in names]
    assert left == [False] * 5 + [True] * 5


def test_a_hit_makes_an_old_entry_young(cache_folder: Path) -> None:
    name = diskcache.key("x")
    diskcache.put(name, b"code")
    path = cache_folder / name[:1] / name
    os.utime(path, (1, 1))
    diskcache.get(name)
    assert time.time() - path.stat().st_mtime < 1000


def test_files_of_killed_writers_are_removed(cache_folder: Path) -> None:
    diskcache.put(diskcache.key("x"), b"code")
    old, young = cache_folder / "ab" / ".new-old", cache_folder / "ab" / ".new-young"
    old.parent.mkdir(exist_ok=True)
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    diskcache.prune()
    assert not old.exists()
    assert young.exists()
    assert diskcache.stats().entries == 1


def test_clear_removes_everything(cache_folder: Path) -> None:
    for i in range(5):
        diskcache.put(diskcache.key(str(i)), b"code")
    assert diskcache.stats().entries == 5
    assert diskcache.clear() == 5
    assert files(cache_folder) == []
    assert diskcache.stats().entries == 0


WRITER = """
import sys
from gradlet.runtime import diskcache
seed = int(sys.argv[1])
rounds = int(sys.argv[2])
wrong = 0
for turn in range(rounds):
    for i in range(20):
        name = diskcache.key(str(i))
        found = diskcache.get(name)
        if found is not None and found != bytes([i]) * 5000:
            wrong += 1
        diskcache.put(name, bytes([i]) * 5000)
    if turn == 0:
        print("ready", flush=True)
print("wrong", wrong, flush=True)
"""


def start(tmp_path: Path, seed: int, rounds: int) -> subprocess.Popen[str]:
    environment = dict(os.environ, CACHEDIR=str(tmp_path))
    command = [sys.executable, "-c", WRITER, str(seed), str(rounds)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_eight_processes_share_it(tmp_path: Path) -> None:
    processes = [start(tmp_path, seed, 10) for seed in range(8)]
    for process in processes:
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "wrong 0" in out
    for i in range(20):
        assert diskcache.get(diskcache.key(str(i))) == bytes([i]) * 5000


def test_killing_a_writer_leaves_whole_entries(tmp_path: Path) -> None:
    for seed in range(3):
        process = start(tmp_path, seed, 10**6)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.01 * (seed + 1))
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=10)
        process.stdout.close()
        for i in range(20):
            assert diskcache.get(diskcache.key(str(i))) == bytes([i]) * 5000
