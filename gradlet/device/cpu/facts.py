"""Measured facts about this machine: kept on disk from one probe to the next, never measured by asking for them."""

from __future__ import annotations

import json
import platform
from functools import cache
from typing import Final, NamedTuple

from gradlet.runtime import diskcache

# Raise when what a fact means, or how it is measured, changes: older ones are then forgotten.
VERSION: Final = 2


class Facts(NamedTuple):
    """What a probe measures, named as in `Target`."""

    flops_per_second: int
    bytes_per_second: int
    core_bytes_per_second: int
    l2_bytes_per_second: int
    launch_ps: int
    inline_ps: int
    barrier_ps: int

    def rounded(self) -> Facts:
        """Each fact to two significant bits: probes of one machine then nearly always lead to the same schedules."""
        return Facts(*[two_bits(value) for value in self])


def two_bits(value: int) -> int:
    """The nearest of 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    shift = max(0, value.bit_length() - 2)
    return (value + (1 << shift >> 1)) >> shift << shift


def recall(features: str, cores: int) -> Facts | None:
    """The facts measured last on this kind of machine.

    Args:
        features: name of the vector instructions in use.
        cores: threads in use.
    """
    found = diskcache.get(_key(features, cores))
    if found is None:
        return None
    try:
        values = json.loads(found)
        facts = Facts(**values)
    except (ValueError, TypeError):
        return None
    return facts if all(type(value) is int and value > 0 for value in facts) else None


def remember(facts: Facts, features: str, cores: int) -> bool:
    """Keep facts for later processes; returns whether that worked."""
    return diskcache.put(_key(features, cores), json.dumps(facts._asdict()).encode())


def _key(features: str, cores: int) -> str:
    return diskcache.key("facts", f"version {VERSION}", processor_name(), features, f"{cores} cores")


@cache
def processor_name() -> str:
    """What the processor calls itself."""
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
