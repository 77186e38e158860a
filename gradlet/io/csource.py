"""A jitted function as C: one C11 file, a header, and a file with weights; no Python, no library but libm.

docs/export.md says how the files are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from gradlet import __version__
from gradlet.base.dtype import DType
from gradlet.base.errors import ArgumentError
from gradlet.device.cpu.target import host_target
from gradlet.engine.execute import base_buffer
from gradlet.io.exported import Exported, exported
from gradlet.io.files import path_text
from gradlet.io.manifest import Extent, Launch, Manifest, Value, largest
from gradlet.io.safetensors import write_file
from gradlet.render import c, cbasics
from gradlet.runtime.buffer import buffer_of
from gradlet.tensor.tensor import Tensor

ALIGN: Final = 64
EMBEDDED: Final = 1 << 16  # bytes of weights and state that become an array unless something else is asked for
MAGIC: Final = b"GRADLETC"
_TYPES: Final = {"float32": "float", "float64": "double", "bool": "uint8_t"}
_KEYWORDS: Final = frozenset({
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern", "float",
    "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed", "sizeof",
    "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while", "self",
    "data", "memcpy", "memory", "NULL", "EOF", "t", "u", "v", "embedded", "once", "bool", "true", "false",
})  # fmt: skip
# What generated code has that a person would not write; nothing that could hide a mistake.
_QUIET: Final = """\
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#endif"""
_STRICT: Final = """\
/* Every operation is rounded by itself, in its own type, as in the kernels that this was made from. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif
#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error "this compiler keeps more digits than the types have; on x86 use -msse2 -mfpmath=sse"
#endif"""


