"""Which gradlet this is: what was made by another version of the compiler is not what this one would make."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path


@cache
def fingerprint() -> str:
    """A hash of the name, size and times of every source file of the package.

    Nothing is read: asking takes a millisecond. The time when a file was last changed in any way counts too, which no
    installer can set: some give all files one time of modification. A file that changes while the process runs does not
    count, as the process goes on with what it loaded.
    """
    package = Path(__file__).parent.parent
    digest = hashlib.blake2b(digest_size=16)
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                status = os.stat(path)
                place = os.path.relpath(path, package)
                digest.update(f"{place} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    return digest.hexdigest()
