"""What a `.gradlet` file says of its program: buffers, launches, signature, state; read from JSON and trusting nothing.

docs/export.md describes the fields one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NamedTuple, NoReturn

from gradlet.base.dtype import DType, dtypes
from gradlet.base.errors import FileFormatError
from gradlet.io.files import short

FORMAT: Final = "gradlet program"
VERSION: Final = 2
MOST_BYTES: Final = 1 << 48  # of all memory: no machine has more, and sums of such numbers stay exact
MOST_ITEMS: Final = 1 << 24  # of any list
MOST_AXES: Final = 64
ROLES: Final = ("input", "output", "weight", "state", "made", "scratch")
SOURCES: Final = ("call", "constant", "draw", "seed")


class Extent(NamedTuple):
    """A size that is known at the call: a sum of variables times factors, and the largest it can be."""

    terms: tuple[tuple[str, int], ...]
    constant: int
    most: int

    def value(self, variables: Mapping[str, int]) -> int:
        """The size for some values of the variables."""
        return self.constant + sum(factor * variables[name] for name, factor in self.terms)

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor}*{name}" for name, factor in self.terms]
        return " + ".join([*parts, str(self.constant)] if self.constant else parts)


Shape = tuple[int | Extent, ...]


def largest(shape: Shape) -> tuple[int, ...]:
    """The shape that the memory has."""
    return tuple([size.most if isinstance(size, Extent) else size for size in shape])


def shape_at(shape: Shape, variables: Mapping[str, int]) -> tuple[int, ...]:
    """The shape at a call."""
    return tuple([size.value(variables) if isinstance(size, Extent) else size for size in shape])


class Variable(NamedTuple):
    """An integer that launches and sizes use.

    `source` says where its value comes from: the caller; a constant, `number`; draw `number` of this call; word
    `number` of the seed, low one first.
    """

    name: str
    low: int
    high: int
    source: str = "call"
    number: int = 0


class Place(NamedTuple):
    """Memory that launches use: `role` says whose it is. Scratch lies at `offset` in one arena that all calls share."""

    dtype: DType
    size: int
    role: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize


class Value(NamedTuple):
    """A named array: an input, an output, a weight or state. `buffer` is -1 where no launch uses it."""

    name: str
    dtype: DType
    shape: Shape
    buffer: int

    def __str__(self) -> str:
        sizes = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.dtype.name}[{sizes}]"


class KernelRow(NamedTuple):
    """A kernel: functions, how threads share it (as in `device/cpu/plan`), and how many words its table has."""

    name: str
    stages: tuple[str, ...]
    entries: str
    segments: tuple[tuple[tuple[int, float], ...], ...]
    words: int


class Launch(NamedTuple):
    """One launch: a kernel, and for each word of its table which buffer, or (counted on) which variable it is."""

    kernel: int
    words: tuple[int, ...]


@dataclass
class Manifest:
    """All of it.

    Attributes:
        name: of the function.
        version: of gradlet that wrote it.
        target: name, triple, processor and features of the machine code.
        variables: what may stand behind the addresses in a table.
        buffers: memory by number.
        arena: bytes of all scratch together.
        inputs: what the caller gives, in the order of the function's parameters.
        outputs: what a call gives back.
        updated: inputs that the program writes.
        result: how the outputs are put together: a number of an output, a plain value, lists and dicts of these.
        weights: constant arrays.
        state: arrays that persist from call to call.
        random: seed, draws taken, draws a call; None where nothing is drawn.
        kernels: all kernels.
        once: launches that run once, when the program is loaded: what depends on weights alone.
        launches: those of each call, in order.
        moves: whole buffers that are copied after the launches: (to, from), in order.
        objects: numbers of the kernels whose code calls a library and so needs a linker: each has a file of its own.
        functions: where each function of the others begins in the image, as `kernel number:name`.
        addresses: words of the image that hold an address: (place, what it is relative to the image's begin).
    """

    name: str
    version: str
    target: dict[str, str]
    variables: list[Variable]
    buffers: list[Place]
    arena: int
    inputs: list[Value]
    outputs: list[Value]
    updated: list[str]
    result: Any
    weights: list[Value]
    state: list[Value]
    random: dict[str, int] | None
    kernels: list[KernelRow]
    once: list[Launch]
    launches: list[Launch]
    moves: list[tuple[int, int]]
    objects: list[int] = field(default_factory=list)
    functions: dict[str, int] = field(default_factory=dict)
    addresses: list[tuple[int, int]] = field(default_factory=list)

    def text(self) -> str:
        """As JSON."""
        names = {v.name: v for v in self.variables}

        def value(row: Value) -> dict[str, Any]:
            shape = [extent(size) if isinstance(size, Extent) else size for size in row.shape]
            return {"name": row.name, "dtype": row.dtype.name, "shape": shape, "buffer": row.buffer}

        def extent(size: Extent) -> dict[str, Any]:
            return {"terms": dict(size.terms), "constant": size.constant, "max": size.most}

        def place(row: Place) -> dict[str, Any]:
            found = {"dtype": row.dtype.name, "size": row.size, "role": row.role}
            return {**found, "offset": row.offset} if row.role == "scratch" else found

        content = {
            "format": FORMAT, "version": VERSION, "gradlet": self.version, "name": self.name, "device": "CPU",
            "target": self.target, "inputs": [value(v) for v in self.inputs],
            "outputs": [value(v) for v in self.outputs], "updated": self.updated, "result": self.result,
            "variables": [v._asdict() for v in names.values()], "random": self.random,
            "weights": [value(v) for v in self.weights], "state": [value(v) for v in self.state],
            "buffers": [place(p) for p in self.buffers], "arena": self.arena,
            "kernels": [k._asdict() for k in self.kernels], "once": self.once, "launches": self.launches,
            "moves": self.moves, "objects": self.objects, "functions": self.functions, "addresses": self.addresses,
        }  # fmt: skip
        rows = [f"{json.dumps(key)}: {json.dumps(row, ensure_ascii=False)}" for key, row in content.items()]
        return "{\n" + ",\n".join(rows) + "\n}\n"


def parse(text: bytes, path: str, code_bytes: int) -> Manifest:
    """A manifest that was checked: every number in it can be used as it is.

    Args:
        text: JSON.
        path: the file, for messages.
        code_bytes: of the image of machine code.

    Raises:
        FileFormatError: naming the file, the field and the problem.
    """
    try:
        content = json.loads(text.decode("utf-8"), parse_constant=lambda name: _fail(path, f"holds {name}"))
    except (ValueError, RecursionError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path}: the manifest is not valid JSON ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        _fail(path, f'is not that of a program: "format" is not "{FORMAT}"')
    version = content.get("version")
    if version != VERSION:
        newer = type(version) is int and version > VERSION
        remedy = "install a newer gradlet" if newer else "export the program again"
        _fail(path, f"has format version {version!r}, this gradlet reads {VERSION}; {remedy}")
    if content.get("device") != "CPU":
        _fail(path, f"is for device {content.get('device')!r}; programs run on the CPU")
    return _Reader(path, content, code_bytes).read()


def _fail(path: str, problem: str) -> NoReturn:
    raise FileFormatError(f"{path}: the manifest {problem}")


class _Reader:
    """Reads one manifest field by field."""

    def __init__(self, path: str, content: dict[str, Any], code_bytes: int) -> None:
        self.path, self.content, self.code_bytes = path, content, code_bytes
        self.variables: list[Variable] = []
        self.buffers: list[Place] = []
        self.kernels: list[KernelRow] = []

    def read(self) -> Manifest:
        """Everything, in an order in which each field can be checked against those before."""
        self.variables = self.rows("variables", self.variable)
        self.unique("variables", [v.name for v in self.variables])
        arena = self.number(self.content.get("arena"), "arena", MOST_BYTES)
        self.buffers = self.rows("buffers", lambda row, where: self.place(row, where, arena))
        if sum(p.nbytes for p in self.buffers) > MOST_BYTES:
            self.fail("buffers", "take more memory than any machine has: sizes overflow")
        self.kernels = self.rows("kernels", self.kernel)
        values = {role: self.rows(role, self.value) for role in ("inputs", "outputs", "weights", "state")}
        for role, found in values.items():
            self.unique(role, [v.name for v in found])
            self.check_roles(role, found)
        kernels = len(self.kernels)
        updated = self.rows("updated", self.word)
        if not {v.name for v in values["inputs"]}.issuperset(updated):
            self.fail("updated", "names no input")
        manifest = Manifest(
            name=self.word(self.content.get("name"), "name"),
            version=self.word(self.content.get("gradlet"), "gradlet"),
            target=self.target(), variables=self.variables, buffers=self.buffers, arena=arena,
            inputs=values["inputs"], outputs=values["outputs"], updated=updated,
            result=self.result(self.content.get("result"), len(values["outputs"])),
            weights=values["weights"], state=values["state"], random=self.random(), kernels=self.kernels,
            once=self.rows("once", self.launch), launches=self.rows("launches", self.launch),
            moves=self.rows("moves", self.move),
            objects=self.rows("objects", lambda row, where: self.number(row, where, kernels - 1)),
            functions=self.functions(), addresses=self.rows("addresses", self.address),
        )  # fmt: skip
        self.check_functions(manifest)
        return manifest

    def fail(self, where: str, problem: str) -> NoReturn:
        """Refuse the file."""
        raise FileFormatError(f"{self.path}: manifest, {where}: {problem}")

    # small pieces
    def number(self, value: Any, where: str, most: int, least: int = 0) -> int:
        """An integer inside limits."""
        if type(value) is not int or not least <= value <= most:
            self.fail(where, f"{short(value)} is no integer from {least} to {most}")
        return int(value)

    def word(self, value: Any, where: str) -> str:
        """A text."""
        if not isinstance(value, str) or len(value) > 4096 or "\0" in value:
            self.fail(where, f"{short(value)} is no text")
        return str(value)

    def items(self, value: Any, where: str, most: int = MOST_ITEMS) -> list[Any]:
        """A list."""
        if not isinstance(value, list) or len(value) > most:
            self.fail(where, f"{short(value)} is no list of at most {most} entries")
        return list(value)

    def rows(self, name: str, read: Callable[[Any, str], Any]) -> list[Any]:
        """A list of the manifest, each entry read."""
        return [read(row, f"{name}[{i}]") for i, row in enumerate(self.items(self.content.get(name), name))]

    def fields(self, row: Any, where: str, *names: str) -> list[Any]:
        """The fields of an object."""
        if not isinstance(row, dict) or not set(names) <= set(row):
            self.fail(where, f"{short(row)} needs the fields {', '.join(names)}")
        return [row[name] for name in names]

    def unique(self, where: str, names: Sequence[str]) -> None:
        """No name stands twice."""
        if len(set(names)) != len(names):
            self.fail(where, f"{next(n for n in names if names.count(n) > 1)!r} stands twice")

    def dtype(self, value: Any, where: str) -> DType:
        """A data type by name."""
        found = next((d for d in dtypes.all() if d.name == value), None)
        if found is None:
            self.fail(where, f"{short(value)} is no data type")
        return found

    # entries
    def target(self) -> dict[str, str]:
        names = ("name", "triple", "cpu", "features")
        found = self.fields(self.content.get("target"), "target", *names)
        return {name: self.word(value, f"target.{name}") for name, value in zip(names, found, strict=True)}

    def variable(self, row: Any, where: str) -> Variable:
        name, low, high, source, number = self.fields(row, where, *Variable._fields)
        most = 1 << 62
        low, high = self.number(low, where, most, -most), self.number(high, where, most, -most)
        if low > high or source not in SOURCES:
            self.fail(where, f"from {low} to {high}, source {short(source)}: not one of {', '.join(SOURCES)}")
        return Variable(self.word(name, where), low, high, source, self.number(number, where, most, -most))

    def place(self, row: Any, where: str, arena: int) -> Place:
        dtype, size, role = self.fields(row, where, "dtype", "size", "role")
        if role not in ROLES:
            self.fail(where, f"role {short(role)} is none of {', '.join(ROLES)}")
        found = Place(self.dtype(dtype, where), self.number(size, f"{where}.size", MOST_BYTES), role)
        if found.nbytes > MOST_BYTES:
            self.fail(where, f"{size} elements of {dtype} overflow")
        if role != "scratch":
            return found
        offset = self.number(row.get("offset"), f"{where}.offset", MOST_BYTES)
        if offset + found.nbytes > arena:
            self.fail(where, f"{found.nbytes} bytes at offset {offset} lie outside of the arena of {arena}")
        if offset % found.dtype.itemsize:
            self.fail(where, f"offset {offset} is no multiple of {found.dtype.itemsize}")
        return found._replace(offset=offset)

    def extent(self, row: Any, where: str) -> int | Extent:
        if not isinstance(row, dict):
            return self.number(row, where, MOST_BYTES)
        terms, constant, most = self.fields(row, where, "terms", "constant", "max")
        if not isinstance(terms, dict) or not terms:
            self.fail(where, f"terms {short(terms)} are no variables with factors")
        known = {v.name: v for v in self.variables}
        high = low = self.number(constant, where, MOST_BYTES, -MOST_BYTES)
        for name, factor in terms.items():
            if name not in known:
                self.fail(where, f"there is no variable {short(name)}")
            ends = [self.number(factor, where, MOST_BYTES, -MOST_BYTES) * end for end in known[name][1:3]]
            low, high = low + min(ends), high + max(ends)
        if low < 0 or high != most:
            self.fail(where, f"goes from {low} to {high}, it says at most {short(most)}")
        return Extent(tuple(terms.items()), constant, self.number(most, where, MOST_BYTES))

    def value(self, row: Any, where: str) -> Value:
        name, dtype, shape, buffer = self.fields(row, where, *Value._fields)
        kind = self.dtype(dtype, where)
        sizes = tuple([self.extent(s, f"{where}.shape") for s in self.items(shape, f"{where}.shape", MOST_AXES)])
        number = self.number(buffer, f"{where}.buffer", len(self.buffers) - 1, -1)
        if number >= 0:
            place = self.buffers[number]
            if place.dtype is not kind:
                self.fail(where, f"is {kind.name}, its buffer {number} is {place.dtype.name}")
            if prod(largest(sizes)) != place.size:
                self.fail(where, f"shape {largest(sizes)} does not have the {place.size} elements of buffer {number}")
        elif prod(largest(sizes)) > MOST_BYTES:
            self.fail(where, f"shape {largest(sizes)} overflows")
        return Value(self.word(name, where), kind, sizes, number)

    def check_roles(self, where: str, values: Sequence[Value]) -> None:
        """Every array lies in a buffer of its kind, and weights and state have all buffers of theirs."""
        role = where.removesuffix("s")
        for value in values:
            if value.buffer >= 0 and self.buffers[value.buffer].role != role:
                self.fail(
                    where, f"{value.name!r} lies in buffer {value.buffer}, which is {self.buffers[value.buffer].role}"
                )
            if value.buffer < 0 and where != "inputs":
                self.fail(where, f"{value.name!r} has no buffer")
        numbers = [value.buffer for value in values if value.buffer >= 0]
        if where != "outputs" and len(set(numbers)) != len(numbers):
            self.fail(where, "two of them lie in one buffer")
        missing = {i for i, place in enumerate(self.buffers) if place.role == role} - set(numbers)
        if missing:
            self.fail(where, f"nothing says what buffer {min(missing)} is")

    def kernel(self, row: Any, where: str) -> KernelRow:
        name, stages, entries, segments, words = self.fields(row, where, *KernelRow._fields)
        names = tuple([self.word(s, f"{where}.stages") for s in self.items(stages, f"{where}.stages")])
        rows = self.items(segments, f"{where}.segments")
        if len(names) != len(rows) or not names:
            self.fail(where, "has another number of stages than of their segments, or none")
        cut = []
        for stage in rows:
            pairs = self.items(stage, f"{where}.segments")
            for pair in pairs:
                if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[1], (int, float)):
                    self.fail(f"{where}.segments", f"{short(pair)} is no number of blocks with its seconds")
                self.number(pair[0], f"{where}.segments", MOST_BYTES)
            cut.append(tuple([(int(blocks), float(seconds)) for blocks, seconds in pairs]))
        return KernelRow(
            self.word(name, where), names, self.word(entries, where), tuple(cut),
            self.number(words, f"{where}.words", MOST_ITEMS),
        )  # fmt: skip

    def launch(self, row: Any, where: str) -> Launch:
        if not isinstance(row, list) or len(row) != 2:
            self.fail(where, f"{short(row)} is no kernel with its words")
        kernel = self.number(row[0], where, len(self.kernels) - 1)
        last = len(self.buffers) + len(self.variables) - 1
        words = tuple([self.number(word, where, last) for word in self.items(row[1], where)])
        if len(words) != self.kernels[kernel].words:
            self.fail(where, f"gives {len(words)} words, kernel {kernel} takes {self.kernels[kernel].words}")
        return Launch(kernel, words)

    def move(self, row: Any, where: str) -> tuple[int, int]:
        if not isinstance(row, list) or len(row) != 2:
            self.fail(where, f"{short(row)} are no two buffers")
        to, source = [self.number(end, where, len(self.buffers) - 1) for end in row]
        if self.buffers[to].nbytes != self.buffers[source].nbytes:
            self.fail(where, f"buffers {to} and {source} differ in size")
        return to, source

    def random(self) -> dict[str, int] | None:
        row = self.content.get("random")
        if row is None:
            if any(v.source in ("draw", "seed") for v in self.variables):
                self.fail("random", "is missing, but variables are drawn")
            return None
        names = ("seed", "draws", "each")
        found = self.fields(row, "random", *names)
        return {name: self.number(v, f"random.{name}", (1 << 64) - 1) for name, v in zip(names, found, strict=True)}

    def result(self, row: Any, outputs: int) -> Any:
        """The structure of a result, checked on the way down."""
        if isinstance(row, dict) and len(row) == 1:
            ((kind, inner),) = row.items()
            if kind == "output":
                return {"output": self.number(inner, "result", outputs - 1)}
            if kind == "value" and (inner is None or isinstance(inner, (bool, int, float, str))):
                return {"value": inner}
            if kind in ("list", "tuple"):
                return {kind: [self.result(item, outputs) for item in self.items(inner, "result")]}
            if kind == "dict" and isinstance(inner, dict):
                return {"dict": {self.word(k, "result"): self.result(v, outputs) for k, v in inner.items()}}
        return self.fail("result", f"{short(row)} is no output, value, list, tuple or dict")

    # code
    def functions(self) -> dict[str, int]:
        row = self.content.get("functions")
        if not isinstance(row, dict):
            self.fail("functions", f"{short(row)} does not say where functions begin")
        return {self.word(k, "functions"): self.number(v, "functions", self.code_bytes - 1) for k, v in row.items()}

    def address(self, row: Any, where: str) -> tuple[int, int]:
        if not isinstance(row, list) or len(row) != 2:
            self.fail(where, f"{short(row)} is no place with an offset")
        return self.number(row[0], where, self.code_bytes - 8), self.number(row[1], where, self.code_bytes)

    def check_functions(self, found: Manifest) -> None:
        """The image has every function of every kernel in it."""
        for number, kernel in enumerate(found.kernels):
            for name in kernel.stages:
                if number not in found.objects and f"{number}:{name}" not in found.functions:
                    self.fail("functions", f"function {name!r} of kernel {number} is missing")
