"""The target of the machine this process runs on: its vector instructions, cores and cache sizes."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from functools import cache

from gradlet.base import settings
from gradlet.base.errors import DeviceError
from gradlet.device.cpu import facts, processor
from gradlet.device.cpu.quota import quota_cores
from gradlet.target.target import AVX2, AVX512, NEON, SSE, Target, by_name, scratch_of

# What a processor must report to run the code of each level (`x86-64-v4` and `x86-64-v3`), beside the one before.
_NEEDS_AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# Regions use at most one part in so many of a thread's stack.
STACK_SHARE = 4
# What threads get where the limit says nothing: without a limit on Linux, and on other systems.
UNLIMITED_STACK = 2 << 20
OTHER_STACK = 512 << 10
_NEEDS_AVX2 = ("avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")


def host_target() -> Target:
    """The target for this machine, or the one that CPU_FEATURES chooses.

    Raises:
        DeviceError: CPU_FEATURES asks for instructions that this machine lacks.
    """
    global _last
    changes, found = _last
    if found is None or changes != settings.Setting.changes:
        found = _target(settings.CPU_FEATURES.value, usable_cores(), bool(settings.PROBE))
        _last = (settings.Setting.changes, found)
    return found


# The target for the settings as they were at that number of changes: every realize asks, and counting cores takes long.
_last: tuple[int, Target | None] = (0, None)


def usable_cores() -> int:
    """Threads that the CPU device uses: NUM_THREADS, else as many cores as this process may use all the time."""
    asked = int(settings.NUM_THREADS)
    available = available_cores()
    return min(asked, available) if asked else min(available, _quota() or available)


@cache
def _quota() -> int | None:
    return quota_cores()


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def forget_facts() -> None:
    """Look cores and measured facts up again: there are new ones."""
    global _last
    _last = (0, None)
    _target.cache_clear()


@cache
def _target(asked: str, cores: int, use_facts: bool) -> Target:
    if asked and asked not in runnable():
        raise DeviceError(
            f"CPU_FEATURES={asked}: this machine cannot run it; use one of: {', '.join(runnable())}, or unset it"
        )
    base = by_name(asked or runnable()[0])
    l1, l2, llc = cache_sizes()
    target = replace(
        base, triple=_triple(base), cores=cores, l1_bytes=l1 or base.l1_bytes, l2_bytes=l2 or base.l2_bytes,
        llc_bytes=llc or base.llc_bytes, flops_per_second=base.flops_per_second // base.cores * cores,
        bytes_per_second=min(4, cores) * base.core_bytes_per_second,
        l2_bytes_per_second=base.l2_bytes_per_second // base.cores * cores,
        scratch_bytes=min(scratch_of(l2 or base.l2_bytes), stack_bytes() // STACK_SHARE),
    )  # fmt: skip
    target = _with_dot8(target)
    measured = facts.recall(base.name, cores) if use_facts else None
    return target if measured is None else replace(target, **measured.rounded()._asdict())


# The features of dot products of bytes that each level may have; the first one is needed.
_DOT8 = {AVX512.name: ("avx512vnni",), AVX2.name: ("avxvnni",), NEON.name: ("dotprod", "i8mm")}


def _with_dot8(target: Target) -> Target:
    """The target with its instruction for dot products of bytes, if this machine has one."""
    wanted = _DOT8.get(target.name)
    if wanted is None:
        return target
    has = processor.features()
    if wanted[0] not in has:
        return target
    found = ",".join(f"+{feature}" for feature in wanted if feature in has)
    return replace(target, features=f"{target.features},{found}".lstrip(","), dot8=True)


def _triple(base: Target) -> str:
    """The target's triple; on systems other than Linux with their own format of object code."""
    if platform.system() == "Linux":
        return base.triple
    from gradlet.device.common.llvm import binding

    return str(binding().get_process_triple())


@cache
def runnable() -> tuple[str, ...]:
    """Names of the targets whose code this machine runs, best first."""
    machine = platform.machine().lower()
    if machine in ("aarch64", "arm64"):
        return (NEON.name,)
    if machine not in ("x86_64", "amd64"):
        raise DeviceError(f"the CPU device has no target for processor {machine!r}; it knows x86-64 and AArch64")
    has = processor.features()
    names = [SSE.name]
    if has.issuperset(_NEEDS_AVX2):
        names.insert(0, AVX2.name)
        if has.issuperset(_NEEDS_AVX512):
            names.insert(0, AVX512.name)
    return tuple(names)


def stack_bytes() -> int:
    """Bytes of stack that a thread of this process has: scratch memory of a region lies there."""
    if platform.system() != "Linux":
        return OTHER_STACK
    import resource

    limit = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return UNLIMITED_STACK if limit == resource.RLIM_INFINITY else int(limit)


@cache
def cache_sizes() -> tuple[int, int, int]:
    """Bytes of first-level data, second-level and last-level cache of a core; 0 where unknown."""
    found = {1: 0, 2: 0, 3: 0}
    base = "/sys/devices/system/cpu/cpu0/cache"
    try:
        entries = sorted(e for e in os.listdir(base) if e.startswith("index"))
        for entry in entries:
            kind = _read(f"{base}/{entry}/type")
            if kind != "Instruction":
                found[int(_read(f"{base}/{entry}/level"))] = _bytes(_read(f"{base}/{entry}/size"))
    except (OSError, ValueError, KeyError):
        pass
    return found[1], found[2], found[3] or found[2]


def _read(path: str) -> str:
    with open(path) as file:
        return file.read().strip()


def _bytes(text: str) -> int:
    unit = {"K": 1024, "M": 1024 * 1024, "G": 1024**3}.get(text[-1:])
    return int(text[:-1]) * unit if unit else int(text)
