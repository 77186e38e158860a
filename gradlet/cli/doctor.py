"""`gradlet doctor`: what is there, what this machine can do, what is missing and the command that installs it."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from gradlet.base.errors import GradletError, UserError
from gradlet.base.report import human_bytes
from gradlet.base.settings import SETTINGS

# Device -> (library of its driver, whose it is): looked for, also where this version has no backend.
DRIVERS = {
    "AMD": ("libhsa-runtime64.so.1", "AMD"),
    "CL": ("libOpenCL.so.1", "OpenCL"),
}


class Line(NamedTuple):
    """One finding. `mark`: `ok`, `--` (absent, nothing is broken) or `!!` (needs the user)."""

    mark: str
    subject: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`doctor` only measures when it is told to."""
    parser.add_argument(
        "--probe", action="store_true", help="measure this machine (a second; leave it idle) and plan with that"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print all findings; 1 when something needs the user."""
    broken = False
    measure = bool(getattr(arguments, "probe", False))
    sections: list[tuple[str, Callable[[], Iterator[Line]]]] = [
        ("Versions", versions),
        ("Settings", settings),
        ("Devices", devices),
        ("Machine", lambda: machine(measure)),
        ("Cache", cache),
        ("Extras", extras),
    ]
    for title, findings in sections:
        print(title)
        for line in guarded(findings):
            broken = broken or line.mark == "!!"
            print(f"  {line.mark} {line.subject:12s} {line.text}")
    print("Something above needs attention (!!)." if broken else "All is well.")
    return int(broken)


def guarded(findings: Callable[[], Iterator[Line]]) -> Iterator[Line]:
    """The findings, and the user error that ended them early, if any: one bad setting must not hide the rest."""
    try:
        yield from findings()
    except UserError as error:
        yield Line("!!", "stopped", str(error))


def gradlet_version() -> str:
    """The installed version, or that there is none."""
    try:
        return metadata.version("gradlet")
    except metadata.PackageNotFoundError:
        return "(a working tree, not installed)"


def versions() -> Iterator[Line]:
    """Interpreter, package and the libraries it stands on."""
    yield Line("ok", "gradlet", gradlet_version())
    yield Line("ok", "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    try:
        import llvmlite.binding as llvm

        llvm_version = ".".join(map(str, llvm.llvm_version_info))
        yield Line("ok", "llvmlite", f"{metadata.version('llvmlite')} (LLVM {llvm_version})")
    except ImportError as error:
        yield Line("!!", "llvmlite", f"missing ({error}): pip install 'llvmlite>=0.50,<0.51'")
    for name in ("numpy", "rich"):
        try:
            yield Line("ok", name, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Line("!!", name, f"missing: pip install {name}")


def settings() -> Iterator[Line]:
    """Values set in the environment, and the bad ones with their good values."""
    quiet = True
    for row in SETTINGS.values():
        try:
            value = row.value
        except UserError as error:
            quiet = False
            yield Line("!!", row.name, str(error))
            continue
        if value != row.default and row.name != "XDG_CACHE_HOME":
            quiet = False
            yield Line("ok", row.name, f"{value} ({row.doc})")
    if quiet:
        yield Line("ok", "defaults", "no setting is changed by the environment")


def devices() -> Iterator[Line]:
    """Every device: open it, say what it is or why it cannot be used."""
    from gradlet.runtime.device import Device

    try:
        default = Device.DEFAULT
    except UserError as error:
        yield Line("!!", "DEV", str(error))
        default = ""
    for name in Device.names():
        mark = " (default)" if name == default else ""
        try:
            yield Line("ok", name, describe_device(name) + mark)
        except (GradletError, OSError, ImportError) as error:
            yield Line("!!" if name == default else "--", name, f"cannot be used: {error}{mark}")
    for name, (library, vendor) in DRIVERS.items():
        if name in Device:
            continue
        if library_loads(library):
            yield Line("--", name, f"{vendor} driver found ({library}), but this version has no backend for it")
        else:
            yield Line("--", name, f"no {vendor} driver ({library})")


def describe_device(name: str) -> str:
    """One line about an opened device.

    Raises:
        DeviceError: it cannot be opened.
    """
    from gradlet.device.cpu.facts import processor_name
    from gradlet.runtime.device import Device
    from gradlet.target.target import TARGETS

    target = Device[name].target
    if name == "PYTHON":
        return "the reference evaluator: slow, exact, for comparing"
    if name == "NULL":
        return f"compiles and runs nothing; targets: {', '.join(f'NULL:{n}' for n in TARGETS)}"
    if target.kind == "gpu":
        memory = f"{human_bytes(target.llc_bytes)} of L2 cache, {target.bytes_per_second / 1e9:.3g} GB/s of memory"
        backend: Any = Device[name]
        return f"{backend.gpu.name()}, {target.name}, {target.cores} multiprocessors, {memory}"
    caches = ", ".join(binary_size(n) for n in (target.l1_bytes, target.l2_bytes, target.llc_bytes))
    plural = "" if target.cores == 1 else "s"
    return f"{processor_name()}, {target.name}, {target.cores} thread{plural}, caches {caches}"


def machine(measure: bool) -> Iterator[Line]:
    """What launches, memory and arithmetic cost here: measured now if asked for, else as it was measured before."""
    from gradlet.device.cpu import facts, probe
    from gradlet.device.cpu.target import host_target

    try:
        target = host_target()
    except (GradletError, OSError, ImportError) as error:
        yield Line("--", "measured", f"never: {error}")
        return
    busy = measure and hasattr(os, "getloadavg") and os.getloadavg()[0] > 0.5
    found = probe.probe() if measure else facts.recall(target.name, target.cores)
    if found is None:
        yield Line(
            "--", "measured", "never: kernels are planned with typical figures; `gradlet doctor --probe` measures"
        )
        return
    if measure and facts.recall(target.name, target.cores) is None:
        yield Line("--", "measured", "the cache cannot keep it: kernels are planned with typical figures")
    elif not SETTINGS["PROBE"].value:
        yield Line("--", "measured", "not used (PROBE=0): kernels are planned with typical figures")
    if busy:
        yield Line("--", "measured", "while other programs were running: measure again when the machine is idle")
    launch, inline, barrier = (f"{ps / 1e6:.2f} us" for ps in (found.launch_ps, found.inline_ps, found.barrier_ps))
    yield Line("ok", "launch", f"{launch} on all threads, {inline} on one; {barrier} for one more stage")
    memory, core, second = (
        f"{rate / 1e9:.3g} GB/s"
        for rate in (found.bytes_per_second, found.core_bytes_per_second, found.l2_bytes_per_second)
    )
    yield Line("ok", "bandwidth", f"memory {memory}, {core} with one thread; second caches {second}")
    yield Line("ok", "arithmetic", f"{found.flops_per_second / 1e9:.3g} GFLOP/s in float32")


def binary_size(count: int) -> str:
    """Cache sizes are powers of two: 49152 is 48 KiB."""
    return f"{count // 1048576} MiB" if count >= 1048576 else f"{count // 1024} KiB"


def library_loads(name: str) -> bool:
    """Whether the dynamic linker finds this library."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def cache() -> Iterator[Line]:
    """Where kernels are kept on disk, how much is there, and whether it can be written."""
    from gradlet.runtime import diskcache

    if not SETTINGS["CACHE"].value:
        yield Line("--", "kernels", "the cache is off (CACHE=0): every process compiles anew")
        return
    found = diskcache.stats()
    plural = "y" if found.entries == 1 else "ies"
    yield Line("ok", "kernels", f"{found.folder}: {found.entries} entr{plural}, {human_bytes(found.bytes)}")
    problem = why_not_writable(diskcache.folder())
    if problem:
        yield Line("--", "kernels", f"cannot be written ({problem}): every process compiles anew; CACHEDIR moves it")


def why_not_writable(folder: Path) -> str:
    """Why a file cannot be written there; empty when it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return error.strerror or str(error)
    return ""


def extras() -> Iterator[Line]:
    """Optional dependencies by extra, and the command that installs the missing ones."""
    try:
        requirements = metadata.requires("gradlet") or []
    except metadata.PackageNotFoundError:
        yield Line("--", "extras", "unknown for a working tree: pip install -e '.[test]'")
        return
    by_extra: dict[str, list[str]] = {}
    for requirement in requirements:
        found = re.match(r"([A-Za-z0-9_.-]+).*extra == ['\"]([^'\"]+)['\"]", requirement)
        if found:
            by_extra.setdefault(found[2], []).append(found[1])
    for extra, packages in by_extra.items():
        missing = [p for p in packages if not is_installed(p)]
        if missing:
            yield Line("--", f"[{extra}]", f"missing {', '.join(missing)}: pip install 'gradlet[{extra}]'")
        else:
            yield Line("ok", f"[{extra}]", ", ".join(packages))


def is_installed(package: str) -> bool:
    """Whether this distribution is in the environment."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
