"""Which instructions this processor has, by the names that LLVM gives them."""

from __future__ import annotations

from functools import cache
from typing import Final

# Of x86-64, what Linux names otherwise. It leaves out what the system does not let programs use.
_NAMES_OF_LINUX: Final = {
    "bmi1": "bmi", "abm": "lzcnt", "avx512_vnni": "avx512vnni", "avx_vnni": "avxvnni", "sse4_1": "sse4.1",
    "sse4_2": "sse4.2", "pni": "sse3",
}  # fmt: skip


@cache
def features() -> frozenset[str]:
    """The instructions that programs may use here.

    Linux on x86-64 is asked itself, which costs little at the start of a process; elsewhere LLVM is.
    """
    found = named_by_linux("/proc/cpuinfo")
    if found:
        return found
    from gradlet.device.common.llvm import binding

    return frozenset(name for name, has in binding().get_host_cpu_features().items() if has)


def named_by_linux(path: str) -> frozenset[str]:
    """The flags of the first processor in such a file, empty where it names none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, words = line.partition(":")
                if name.strip() == "flags":
                    return frozenset(_NAMES_OF_LINUX.get(word, word) for word in words.split())
    except OSError:
        pass
    return frozenset()
