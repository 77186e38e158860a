"""Texts joined into one module: LLVM takes it, names do not meet, and what texts share is there once."""

from __future__ import annotations

import re

import pytest

from gradlet.base.errors import RenderError
from gradlet.codegen.launch import SharedBodies, lower_launch
from gradlet.codegen.pipeline import lower
from gradlet.device.common.llvm import binding
from gradlet.render.llvmjoin import Part, imports, joined, section
from gradlet.render.llvmlaunch import BODY, modules, render
from gradlet.schedule.create import create_schedule
from gradlet.target.target import Target
from gradlet.tensor.tensor import Tensor
from tests.codegen import kernels, launches
from tests.render.test_llvmlaunch import AVX2


def parsed(text: str) -> list[str]:
    """The functions that LLVM finds."""
    module = binding().parse_assembly(text)
    module.verify()
    return [function.name for function in module.functions if not function.is_declaration]


def texts(target: Target) -> list[str]:
    return [render(lower(make().sink, target), target) for make in (kernels.matmul, kernels.softmax, kernels.matmul)]


def test_functions_keep_apart_and_share_what_they_declare() -> None:
    found = texts(AVX2)
    whole = joined([Part(text, f"k{number}") for number, text in enumerate(found)])
    names = parsed(whole)
    assert len(names) == len(set(names)) == 3
    assert [name.split(".")[0] for name in names] == ["k0", "k1", "k2"]
    assert all(f'section "{section(f"k{number}")}"' in whole for number in range(3))
    assert whole.count("target triple") == 1
    declared = re.findall(r"^declare .*", whole, re.M)
    assert declared and len(declared) == len(set(declared))
    assert len(re.findall(r"^attributes #", whole, re.M)) == 1
    assert "!" not in whole


def test_annotations_that_hold_loads_in_order_stay() -> None:
    """Without an instruction for products of bytes, code with several sums of them has some."""
    assert not AVX2.dot8
    products = Tensor.empty(64, 256, dtype="uint8").cast("int32") @ Tensor.empty(256, 128, dtype="int8").cast("int32")
    *_, call = create_schedule([products.uop], lambda _: AVX2).calls
    text = render(lower(call.ast, AVX2), AVX2)
    assert text.count("@llvm.codeview.annotation(metadata !0)") > 1
    parts = [Part(one, f"k{number}") for number, one in enumerate([text, *texts(AVX2), text])]
    assert len(parsed(joined(parts))) == len(parts)
    assert "!" not in joined(parts[1:4])


def test_bodies_are_called_by_the_names_of_their_texts() -> None:
    cases = [launches.pack((7, 61)), launches.pack((7, 61, 100)), launches.mixed()]
    shared = SharedBodies([case.sink for case in cases])
    found = [modules(render(lower_launch(case.sink, AVX2, (), shared), AVX2, apart=True)) for case in cases]
    tags = {text: f"b{number}" for number, text in enumerate(dict.fromkeys(t for _, o in found for t in o.values()))}
    assert tags
    assert all(imports(first) == others.keys() for first, others in found)
    parts = [Part(text, tag) for text, tag in tags.items()]
    for number, (first, others) in enumerate(found):
        parts.append(Part(first, f"k{number}", {name: f"{tags[text]}.{BODY}" for name, text in others.items()}))
    whole = joined(parts)
    names = parsed(whole)
    assert len(names) == len(set(names))
    assert {f"{tag}.{BODY}" for tag in tags.values()} <= set(names)
    assert not [line for line in whole.split("\n") if line.startswith("declare") and f".{BODY}(" in line]
    without = joined(parts[len(tags) :])  # bodies of an earlier module are declared
    assert not {f"{tag}.{BODY}" for tag in tags.values()} & set(parsed(without))
    assert without.count(f".{BODY}(ptr noalias") == len(tags)
    assert "_entries" not in whole


def test_a_line_of_another_kind_is_refused() -> None:
    (text, *_) = texts(AVX2)
    with pytest.raises(RenderError, match="no line of a rendered module: module asm"):
        joined([Part(text + 'module asm "nop"\n', "k0")])


def test_functions_of_a_library_are_imports() -> None:
    text = 'target triple = "x"\ndeclare double @exp(double)\ndeclare double @llvm.fabs.f64(double)\n'
    assert imports(text) == {"exp"}
    assert imports(texts(AVX2)[0]) == set()
