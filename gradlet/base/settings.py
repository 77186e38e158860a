"""The only reader of the environment: one typed row a knob, checked when read, changed for a block with `Context`.

A row says what it affects; the rows that affect generated code form the kernel cache key by themselves.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Final

from gradlet.base.errors import SettingError


@dataclass
class Setting:
    """One knob. `value` is read from the environment on first use, then held here."""

    name: str
    default: Any
    doc: str
    affects: str = "debug"  # codegen | schedule | runtime | debug
    allowed: tuple[Any, ...] | range | None = None
    _value: Any = None
    changes: ClassVar[int] = 0  # how often any setting got a value: what was made of settings is made anew after that

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        Setting.changes += 1

    @property
    def value(self) -> Any:
        if self._value is None:
            text = os.environ.get(self.name)
            self._value = self.default if text is None or text == "" else self.parse(text)
        return self._value

    def parse(self, text: str) -> Any:
        """Turn environment text into a checked value.

        Raises:
            SettingError: not of the right type, or not among the allowed values.
        """
        if isinstance(self.default, int):
            try:
                return self.check(int(text))
            except ValueError as error:
                if isinstance(error, SettingError):
                    raise
                raise SettingError(f"{self.name}={text!r}: expected {self.describe()}") from None
        return self.check(text)

    def check(self, value: Any) -> Any:
        """The value itself, with a bool as 0 or 1.

        Raises:
            SettingError: not of the right type, or not among the allowed values.
        """
        if not isinstance(value, type(self.default)) or (self.allowed is not None and value not in self.allowed):
            raise SettingError(f"{self.name}={value!r}: expected {self.describe()}")
        return int(value) if isinstance(value, bool) else value

    def describe(self) -> str:
        """The good values, in words."""
        if isinstance(self.allowed, range):
            return f"an integer from {self.allowed.start} to {self.allowed.stop - 1}"
        if self.allowed is not None:
            return "one of " + ", ".join(str(v) for v in self.allowed if v != "")
        return "an integer" if isinstance(self.default, int) else "text"

    def __bool__(self) -> bool:
        return bool(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __ge__(self, other: int) -> bool:
        return bool(self.value >= other)

    def __lt__(self, other: int) -> bool:
        return bool(self.value < other)

    def __gt__(self, other: int) -> bool:
        return bool(self.value > other)


DEBUG = Setting("DEBUG", 0, "1 totals, 2 a line a kernel, 3 schedules and opts, 4 code, 5 linear program, 6 passes",
                allowed=range(7))  # fmt: skip
DEV = Setting(
    "DEV",
    "",
    "default device: CPU, CUDA (CUDA:1, ...), PYTHON or NULL; NULL:TARGET compiles for another target",
    "runtime",
)
SPEC = Setting("SPEC", 0, "1 checks the graph between every two passes, and what LLVM gets", allowed=range(2))
NOOPT = Setting("NOOPT", 0, "1 turns the kernel heuristic off: plain loops", "codegen", allowed=range(2))
OPTS = Setting("OPTS", "", "schedules by hand: `SPLIT(range 1, 16, MASK), PARALLEL(range 0)` for every kernel, or for "
               "some by name, `NAME: ...; NAME: ...`; the heuristic chooses for the others", "codegen")  # fmt: skip
NUM_THREADS = Setting("NUM_THREADS", 0, "threads of the CPU device; 0 means all cores that the process may use",
                      "runtime",
                      allowed=range(1025))  # fmt: skip
ALLOW_TF32 = Setting("ALLOW_TF32", 0, "1 lets matrix units round factors of float32 products to TF32 (10 bits)",
                     "codegen", allowed=range(2))  # fmt: skip
TC = Setting("TC", "1", "0 turns matrix units off; `emulate` has device PYTHON run what lanes of a GPU would, "
             "matrix units and copy engine included (an sm_90's; `emulate:sm_80`, ... of others)", "codegen",
             allowed=("1", "0", "emulate", *[f"emulate:sm_{n}" for n in (80, 86, 89, 90)]))  # fmt: skip
STRICT_FLOAT = Setting("STRICT_FLOAT", 0, "1 allows only bit-exact floating point rewrites", "codegen",
                       allowed=range(2))  # fmt: skip
CACHE = Setting("CACHE", 1, "0 turns the cache on disk off: kernels, schedules", "runtime", allowed=range(2))
CACHEDIR = Setting("CACHEDIR", "", "folder of the kernel cache; default follows XDG_CACHE_HOME", "runtime")
XDG_CACHE_HOME = Setting("XDG_CACHE_HOME", "", "the user's cache folder", "runtime")
CPU_FEATURES = Setting("CPU_FEATURES", "", "vector ISA of the CPU device; default: the best the host has", "codegen",
                       allowed=("", "avx512", "avx2", "sse", "neon"))  # fmt: skip
FUSE = Setting("FUSE", 2, "0 runs one kernel an operation, 1 fused kernels one a launch (for measuring what is won)",
               "schedule", allowed=range(3))  # fmt: skip
PROBE = Setting("PROBE", 1, "0 plans with typical figures, 1 with what `gradlet doctor --probe` measured, where it did",
                "schedule", allowed=range(2))  # fmt: skip
SCHEDULE_CACHE = Setting("SCHEDULE_CACHE", 1, "0 schedules every call anew", "schedule", allowed=range(2))
SCHEDULE_MISS = Setting("SCHEDULE_MISS", "", "`raise` refuses to compute what this process has no schedule for, and "
                        "says why: for programs that are past their first steps", allowed=("", "raise"))  # fmt: skip

BEAM = Setting("BEAM", 0, "searches the schedule of every kernel with measured times and keeps so many at a time; 0 "
               "takes the heuristic's", "codegen", allowed=range(65))  # fmt: skip
BEAM_TIME = Setting("BEAM_TIME", 0, "seconds that the search of one kernel may take before the best so far is used; "
                    "the next one goes on from there; 0 is no limit", "runtime", allowed=range(1_000_001))  # fmt: skip
BEAM_LIMIT = Setting("BEAM_LIMIT", 10, "seconds that one schedule may take to compile, and to be timed, in a search",
                     "runtime", allowed=range(1, 3601))  # fmt: skip
BEAM_STRICT = Setting("BEAM_STRICT", 0, "1 raises the first error of the compiler that a search meets; 0 counts and "
                      "reports them", "runtime", allowed=range(2))  # fmt: skip
BEAM_PROGRESS = Setting("BEAM_PROGRESS", 1, "0 shows no progress of a search on the terminal", "runtime",
                        allowed=range(2))  # fmt: skip

SETTINGS: dict[str, Setting] = {s.name: s for s in globals().copy().values() if isinstance(s, Setting)}


# Keys by what they cover, each with the number of changes when it was made: every kernel and schedule asks for them.
_keys: Final[dict[tuple[str, ...], tuple[int, tuple[tuple[str, Any], ...]]]] = {}


def codegen_key() -> tuple[tuple[str, Any], ...]:
    """The values of all settings that change generated code: part of every kernel cache key."""
    return _key(("codegen",))


def schedule_key() -> tuple[tuple[str, Any], ...]:
    """The values of all settings that change schedules."""
    return _key(("schedule", "codegen"))


def _key(affecting: tuple[str, ...]) -> tuple[tuple[str, Any], ...]:
    known = _keys.get(affecting)
    if known is not None and known[0] == Setting.changes:
        return known[1]
    key = tuple((s.name, s.value) for s in SETTINGS.values() if s.affects in affecting)
    _keys[affecting] = (Setting.changes, key)  # reading values for the first time counts as changes too
    return key


@contextmanager
def scope(**values: Any) -> Iterator[None]:
    """Set settings for a block and restore them after, also when the block raises.

    >>> with scope(DEBUG=2):
    ...     DEBUG.value
    2

    Raises:
        SettingError: unknown name or bad value; nothing is changed then.
    """
    rows: list[tuple[Setting, Any]] = []
    for name, value in values.items():
        if name not in SETTINGS:
            raise SettingError(f"unknown setting {name!r}; known: {', '.join(sorted(SETTINGS))}")
        rows.append((SETTINGS[name], SETTINGS[name].check(value)))
    before = [(row, row.value) for row, _ in rows]
    for row, value in rows:
        row._value = value
    try:
        yield
    finally:
        for row, value in before:
            row._value = value


class Context:
    """`with Context(DEBUG=2): ...` sets settings for a block; also usable as a decorator.

    Raises:
        SettingError: unknown name or bad value.

    >>> with Context(NOOPT=1):
    ...     NOOPT.value
    1
    """

    def __init__(self, **values: Any) -> None:
        self.values = values
        self._entered: list[Any] = []

    def __enter__(self) -> Context:
        block = scope(**self.values)
        block.__enter__()
        self._entered.append(block)
        return self

    def __exit__(self, *details: Any) -> None:
        self._entered.pop().__exit__(*details)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with Context(**self.values):
                return function(*args, **kwargs)

        return wrapped


def check_all() -> None:
    """Read every setting once so that a bad environment value is refused at the start.

    Raises:
        SettingError: naming the variable and its good values.
    """
    for row in SETTINGS.values():
        _ = row.value
