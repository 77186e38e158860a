"""LLVM through llvmlite: set up once, IR text to object code or assembly for any target, one lock around all of it."""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path
from typing import Any, Final

from gradlet.base.errors import RenderError
from gradlet.base.settings import SPEC
from gradlet.target.target import Target

# LLVM's own state is not safe to share between threads here. Taken while forking, so that no child starts in the middle
# of a compilation that its parent's other thread would have to finish.
LOCK: Final = threading.RLock()
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

# The IR holds its final form, so no pass runs on it; the code generator's own level 1 schedules and allocates as well
# as level 3 does on such code.
CODEGEN_LEVEL: Final = 1
# Addresses are in final form too: sums that loops share stand outside them. Loop strength reduction took a quarter of
# all time here (nine tenths for strided convolutions); products were as fast without. Nothing is computed twice, so
# looking for that finds one instruction in a thousand, as looking for copies does: a twentieth of all time. The options
# hold for the process.
OPTIONS: Final = (
    "-disable-lsr",
    "-x86-machine-combiner=false",
    "-disable-machine-cse",
    "-disable-copyprop",
    "-enable-shrink-wrap=false",
)


@cache
def binding() -> Any:
    """`llvmlite.binding` with all targets registered; imported on first use."""
    import llvmlite.binding as llvm

    with LOCK:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        for option in OPTIONS:
            llvm.set_option("gradlet", option)
    return llvm


@cache
def version() -> str:
    """Which llvmlite and LLVM, and how they are asked: part of every cache key. Their library is not loaded for it."""
    import llvmlite

    numbers = _library(Path(llvmlite.__file__).parent / "binding")
    if not numbers:
        numbers = ".".join(str(v) for v in binding().llvm_version_info)
    return f"llvmlite {llvmlite.__version__} LLVM {numbers} level {CODEGEN_LEVEL} {' '.join(OPTIONS)} pic"


def _library(folder: Path) -> str:
    """The library by name and size, which tell builds of one version apart; empty where it does not lie there."""
    return " ".join(f"{p.name} {p.stat().st_size}" for p in sorted(folder.glob("*llvmlite*")) if p.suffix != ".py")


@cache
def target_machine(triple: str, cpu: str, features: str) -> Any:
    """LLVM's code generator for one processor."""
    llvm = binding()
    with LOCK:
        found = llvm.Target.from_triple(triple)
        # Constants at a small distance from the code: they are operands of the instructions that use them.
        reloc = "static" if triple.startswith("wasm") else "pic"  # code of its own kind where that can be shared
        return found.create_target_machine(
            cpu=cpu, features=features, opt=CODEGEN_LEVEL, reloc=reloc, codemodel="default"
        )


def _parse(source: str, target: Target, machine: Any) -> Any:
    llvm = binding()
    try:
        module = llvm.parse_assembly(source)
        module.data_layout = str(machine.target_data)
        if SPEC:  # the parser has seen to types and names; what may be wrong beyond them, tests tell
            module.verify()
    except RuntimeError as error:
        raise RenderError(f"LLVM refuses the rendered kernel for {target.name}: {error}\n{source}") from None
    return module


def emit_object(source: str, target: Target) -> bytes:
    """Object code of an IR module.

    Raises:
        RenderError: LLVM does not accept the text.
    """
    with LOCK:
        machine = target_machine(target.triple, target.cpu, target.features)
        return bytes(machine.emit_object(_parse(source, target, machine)))


def emit_assembly(source: str, target: Target) -> str:
    """Assembly text of an IR module: PTX for NVIDIA targets.

    Raises:
        RenderError: LLVM does not accept the text.
    """
    with LOCK:
        machine = target_machine(target.triple, target.cpu, target.features)
        return str(machine.emit_assembly(_parse(source, target, machine)))