def export_c(
    function: Any, folder: str | os.PathLike[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
    name: str | None = None, embed: bool | None = None,
) -> list[Path]:  # fmt: skip
    """Write a jitted function as C; `function.export_c(folder, *args)` is the same.

    Args:
        function: the function, traced with the arguments in a call that is undone.
        folder: where the files go; it is made if need be.
        args: positional arguments.
        kwargs: named arguments.
        name: what all names in C begin with; the function's own unless given.
        embed: whether weights are an array in the C file; None: where they are small.

    Returns:
        The files: C, header, and weights unless embedded.

    Raises:
        JitError: the function cannot be captured, or does something that C cannot.
        ArgumentError: `name` is no C identifier.
        OSError: a file cannot be written.
    """
    found = exported(function, args, kwargs or {})
    chosen = _identifier(found.manifest.name) if name is None else name
    if not re.fullmatch(r"[A-Za-z]\w*", chosen, re.ASCII) or chosen in _KEYWORDS:
        raise ArgumentError(f"name: {chosen!r} is no C identifier")
    source = _Source(found, chosen, embed)
    target = Path(path_text(folder))
    target.mkdir(parents=True, exist_ok=True)
    files = {f"{chosen}.c": source.code().encode(), f"{chosen}.h": source.header().encode()}
    if not source.embed:
        files[f"{chosen}.bin"] = MAGIC + len(source.data).to_bytes(8, "little") + _hash(source.data) + source.data
    for file, content in files.items():
        write_file(target / file, [content])
    return [target / file for file in files]


def prototype(header: str) -> str:
    """The declaration of `run` in a header."""
    begin = header.index("_run(")
    return header[header.rindex("\nint ", 0, begin) + 1 : header.index(";", begin) + 1]


def _hash(data: bytes) -> bytes:
    """A checksum that C computes in one line: the sum of words of 64 bits, each times the number of its place."""
    import numpy as np

    words = np.frombuffer(data + bytes(-len(data) % 8), "<u8")
    places = np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        total = int((words * places).sum(dtype=np.uint64)) if len(words) else 0
    return total.to_bytes(8, "little")


def _identifier(name: str, taken: frozenset[str] | set[str] = _KEYWORDS) -> str:
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
    found = f"x{found}" if found[0].isdigit() else found
    number, chosen = 1, found
    while chosen in taken or chosen in _KEYWORDS:
        number += 1
        chosen = f"{found}_{number}"
    return chosen


def _kind(dtype: DType) -> str:
    """The type of an element in an interface."""
    if dtype.name in _TYPES:
        return _TYPES[dtype.name]
    return f"uint{8 * dtype.itemsize}_t" if dtype.is_narrow_float else f"{dtype.name}_t"


class _Source:
    """The text of one program."""

    def __init__(self, found: Exported, name: str, embed: bool | None) -> None:
        self.found, self.name = found, name
        self.manifest: Manifest = found.manifest
        self.prefix = name.upper()
        self.places: dict[int, str] = {}  # of buffers that are not the caller's, as expressions
        self.state: list[tuple[Value, int, int]] = []  # with its place in memory, and in the data
        self.data = self._lay_out()
        self.embed = len(self.data) <= EMBEDDED if embed is None else embed
        self.variables = [v for v in self.manifest.variables if v.source == "call"]
        taken: set[str] = set()
        self.names: dict[tuple[str, str], str] = {}
        rows = [("input", v.name) for v in self.manifest.inputs] + [("output", v.name) for v in self.manifest.outputs]
        for row in [*rows, *[("variable", v.name) for v in self.variables]]:
            self.names[row] = _identifier(row[1], taken)
            taken.add(self.names[row])

    def _lay_out(self) -> bytes:
        """Give every buffer of the program a place; returns weights and the first state."""
        data = bytearray()
        end = 0

        def room(nbytes: int) -> int:
            nonlocal end
            begin = end
            end = -(-(end + nbytes) // ALIGN) * ALIGN
            return begin

        def keep(value: Value, tensor: Tensor) -> int:
            data.extend(bytes(-len(data) % ALIGN))
            begin = len(data)
            data.extend(_memory(tensor))
            return begin

        for value in self.manifest.weights:
            self.places[value.buffer] = f"data + {keep(value, self.found.weights[value.name])}"
        for value in self.manifest.state:
            begin, first = room(self.manifest.buffers[value.buffer].nbytes), keep(value, self.found.state[value.name])
            self.places[value.buffer] = f"memory + {begin}"
            self.state.append((value, begin, first))
        arena = room(self.manifest.arena)
        for number, place in enumerate(self.manifest.buffers):
            if place.role == "made":
                self.places[number] = f"memory + {room(place.nbytes)}"
            elif place.role == "scratch":
                self.places[number] = f"memory + {arena + place.offset}"
        target = host_target()
        programs = enumerate(self.found.lowered)
        self.kernels = [c.render(program, target, f"gradlet_kernel{number}") for number, program in programs]
        work = room(max([kernel.work for kernel in self.kernels], default=0))
        self.work, self.memory = f"memory + {work}", end
        data.extend(bytes(-len(data) % ALIGN))
        return bytes(data)

    # the header
    def parameters(self) -> list[tuple[str, str]]:
        """The parameters of `run` behind the program, each with what it is."""
        found = []
        for row in self.manifest.inputs:
            written = row.name in self.manifest.updated
            what = f"{row.dtype.name}{_sizes(row)}{', read and written' if written else ''}"
            found.append((f"{'' if written else 'const '}{_kind(row.dtype)} *{self.names['input', row.name]}", what))
        for row in self.manifest.outputs:
            found.append(
                (f"{_kind(row.dtype)} *{self.names['output', row.name]}", f"result, {row.dtype.name}{_sizes(row)}")
            )
        found += [(f"int64_t {self.names['variable', v.name]}", f"from {v.low} to {v.high}") for v in self.variables]
        return found

    def signature(self) -> str:
        """The head of `run`."""
        listed = "".join(f",\n    {declared}" for declared, _ in self.parameters())
        return f"int {self.name}_run({self.name}_program *self{listed})"

    def header(self) -> str:
        """The header file."""
        name, prefix = self.name, self.prefix
        what = [f" *   {declared}: {text}" for declared, text in self.parameters()]
        state = [f" *   {_comment(value.name)}: {value.dtype.name}{_sizes(value)}" for value, _, _ in self.state]
        data = "it is not used, and may be NULL: the weights are in the C file" if self.embed else f"of {name}.bin"
        return f"""\
/* {name}: made by gradlet {__version__}. One program is used by one thread at a time; several may be used at once. */
#ifndef {prefix}_H
#define {prefix}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

enum {{
  {prefix}_OK = 0,
  {prefix}_NO_MEMORY = 1,  /* {self.memory + (0 if self.embed else len(self.data))} bytes were not to be had */
  {prefix}_BAD_FILE = 2,   /* the file of weights is missing, truncated, damaged, or another program's */
  {prefix}_BAD_SIZE = 3,   /* a size or a position is outside of its limits */
  {prefix}_BAD_POINTER = 4 /* a pointer is NULL */
}};

typedef struct {{
  const unsigned char *data; /* weights, and what state begins with */
  unsigned char *memory;     /* state, and all that a call needs */
  unsigned char *owned;      /* what is given back */
  uint64_t seed, draws;      /* of random numbers */
}} {name}_program;

/* Take memory and read the weights. `path`: {data}. */
int {name}_init({name}_program *self, const char *path);

/* One call. Arrays are dense, the last axis fastest; one whose size varies has memory and strides of the largest size.
{chr(10).join(what) or " *   nothing"}
 */
{self.signature()};

/* State and random numbers as they were exported. */
int {name}_reset({name}_program *self);

/* Where an array of state lies, and how many bytes it has; NULL where there is none of this name. State:
{chr(10).join(state) or " *   none"}
 */
void *{name}_state({name}_program *self, const char *name, size_t *bytes);

/* Give the memory back. */
void {name}_free({name}_program *self);

#ifdef __cplusplus
}}
#endif

#endif
"""

    # the code
    def code(self) -> str:
        """The C file."""
        kernels = [line for kernel in self.kernels for line in kernel.lines]
        formats = dict.fromkeys([dtype for kernel in self.kernels for dtype in kernel.formats])
        helpers = cbasics.functions("\n".join(kernels), host_target(), formats)
        parts = [
            f"/* {self.name}: made by gradlet {__version__}; see {self.name}.h. C11, to be linked with -lm. */",
            f'#include "{self.name}.h"', "",
            "#include <float.h>\n#include <math.h>\n#include <stdbool.h>\n#include <stdio.h>\n#include <stdlib.h>\n"
            "#include <string.h>", "", _QUIET, _STRICT, "", cbasics.HEAD, *helpers, "", *kernels,
            *self.embedded(), *self.once(), *self.init(), *self.others(), *self.run(),
        ]  # fmt: skip
        return "\n".join(parts) + "\n"

    def embedded(self) -> list[str]:
        """The weights as an array."""
        if not self.embed:
            return []
        rows = [self.data[i : i + 24] for i in range(0, len(self.data), 24)]
        lines = [f"  {', '.join(map(str, row))}," for row in rows] or ["  0"]
        return ["static const unsigned char embedded[] = {", *lines, "};", ""]

    def launch(self, launch: Launch, pointers: Mapping[int, str]) -> str:
        """A call of a kernel."""
        buffers = len(self.manifest.buffers)
        slots = [pointers[word] for word in launch.words if word < buffers]
        values = [f"v[{word - buffers}]" for word in launch.words if word >= buffers]
        t = f"unsigned char *const t[] = {{{', '.join(slots) or 'memory'}}};"
        u = f"const int64_t u[] = {{{', '.join(values) or '0'}}};"
        return f"  {{\n    {t}\n    {u}\n    gradlet_kernel{launch.kernel}(t, u, {self.work});\n  }}"

    def opening(self) -> list[str]:
        """Local names for the memory of a program."""
        return [
            "  unsigned char *const data = (unsigned char *)self->data, *const memory = self->memory;",
            "  (void)data, (void)memory;",
        ]  # fmt: skip

    def once(self) -> list[str]:
        """What depends on weights alone."""
        if not self.manifest.once:
            return []
        launches = [self.launch(launch, self.places) for launch in self.manifest.once]
        zeros = f"  const int64_t v[{max(1, len(self.manifest.variables))}] = {{0}};"
        return [
            f"static void once({self.name}_program *self) {{",
            *self.opening(),
            zeros,
            "  (void)v;",
            *launches,
            "}",
            "",
        ]

    def init(self) -> list[str]:
        """Memory and weights."""
        name, prefix = self.name, self.prefix
        size = f"(size_t){self.memory + ALIGN}" + ("" if self.embed else f" + {len(self.data)}")
        lines = [
            f"int {name}_init({name}_program *self, const char *path) {{",
            f"  if (self == NULL) return {prefix}_BAD_POINTER;",
            "  memset(self, 0, sizeof *self);",
        ]  # fmt: skip
        if not self.embed:
            lines.append(f"  if (path == NULL) return {prefix}_BAD_POINTER;")
        lines += [
            f"  self->owned = (unsigned char *)calloc(1, {size});",
            f"  if (self->owned == NULL) return {prefix}_NO_MEMORY;",
            f"  self->memory = self->owned + ({ALIGN} - (uintptr_t)self->owned % {ALIGN}) % {ALIGN};",
        ]  # fmt: skip
        if self.embed:
            lines += ["  (void)path;", "  self->data = embedded;"]
        else:
            lines += [
                f"  unsigned char *const data = self->memory + {self.memory};",
                "  self->data = data;",
                "  unsigned char head[24];",
                "  u64 count = 0, expected = 0, sum = 0;",
                '  FILE *const file = fopen(path, "rb");',
                "  bool good = file != NULL && fread(head, 1, sizeof head, file) == sizeof head;",
                "  if (good) {",
                "    memcpy(&count, head + 8, 8);",
                "    memcpy(&expected, head + 16, 8);",
                f'    good = memcmp(head, "{MAGIC.decode()}", 8) == 0 && count == {len(self.data)}ull;',
                "  }",
                f"  good = good && fread(data, 1, {len(self.data)}, file) == {len(self.data)} && fgetc(file) == EOF;",
                "  if (file != NULL) fclose(file);",
                f"  for (size_t i = 0; good && i < {len(self.data) // 8}; ++i) {{",
                "    u64 word;",
                "    memcpy(&word, data + 8 * i, 8);",
                "    sum += word * ((u64)(i + 1) * 0x9e3779b97f4a7c15ull);",
                "  }",
                f"  if (!good || sum != expected || sum != {int.from_bytes(_hash(self.data), 'little')}ull) {{",
                f"    {name}_free(self);",
                f"    return {prefix}_BAD_FILE;",
                "  }",
            ]  # fmt: skip
        lines += ["  once(self);"] if self.manifest.once else []
        return [*lines, f"  return {name}_reset(self);", "}", ""]

    def others(self) -> list[str]:
        """Reset, state, free."""
        name, prefix = self.name, self.prefix
        random = self.manifest.random or {"seed": 0, "draws": 0}
        lines = [
            f"int {name}_reset({name}_program *self) {{",
            f"  if (self == NULL || self->memory == NULL) return {prefix}_BAD_POINTER;",
        ]  # fmt: skip
        for value, place, first in self.state:
            if nbytes := self.manifest.buffers[value.buffer].nbytes:
                lines.append(f"  memcpy(self->memory + {place}, self->data + {first}, {nbytes});")
        lines += [f"  self->seed = {random['seed']}ull;", f"  self->draws = {random['draws']}ull;"]
        lines += [
            f"  return {prefix}_OK;",
            "}",
            "",
            f"void *{name}_state({name}_program *self, const char *name, size_t *bytes) {{",
        ]
        for value, place, _ in self.state:
            text = "".join(
                ch if ch.isalnum() or ch in "._[] " else "".join(f"\\{b:03o}" for b in ch.encode()) for ch in value.name
            )
            nbytes = self.manifest.buffers[value.buffer].nbytes
            lines.append(f'  if (strcmp(name, "{text}") == 0) return *bytes = {nbytes}, self->memory + {place};')
        lines += ["  (void)self, (void)name;", "  *bytes = 0;", "  return NULL;", "}", ""]
        lines += [f"void {name}_free({name}_program *self) {{", "  if (self == NULL) return;", "  free(self->owned);"]
        return [*lines, "  memset(self, 0, sizeof *self);", "}", ""]

    def run(self) -> list[str]:
        """One call."""
        manifest, prefix = self.manifest, self.prefix
        lines = [f"{self.signature()} {{", f"  if (self == NULL || self->memory == NULL) return {prefix}_BAD_POINTER;"]
        for variable in self.variables:
            name = self.names["variable", variable.name]
            lines.append(f"  if ({name} < {variable.low} || {name} > {variable.high}) return {prefix}_BAD_SIZE;")
        pointers = dict(self.places)
        copies: list[str] = []
        for role, rows in (("input", manifest.inputs), ("output", manifest.outputs)):
            for row in rows:
                name = self.names[role, row.name]
                if prod(largest(row.shape)):
                    lines.append(f"  if ({name} == NULL) return {prefix}_BAD_POINTER;")
                if row.buffer in pointers:  # two outputs that are one array
                    nbytes = manifest.buffers[row.buffer].nbytes
                    copies += [f"  memcpy({name}, {pointers[row.buffer]}, {nbytes});"] if nbytes else []
                elif row.buffer >= 0:
                    pointers[row.buffer] = f"(unsigned char *){name}"
                else:
                    lines.append(f"  (void){name};")
        lines += self.opening()
        values = [self.value(v.source, v.name, v.number) for v in manifest.variables] or ["0"]
        lines += [f"  const int64_t v[] = {{{', '.join(values)}}};", "  (void)v;"]
        lines += [self.launch(launch, pointers) for launch in manifest.launches]
        for to, source in manifest.moves:
            if nbytes := manifest.buffers[to].nbytes:
                lines.append(f"  memcpy({pointers[to]}, {pointers[source]}, {nbytes});")
        lines += copies
        if manifest.random is not None:
            lines.append(f"  self->draws += {manifest.random['each']};")
        return [*lines, f"  return {prefix}_OK;", "}"]

    def value(self, source: str, name: str, number: int) -> str:
        """What a variable is in a call."""
        if source == "call":
            return self.names["variable", name]
        if source == "draw":
            return f"(int64_t)((self->draws + {number}) & 0xffffffffu)"
        if source == "seed":
            return "(int64_t)(self->seed >> 32)" if number else "(int64_t)(self->seed & 0xffffffffu)"
        return str(number)


def _comment(text: str) -> str:
    """A text that can stand in a comment."""
    return "".join([ch if ch.isascii() and ch.isprintable() else "?" for ch in text]).replace("*/", "* /")


def _sizes(value: Value) -> str:
    """A shape for a comment."""
    return (
        "["
        + ", ".join(f"{size} (at most {size.most})" if isinstance(size, Extent) else str(size) for size in value.shape)
        + "]"
    )


def _memory(tensor: Tensor) -> memoryview:
    dense = tensor.contiguous().realize()
    return buffer_of(base_buffer(dense.uop)).memory()
