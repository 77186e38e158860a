"""Quotas of control groups bound how many threads there are by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradlet.base.settings import scope
from gradlet.device.cpu import target
from gradlet.device.cpu.quota import quota_cores


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SELF = "proc/self/cgroup"
TREES = {
    "no control groups": ({}, None),
    "version 2, no limit": ({SELF: "0::/a\n", "sys/fs/cgroup/a/cpu.max": "max 100000\n"}, None),
    "version 2": ({SELF: "0::/a\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n"}, 2),
    "rounded up": ({SELF: "0::/a\n", "sys/fs/cgroup/a/cpu.max": "250000 100000\n"}, 3),
    "less than a core": ({SELF: "0::/a\n", "sys/fs/cgroup/a/cpu.max": "20000 100000\n"}, 1),
    "the least of those above": (
        {SELF: "0::/a/b/c\n", "sys/fs/cgroup/a/cpu.max": "300000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000",
         "sys/fs/cgroup/a/b/c/cpu.max": "400000 100000"}, 3),
    "a container's own root": ({SELF: "0::/elsewhere/x\n", "sys/fs/cgroup/cpu.max": "100000 50000\n"}, 2),
    "outside of the container's root": ({SELF: "0::/../x\n", "sys/fs/cgroup/cpu.max": "100000 50000\n"}, 2),
    "version 1": (
        {SELF: "5:memory:/m\n3:cpu,cpuacct:/d\n", "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_quota_us": "150000\n",
         "sys/fs/cgroup/cpu,cpuacct/d/cpu.cfs_period_us": "100000\n"}, 2),
    "version 1, no limit": (
        {SELF: "1:cpu:/\n0::/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
    "both versions": (
        {SELF: "1:cpu:/\n0::/u\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "500000\n",
         "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n", "sys/fs/cgroup/unified/u/cpu.max": "400000 100000"}, 4),
    "a file that says nothing": ({SELF: "0::/a\nnonsense\n", "sys/fs/cgroup/a/cpu.max": "many\n"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_quota_of_a_tree(name: str, tmp_path: Path) -> None:
    files, cores = TREES[name]
    assert quota_cores(write(tmp_path, files)) == cores


def test_threads_by_default_are_within_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "available_cores", lambda: 8)
    for quota, asked, threads in ((None, 0, 8), (3, 0, 3), (16, 0, 8), (3, 5, 5), (3, 9, 8)):
        monkeypatch.setattr(target, "_quota", lambda quota=quota: quota)
        with scope(NUM_THREADS=asked):
            assert target.usable_cores() == threads
