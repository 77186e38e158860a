"""The cache of compiled kernels on disk: many processes may use it, and none of its failures ever stops a program.

One file an entry, named by the hash of everything the code depends on. A file is written under another name and then
renamed, so it is seen whole or not at all; it carries a checksum, so a damaged one is ignored and written anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from gradlet.base import settings

# Raise when the meaning of an entry changes.
FORMAT: Final = 1
MAGIC: Final = b"gradlet\x01"
DIGEST_BYTES: Final = 16
MAX_BYTES: Final = 512 * 1024 * 1024
# The size is looked at once in so many writes of a process, and at its first write unless some process did in the last
# so many seconds: looking reads the size of every entry. It is then brought down to this share of the limit.
PRUNE_EVERY: Final = 256
PRUNE_SECONDS: Final = 3600.0
PRUNE_TO: Final = 0.75
PRUNED: Final = "pruned"  # a file whose time is that of the last look
TEMPORARY: Final = ".new-"
SEARCH: Final = ".search"  # ends the names of results of searches
CAPTURE: Final = ".capture"  # ends the names of captured programs
# A file left by a killed writer is removed when it is this old.
STALE_SECONDS: Final = 3600.0
# An entry's age counts for pruning, so a hit renews it, but not more often than this: a hit should cost no write.
RENEW_SECONDS: Final = 24 * 3600.0


@dataclass(frozen=True)
class CacheStats:
    """What lies on disk and what this process did."""

    folder: str
    entries: int
    bytes: int
    hits: int
    misses: int
    searches: int = 0  # entries that are results of searches for schedules
    captures: int = 0  # entries that are captured programs


_hits = 0
_misses = 0
_writes = 0
_evicted = 0


def folder() -> Path:
    """Where entries lie: CACHEDIR, else `gradlet` below XDG_CACHE_HOME, else below ~/.cache."""
    return Path(_folder_of(settings.CACHEDIR.value, settings.XDG_CACHE_HOME.value))


@cache
def _folder_of(own: str, shared: str) -> str:
    if own:
        return os.path.join(own, "kernels")
    return os.path.join(shared or os.path.join(os.path.expanduser("~"), ".cache"), "gradlet", "kernels")


def key(*parts: str) -> str:
    """The name of an entry: a hash of everything its content depends on."""
    digest = hashlib.blake2b(digest_size=20)
    for part in (str(FORMAT), *parts):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def get(name: str) -> bytes | None:
    """The content of an entry, None when there is none or it is damaged."""
    global _hits, _misses
    if not settings.CACHE:
        return None
    path = _place(name)
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        _misses += 1
        return None
    # Plain system calls: loading a kernel should cost little more than they do.
    raw, modified = b"", 0.0
    try:
        status = os.fstat(descriptor)
        modified = status.st_mtime
        raw = os.read(descriptor, status.st_size + 1)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    content = _unpack(raw)
    if content is None:
        _misses += 1
        return None
    _hits += 1
    if time.time() - modified > RENEW_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)
    return content


def put(name: str, content: bytes) -> bool:
    """Write an entry; returns whether that worked. A full disk or a read-only folder only costs speed."""
    global _writes
    if not settings.CACHE:
        return False
    path = _place(name)
    # No other process that shares the folder, on whatever machine, makes a name of this.
    temporary = f"{os.path.dirname(path)}/{TEMPORARY}{os.urandom(8).hex()}"
    try:
        descriptor = _create(temporary)
        try:
            _write(descriptor, MAGIC + _checksum(content) + content)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        return False
    _writes += 1
    if _writes % PRUNE_EVERY == 0 or (_writes == 1 and not _pruned_lately()):
        prune()
    return True


def _create(path: str) -> int:
    """A descriptor of a new file; its folder is made where it is missing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return os.open(path, flags, 0o600)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def stats() -> CacheStats:
    """Entries and bytes on disk, hits and misses of this process."""
    files = [entry for entry in _entries() if not entry[0].name.startswith(TEMPORARY)]
    searches, captures = [sum(path.name.endswith(end) for path, _, _ in files) for end in (SEARCH, CAPTURE)]
    return CacheStats(str(folder()), len(files), sum(size for _, size, _ in files), _hits, _misses, searches, captures)


def counts() -> tuple[int, int, int]:
    """Hits and misses of this process, and entries that it removed because the cache had grown too large."""
    return _hits, _misses, _evicted


def contents(ending: str) -> list[bytes]:
    """The content of every entry whose name ends so, the one written last at the end."""
    found = [(modified, path) for path, _, modified in _entries() if path.name.endswith(ending)]
    unpacked: list[bytes] = []
    for _, path in sorted(found):
        with contextlib.suppress(OSError):
            content = _unpack(path.read_bytes())
            if content is not None:
                unpacked.append(content)
    return unpacked


def clear() -> int:
    """Remove all entries; returns how many there were."""
    removed = 0
    for path, _, _ in _entries():
        with contextlib.suppress(OSError):
            path.unlink()
            removed += not path.name.startswith(TEMPORARY)
    with contextlib.suppress(OSError):
        (folder() / PRUNED).unlink()
    return removed


def prune(max_bytes: int | None = None) -> None:
    """Remove the entries that were not used for the longest time until the rest is below the limit."""
    global _evicted
    limit = MAX_BYTES if max_bytes is None else max_bytes
    now = time.time()
    with contextlib.suppress(OSError):
        folder().mkdir(parents=True, exist_ok=True)
        (folder() / PRUNED).touch()
    files = []
    for path, size, modified in _entries():
        if path.name.startswith(TEMPORARY):
            if now - modified > STALE_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()
            continue
        files.append((modified, size, path))
    total = sum(size for _, size, _ in files)
    if total <= limit:
        return
    for _, size, path in sorted(files):
        with contextlib.suppress(OSError):
            path.unlink()
            _evicted += 1
        total -= size
        if total <= limit * PRUNE_TO:
            return


def _pruned_lately() -> bool:
    try:
        return time.time() - (folder() / PRUNED).stat().st_mtime < PRUNE_SECONDS
    except OSError:
        return False


def _place(name: str) -> str:
    # A letter of the hash as a folder keeps folders small; more of them take longer to make than all that is in them.
    return f"{_folder_of(settings.CACHEDIR.value, settings.XDG_CACHE_HOME.value)}/{name[:1]}/{name}"


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def _unpack(raw: bytes) -> bytes | None:
    start = len(MAGIC) + DIGEST_BYTES
    if len(raw) < start or not raw.startswith(MAGIC):
        return None
    content = raw[start:]
    return content if raw[len(MAGIC) : start] == _checksum(content) else None


def _entries() -> list[tuple[Path, int, float]]:
    """Every file with its size and time of change; files that vanish meanwhile are left out."""
    found = []
    try:
        folders = [e.path for e in os.scandir(folder()) if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    for sub in folders:
        try:
            for entry in os.scandir(sub):
                with contextlib.suppress(OSError):
                    status = entry.stat(follow_symlinks=False)
                    found.append((Path(entry.path), status.st_size, status.st_mtime))
        except OSError:
            continue
    return found
