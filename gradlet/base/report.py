"""How numbers and kernels are written for people: bytes, times, rates, and the aligned line a kernel has at DEBUG=2."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def _scaled(value: float, step: float, units: Iterable[str]) -> str:
    """Three significant digits and the largest unit that keeps the number at least 1."""
    names = list(units)
    index = 0
    # 999.5 would round to 1000 of this unit: it is 1 of the next one.
    while abs(value) >= step * 0.9995 and index + 1 < len(names):
        value /= step
        index += 1
    if index == 0 and value == int(value):
        return f"{int(value)} {names[0]}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) >= 1 else 2
    return f"{value:.{min(digits, 2)}f} {names[index]}"


def human_bytes(count: int) -> str:
    """Decimal units, as bandwidth is counted.

    >>> human_bytes(512), human_bytes(57_000), human_bytes(16_777_216)
    ('512 B', '57.0 kB', '16.8 MB')
    """
    return _scaled(count, 1000.0, ("B", "kB", "MB", "GB", "TB", "PB"))


def human_seconds(seconds: float) -> str:
    """Times from nanoseconds up.

    >>> human_seconds(0.00000125), human_seconds(0.0123), human_seconds(75.0)
    ('1.25 us', '12.3 ms', '75.0 s')
    """
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    return _scaled(seconds * 1e6, 1000.0, ("us", "ms", "s")).replace(".00 us", " us")


def human_count(count: float) -> str:
    """Counts in decimal thousands.

    >>> human_count(950), human_count(2_147_483_648)
    ('950', '2.15 G')
    """
    return _scaled(count, 1000.0, ("", "k", "M", "G", "T", "P")).rstrip()


def giga_per_second(amount: float, seconds: float | None) -> float:
    """`amount` a second in units of 10**9; 0 where the time is unknown or nothing was measured."""
    return amount / seconds * 1e-9 if seconds else 0.0


def kernel_line(
    device: str, name: str, shapes: str, seconds: float | None, flops: int, moved: int, memory: int, number: int = 0
) -> str:
    """One launch in one line, columns aligned over launches.

    Args:
        device: where it ran.
        name: the kernel's name.
        shapes: its loops or buffers, as short text.
        seconds: its time, or None when nobody waited for it.
        flops: floating point operations of the launch.
        moved: unique bytes read and written.
        memory: bytes that gradlet holds.
        number: count of this launch.

    >>> print(kernel_line("CPU", "E_4_4", "4x4", 2.0e-6, 16, 128, 192, 7))
    CPU    7 E_4_4                        4x4                    2 us      0.01 GFLOP/s    0.06 GB/s  mem    192 B
    """
    if seconds is None:
        timing = f"{'-':>10}"
        rates = f"{'-':>9} GFLOP/s {'-':>7} GB/s"
    else:
        timing = f"{human_seconds(seconds):>10}"
        rates = f"{giga_per_second(flops, seconds):9.2f} GFLOP/s {giga_per_second(moved, seconds):7.2f} GB/s"
    return f"{device:4} {number:3d} {pad(name, 28)} {pad(shapes, 16)} {timing} {rates}  mem {human_bytes(memory):>8}"


def totals_line(kernels: int, flops: int, moved: int, seconds: float, memory: int) -> str:
    """What DEBUG=1 says at the end of a realize or of a program.

    >>> totals_line(3, 2_000_000, 4_000_000, 0.001, 12_000_000)
    '3 kernels, 2.00 MFLOP, 4.00 MB moved in 1.00 ms: 2.00 GFLOP/s, 4.00 GB/s, 12.0 MB held'
    """
    plural = "" if kernels == 1 else "s"
    work = human_count(flops)
    work = f"{work}FLOP" if " " in work else f"{work} FLOP"
    return (
        f"{kernels} kernel{plural}, {work}, {human_bytes(moved)} moved in {human_seconds(seconds)}: "
        f"{giga_per_second(flops, seconds):.2f} GFLOP/s, {giga_per_second(moved, seconds):.2f} GB/s, "
        f"{human_bytes(memory)} held"
    )


def pad(text: str, width: int) -> str:
    """Fill with spaces to `width` columns on the screen: colour codes take none."""
    return text + " " * max(0, width - len(_ANSI.sub("", text)))
