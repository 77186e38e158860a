"""Code into this process: images as they are, object code linked by LLVM's ORC JIT; callable while its handle lives."""

from __future__ import annotations

import ctypes.util
import os
import sys
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, Final

from gradlet.base.errors import RenderError
from gradlet.device.common.llvm import LOCK, binding, target_machine
from gradlet.device.cpu.image import MAGIC, Mapped
from gradlet.device.cpu.target import host_target

_numbers: Final = count()


class Loaded:
    """Functions in memory, by name. Dropping it unloads them."""

    addresses: dict[str, int]

    def keep_forever(self) -> None:
        """Never unload: threads may be inside when the interpreter ends."""
        raise NotImplementedError

    def unload(self) -> None:
        """Give their memory back."""
        raise NotImplementedError

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The function is held as a default: module names are already gone when the last objects die at exit.
        if is_finalizing():
            # A daemon thread may be stopped for good inside this code, or while it holds the lock.
            self.keep_forever()
        else:
            self.unload()


class _Linked(Loaded):
    """What LLVM has linked."""

    def __init__(self, tracker: Any, names: tuple[str, ...], entries: str) -> None:
        self._tracker = tracker
        if entries:
            found = (ctypes.c_uint64 * len(names)).from_address(tracker[entries])
            self.addresses = dict(zip(names, found, strict=True))
        else:
            self.addresses = {name: int(tracker[name]) for name in names}

    def keep_forever(self) -> None:
        self._tracker._owned = True

    def unload(self) -> None:
        with LOCK:  # unloading changes the JIT's tables, as compiling does
            self._tracker = None


class _Copied(Loaded):
    """An image."""

    def __init__(self, mapped: Mapped, names: tuple[str, ...]) -> None:
        self._mapped = mapped
        self.addresses = {name: mapped.addresses[name] for name in names}

    def keep_forever(self) -> None:
        self._mapped.keep_forever()

    def unload(self) -> None:
        self._mapped.unmap()


@cache
def _jit() -> Any:
    llvm = binding()
    for library in ("m", "c"):
        found = ctypes.util.find_library(library) if os.name == "posix" else None
        if found:
            llvm.load_library_permanently(found)
    target = host_target()
    machine = target_machine(target.triple, target.cpu, target.features)
    jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
    jit._owned = True  # never torn down: code may still run while the interpreter ends
    return jit


def load(code: bytes, names: tuple[str, ...], entries: str = "") -> Loaded:
    """Bring code into memory and look up its functions.

    Args:
        code: an object file, or an image of one.
        names: of its functions.
        entries: an array in the code that holds the addresses of just these functions: to look one name up takes the
            linker as long as all the rest of a small kernel.

    Raises:
        RenderError: the code needs a symbol that this process lacks, or is not object code.
    """
    if code.startswith(MAGIC):
        mapped = Mapped(code)
        if missing := [name for name in names if name not in mapped.addresses]:
            mapped.unmap()
            raise RenderError(f"cannot load {', '.join(names)}: the image lacks {', '.join(missing)}")
        return _Copied(mapped, names)
    with LOCK:
        builder = binding().JITLibraryBuilder().add_object_img(code).add_current_process()
        for name in (entries,) if entries else names:
            builder.export_symbol(name)
        try:
            return _Linked(builder.link(_jit(), f"kernel{next(_numbers)}"), names, entries)
        except RuntimeError as error:
            raise RenderError(f"cannot load {', '.join(names)}: {error}") from None
