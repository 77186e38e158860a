"""How much processor time a container may use: the quotas of Linux control groups, versions 1 and 2.

A container that may use two cores' time on a machine of 64 still sees 64 cores. More threads than the quota has cores
would be stopped together when it is used up, in the middle of a kernel that the others then wait for.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Where controllers are mounted, below the root of the file system: version 2 alone or beside 1, then 1.
_UNIFIED = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_CPU = ("sys/fs/cgroup/cpu", "sys/fs/cgroup/cpu,cpuacct", "sys/fs/cgroup/cpuacct,cpu")


def quota_cores(root: str | Path = "/") -> int | None:
    """Cores whose time this process may use by its control groups and all above them, rounded up; None without a limit.

    Args:
        root: where the file system begins.
    """
    base = Path(root)
    found = [cores for cores in _quotas(base) if cores > 0]
    return max(1, int(-(-min(found) // 1))) if found else None


def _quotas(base: Path) -> Iterator[float]:
    try:
        lines = (base / "proc/self/cgroup").read_text().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            for folder in _folders(base, _UNIFIED, group):
                yield from _version_2(folder)
        elif "cpu" in controllers.split(","):
            for folder in _folders(base, _CPU, group):
                yield from _version_1(folder)


def _folders(base: Path, mounts: tuple[str, ...], group: str) -> Iterator[Path]:
    """The folders of a group and of those above it. In a container its own group may be mounted as the topmost one."""
    inside = PurePosixPath(group.lstrip("/"))
    if ".." in inside.parts:
        inside = PurePosixPath()
    for mount in mounts:
        for part in (inside, *inside.parents):
            folder = base / mount / part
            if folder.is_dir():
                yield folder


def _version_2(folder: Path) -> Iterator[float]:
    """`cpu.max` has the microseconds of a period that may be used, or `max`, and those of a period."""
    try:
        used, period = (folder / "cpu.max").read_text().split()
        yield int(used) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return


def _version_1(folder: Path) -> Iterator[float]:
    """The same in two files; -1 where there is no limit."""
    try:
        used = int((folder / "cpu.cfs_quota_us").read_text())
        yield used / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return
