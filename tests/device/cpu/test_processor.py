"""What the processor can is the same whoever is asked."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from gradlet.device.common.llvm import binding
from gradlet.device.cpu import processor, target

LINUX_ON_X86 = platform.system() == "Linux" and platform.machine() == "x86_64"


@pytest.mark.skipif(not LINUX_ON_X86, reason="elsewhere Linux has other names")
def test_linux_and_llvm_agree() -> None:
    has = binding().get_host_cpu_features()
    asked = {*target._NEEDS_AVX2, *target._NEEDS_AVX512, "avx512vnni", "avxvnni"}
    assert {name for name in asked if has.get(name)} == asked & processor.features()


def test_the_names_are_those_of_llvm(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor : 0\nflags\t\t: fpu pni abm bmi1 avx2 avx512_vnni\n\nprocessor : 1\nflags : none\n")
    assert processor.named_by_linux(str(file)) == {"fpu", "sse3", "lzcnt", "bmi", "avx2", "avx512vnni"}


@pytest.mark.parametrize("text", ["", "processor : 0\nFeatures : asimd\n", "\xff\n"])
def test_where_linux_names_none_llvm_is_asked(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(text, encoding="latin-1")
    assert not processor.named_by_linux(str(file)) and not processor.named_by_linux(str(tmp_path / "missing"))
    monkeypatch.setattr(processor, "named_by_linux", lambda path: frozenset())
    processor.features.cache_clear()
    try:
        assert processor.features() == {n for n, has in binding().get_host_cpu_features().items() if has}
    finally:
        processor.features.cache_clear()
