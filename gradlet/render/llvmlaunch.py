"""Launches of several kernels as one LLVM IR module: a function a body, a function a stage that walks its segments.

`<name>_stage<k>(ptr table, i64 begin, i64 end)` runs the blocks [begin, end) of the stage, its segments' blocks counted
one after another. A stage of one segment of one body is that body, unless others use it too. `table` is the launch's:
addresses by slot, then variables. What differs between segments stands in two constant arrays: hundreds of segments are
no more code than one. A stage of one segment has no loop over segments. Its bodies read the launch's table where that
has their words in a row.
The addresses of the stages stand in the array `<name>_entries`: a loader looks one name up.

Bodies that other launches have too may stand in modules of their own, the same in all of them, for who links several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from gradlet.base.errors import RenderError
from gradlet.graph.program import AnyProgram, LaunchProgram, LinearProgram
from gradlet.ops.op import BodyUse, LaunchSegment, LaunchStage
from gradlet.render import llvmir
from gradlet.render.llvmir import CPU_ARGUMENTS, Function
from gradlet.render.llvmtext import Value, Writer, integer
from gradlet.target.target import Target

SCRATCH_ALIGN = 64  # bytes; a line of the cache, and the widest vector
_ROW = "{ i64, i32, i32 }"  # of a segment: one past its last block, its shape, where its words begin

Shape = tuple[int, ...]  # the bodies that a segment uses, in order

# Between modules: a comment with the name by which the one before calls the function of the one after.
_APART = "; module of "
BODY = "body"  # the function of such a module


def render(program: AnyProgram, target: Target, apart: bool = False) -> str:
    """LLVM IR of a kernel or of a launch; with `apart` its shared bodies follow as modules of their own.

    Raises:
        RenderError: an operation that the target lacks, nodes out of order, or a launch for a GPU.
    """
    if isinstance(program, LinearProgram):
        return llvmir.render(program, target)
    if target.kind != "cpu":
        raise RenderError(f"launch {program.name} holds several kernels, which {target.name} cannot run in one launch")
    text = _launch_module(program, target, program.shared if apart else ())
    return "".join([text, *[_module_apart(program, number, target) for number in program.shared if apart]])


def modules(source: str) -> tuple[str, dict[str, str]]:
    """The first module of a rendered text, and the others by the name under which that calls their `BODY`."""
    first, *others = source.split(_APART)
    found = [other.partition("\n") for other in others]
    return first, {name: text for name, _, text in found}


def _module_apart(program: LaunchProgram, number: int, target: Target) -> str:
    body = program.programs[number]
    text = body.kept.get(target)
    if text is None:
        function = llvmir.kernel_function(body, target, BODY)
        attributes = [llvmir.attributes_line(body, target, 0, "noinline ")]
        text = body.kept[target] = llvmir.module_text(target, [*function.lines, ""], attributes, [function])
    return f"{_APART}{_body_name(program, number)}\n{text}"


def stage_name(program: LaunchProgram, number: int) -> str:
    """The function of a stage."""
    return f"{program.name}_stage{number}"


def entries_name(program: LaunchProgram) -> str:
    """The array of the addresses of all functions that are called from outside: one a stage."""
    return f"{program.name}_entries"


def _launch_module(program: LaunchProgram, target: Target, apart: Collection[int]) -> str:
    functions: list[Function] = []
    loops = 0
    stages = [_Stage(program, number) for number in range(len(program.stages))]
    whole = _whole_stages(program, stages, apart)
    for number, body in enumerate(program.programs):
        if number in apart:
            functions.append(Function([f"declare void @{_body_name(program, number)}({CPU_ARGUMENTS})"], {}, 0))
            continue
        stage = whole.get(number)
        if stage is None:
            function = llvmir.kernel_function(body, target, _body_name(program, number), "internal ", 1, loops)
        else:
            (use,) = stage.stage[0]
            name = stage_name(program, stage.number)
            function = llvmir.kernel_function(body, target, name, "", 1, loops, stage.words(use))
        loops += function.loops
        functions.append(function)
    rest = [stage for stage in stages if stage not in whole.values()]
    for stage in rest:
        functions.append(stage.function())
    body_lines = [line for stage in rest for line in stage.constants()]
    listed = ", ".join(f"ptr @{stage_name(program, number)}" for number in range(len(stages)))
    body_lines.append(f"@{entries_name(program)} = constant [{len(stages)} x ptr] [{listed}]")
    for function in functions:
        body_lines += ["", *function.lines]
    first = program.programs[0]
    # Stages only call: LLVM need not look for anything better there, which takes it two thirds as long.
    attributes = [
        llvmir.attributes_line(first, target, 0, "noinline optnone "),
        llvmir.attributes_line(first, target, 1, "noinline "),
    ]
    return llvmir.module_text(target, [*body_lines, ""], attributes, functions)


def _whole_stages(program: LaunchProgram, stages: list[_Stage], apart: Collection[int]) -> dict[int, _Stage]:
    """The stages that are one body which nothing else uses, by that body: it is their function."""
    counts = Counter(use.body for stage in program.stages for segment in stage for use in segment)
    alone = {stage.alone[0].body: stage for stage in stages if stage.alone is not None and len(stage.alone) == 1}
    return {body: stage for body, stage in alone.items() if counts[body] == 1 and body not in apart}


def _body_name(program: LaunchProgram, number: int) -> str:
    return f"{program.name}_body{number}"


@dataclass
class _Stage:
    """Renders one stage.

    Segments of one shape (the same bodies in the same order) share code. A segment's words say, for each word of each
    body's own table, which word of the launch's table to copy; a negative one counts back from the end of the table of
    scratch arrays.
    """

    program: LaunchProgram
    number: int

    @property
    def stage(self) -> LaunchStage:
        return self.program.stages[self.number]

    @cached_property
    def shapes(self) -> dict[Shape, list[LaunchSegment]]:
        """The segments by shape, in order."""
        found: dict[Shape, list[LaunchSegment]] = {}
        for segment in self.stage:
            found.setdefault(_shape(segment), []).append(segment)
        return found

    @cached_property
    def scratch(self) -> list[int]:
        """The scratch arrays that the stage uses."""
        return sorted({-1 - slot for segment in self.stage for use in segment for slot in use.slots if slot < 0})

    def words(self, use: BodyUse) -> list[int]:
        """Where each word of a body's table comes from."""
        return [*use.slots, *[len(self.program.params) + number for number in use.variables]]

    @cached_property
    def alone(self) -> LaunchSegment | None:
        """The segment of a stage that has only one."""
        return self.stage[0] if len(self.stage) == 1 else None

    def row_in_table(self, use: BodyUse) -> int | None:
        """Where the words of a use lie in a row in the launch's table; None where they have to be copied."""
        words = self.words(use)
        first = words[0] if words else 0
        in_a_row = self.alone is not None and first >= 0 and words == list(range(first, first + len(words)))
        return first if in_a_row else None

    def copied(self, segment: LaunchSegment) -> list[BodyUse]:
        """The uses that get a table of their own."""
        return [use for use in segment if self.row_in_table(use) is None]

    # the constant arrays
    def constants(self) -> list[str]:
        """Their lines."""
        name = stage_name(self.program, self.number)
        if self.alone is not None:
            own = [word for use in self.copied(self.alone) for word in self.words(use)]
            return [_words_line(name, own)] if own else []
        numbers = {shape: i for i, shape in enumerate(self.shapes)}
        rows: list[str] = []
        words: list[int] = []
        ends = accumulate(work.blocks for work in self.program.work[self.number])
        for segment, end in zip(self.stage, ends, strict=True):
            rows.append(f"{_ROW} {{ i64 {end}, i32 {numbers[_shape(segment)]}, i32 {len(words)} }}")
            words += [word for use in segment for word in self.words(use)]
        return [
            f"@{name}_segments = internal constant [{len(rows)} x {_ROW}] [{', '.join(rows)}]",
            _words_line(name, words),
        ]

    # the function
    def function(self) -> Function:
        """The stage as a function of the module."""
        writer = Writer()
        self._scratch_arrays(writer)
        words = max(sum(map(self._table_size, self.copied(one))) for one, *_ in self.shapes.values())  # of all together
        if words:
            writer.line(f"%tables = alloca [{words} x i64], align 8")
        writer.line("%any = icmp slt i64 %begin, %end")
        if self.alone is not None:
            writer.line("br i1 %any, label %shape0, label %out")
            writer.start("shape0")
            self._fill_tables(writer, self.alone, 0, f"@{stage_name(self.program, self.number)}_words")
            self._calls(writer, self.alone, 0, "%begin", "%end", "out")
        else:
            writer.line("br i1 %any, label %segment, label %out")
            self._segment_head(writer)
            for number, (segment, *_) in enumerate(self.shapes.values()):
                writer.start(f"shape{number}")
                self._fill_tables(writer, segment, number, "%words")
                self._calls(writer, segment, number, "%low", "%high", "next")
            writer.start("next")
            writer.line("%following = add nuw nsw i64 %number, 1")
            writer.line("%more = icmp slt i64 %stop, %end")
            writer.line("br i1 %more, label %segment, label %out")
        writer.start("out")
        writer.line("ret void")
        head = f"define void @{stage_name(self.program, self.number)}({CPU_ARGUMENTS}) #0 {{"
        return Function([head, *writer.lines, "}"], {}, 0)

    def _table_size(self, use: BodyUse) -> int:
        program = self.program.programs[use.body]
        return len(program.params) + len(program.variables)

    def _scratch_arrays(self, writer: Writer) -> None:
        """Memory of the scratch arrays, and the table of their addresses, which negative words count back into."""
        if not self.scratch:
            return
        count = 1 + self.scratch[-1]
        # Words of 64 bits like those of the launch's table, however long an address is.
        writer.line(f"%arrays = alloca [{count} x i64], align 8")
        for array in self.scratch:
            size = self.program.scratch[array]
            writer.line(f"%scratch{array} = alloca [{size} x i8], align {SCRATCH_ALIGN}")
            writer.line(f"%place{array} = getelementptr inbounds i64, ptr %arrays, i64 {count - 1 - array}")
            writer.line(f"store ptr %scratch{array}, ptr %place{array}, align 8")
        writer.line(f"%arrays_end = getelementptr inbounds i64, ptr %arrays, i64 {count}")

    def _segment_head(self, writer: Writer) -> None:
        """The loop over segments: skip those before `begin`, find which blocks of the others to run."""
        name = stage_name(self.program, self.number)
        writer.start("segment")
        for line in (
            "%number = phi i64 [ 0, %entry ], [ %following, %next ]",
            "%start = phi i64 [ 0, %entry ], [ %stop, %next ]",
            f"%row = getelementptr inbounds {_ROW}, ptr @{name}_segments, i64 %number",
            "%stop = load i64, ptr %row, align 8",
            "%overlaps = icmp sgt i64 %stop, %begin",
            "br i1 %overlaps, label %inside, label %next",
        ):
            writer.line(line)
        writer.start("inside")
        for line in (
            "%early = icmp sgt i64 %start, %begin",
            "%from = select i1 %early, i64 %start, i64 %begin",
            "%low = sub i64 %from, %start",
            "%late = icmp slt i64 %stop, %end",
            "%to = select i1 %late, i64 %stop, i64 %end",
            "%high = sub i64 %to, %start",
            f"%offset_at = getelementptr inbounds {_ROW}, ptr %row, i64 0, i32 2",
            "%offset = load i32, ptr %offset_at, align 4",
            f"%words = getelementptr inbounds i32, ptr @{name}_words, i32 %offset",
        ):
            writer.line(line)
        if len(self.shapes) == 1:
            writer.line("br label %shape0")
            return
        writer.line(f"%shape_at = getelementptr inbounds {_ROW}, ptr %row, i64 0, i32 1")
        writer.line("%shape = load i32, ptr %shape_at, align 4")
        cases = " ".join(f"i32 {number}, label %shape{number}" for number in range(1, len(self.shapes)))
        writer.line(f"switch i32 %shape, label %shape0 [ {cases} ]")

    def _fill_tables(self, writer: Writer, segment: LaunchSegment, number: int, words: str) -> None:
        """Copy the words of bodies, one after another, from where the constant array says: a loop."""
        alike = [self.copied(one) for one in self.shapes[_shape(segment)]]
        sources = [word for uses in alike for use in uses for word in self.words(use)]
        count = sum(map(self._table_size, alike[0]))
        if not count:
            return
        near = [word < 0 for word in sources]
        table = Value("%arrays_end" if all(near) else "%table", "ptr")
        position, following = Value(f"%word{number}", "i64"), Value(f"%word{number}_next", "i64")
        before = writer.label
        writer.line(f"br label %fill{number}")
        writer.start(f"fill{number}")
        writer.line(f"{position.text} = phi i64 [ 0, %{before} ], [ {following.text}, %fill{number} ]")
        narrow_at = _element(writer, "i32", Value(words, "ptr"), position)
        narrow = writer.emit("i32", f"load i32, {narrow_at}, align 4")
        source = writer.emit("i64", f"sext {narrow} to i64")
        if any(near) and not all(near):
            is_near = writer.compare("icmp slt", source, integer(0, "i64"))
            table = writer.select(is_near, Value("%arrays_end", "ptr"), table)
        value_at = _element(writer, "i64", table, source)
        value = writer.emit("i64", f"load i64, {value_at}, align 8")
        place = _element(writer, "i64", Value("%tables", "ptr"), position)
        writer.line(f"store {value}, {place}, align 8")
        writer.line(f"{following.text} = add nuw nsw {position}, 1")
        more = writer.compare("icmp slt", following, integer(count, "i64"))
        writer.line(f"br {more}, label %fill{number}, label %filled{number}")
        writer.start(f"filled{number}")

    def _calls(self, writer: Writer, segment: LaunchSegment, number: int, begin: str, end: str, following: str) -> None:
        tables: list[Value] = []
        place = 0
        for use in segment:
            row = self.row_in_table(use)
            base, word = ("%table", row) if row is not None else ("%tables", place)
            tables.append(_element(writer, "i64", Value(base, "ptr"), integer(word, "i64")))
            place += self._table_size(use) if row is None else 0

        def call(position: int, first: str, stop: str) -> None:
            name = _body_name(self.program, segment[position].body)
            writer.line(f"call void @{name}({tables[position]}, i64 {first}, i64 {stop})")

        if len(segment) == 1:
            call(0, begin, end)
            writer.line(f"br label %{following}")
            return
        writer.line(f"br label %block{number}")
        before = writer.label
        writer.start(f"block{number}")
        writer.line(f"%p{number} = phi i64 [ {begin}, %{before} ], [ %p{number}_next, %block{number} ]")
        writer.line(f"%p{number}_next = add nuw nsw i64 %p{number}, 1")
        for position in range(len(segment)):
            call(position, f"%p{number}", f"%p{number}_next")
        writer.line(f"%again{number} = icmp slt i64 %p{number}_next, {end}")
        writer.line(f"br i1 %again{number}, label %block{number}, label %{following}")


def _words_line(name: str, words: list[int]) -> str:
    listed = ", ".join(f"i32 {word}" for word in words)
    return f"@{name}_words = internal constant [{len(words)} x i32] [{listed}]"


def _element(writer: Writer, kind: str, base: Value, number: Value) -> Value:
    return writer.emit("ptr", f"getelementptr inbounds {kind}, {base}, {number}", "a")


def _shape(segment: LaunchSegment) -> Shape:
    return tuple(use.body for use in segment)
