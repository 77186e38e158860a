"""LLVM IR to images: of one kernel or launch, or of several at a time, which are one module for LLVM.

A body that several launches have is compiled once, and linked into the image of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, NamedTuple

from gradlet.base.errors import RenderError
from gradlet.device.common import llvm
from gradlet.device.cpu.image import Piece, image_of, is_supported
from gradlet.render.llvmjoin import Part, imports, joined, section
from gradlet.render.llvmlaunch import BODY, modules
from gradlet.target.target import Target

SHARED_KEPT: Final = 128  # bodies


class _Shared(NamedTuple):
    """Object code of a body, and the name by which modules call it."""

    name: str
    piece: Piece


# By text; the oldest go where there are too many.
shared: Final[dict[tuple[str, Target], _Shared]] = {}
_numbers: Final = count()


def _keep(text: str, target: Target, tag: str, piece: Piece) -> _Shared:
    while len(shared) >= SHARED_KEPT:
        shared.pop(next(iter(shared)), None)
    kept = shared[text, target] = _Shared(f"{tag}.{BODY}", piece)
    return kept


def _body(text: str, target: Target) -> Piece:
    found = shared.get((text, target))
    if found is None:
        found = _keep(text, target, f"b{next(_numbers)}", Piece(llvm.emit_object(text, target)))
    return found.piece


def has_images(target: Target) -> bool:
    """Whether code in several modules, or in one with that of others, becomes an image here."""
    return target.triple.startswith("x86_64") and is_supported()


def assemble(source: str, target: Target) -> bytes:
    """The image of a rendered text, or object code where that is what can be loaded.

    Raises:
        RenderError: LLVM does not accept the text.
    """
    first, others = modules(source)
    code = llvm.emit_object(first, target)
    image = image_of(Piece(code), {name: _body(text, target) for name, text in others.items()})
    if image is None and others:
        raise RenderError("the code of a launch and its bodies does not become one image; please report this")
    return image or code


def assemble_together(sources: Sequence[str], target: Target) -> list[bytes]:
    """What `assemble` has for each of these texts. All that need no linker are one module.

    Raises:
        RenderError: LLVM does not accept some text.
    """
    texts = [modules(source) for source in sources]
    together = [number for number, (first, others) in enumerate(texts) if imports(first) <= others.keys()]
    if not has_images(target):
        together = []
    found = _joined([texts[number] for number in together], target) if len(together) > 1 else []
    images = dict(zip(together, found))
    return [images.get(number) or assemble(source, target) for number, source in enumerate(sources)]


def _joined(texts: Sequence[tuple[str, Mapping[str, str]]], target: Target) -> list[bytes | None]:
    """The images of first modules that call others, which come with them by name."""
    bodies = {text: shared.get((text, target)) for _, others in texts for text in others.values()}
    tags = {text: f"b{next(_numbers)}" for text, known in bodies.items() if known is None}
    parts = [Part(text, tag) for text, tag in tags.items()]
    names = {text: known.name if known is not None else f"{tags[text]}.{BODY}" for text, known in bodies.items()}
    for number, (first, others) in enumerate(texts):
        parts.append(Part(first, f"k{number}", {name: names[text] for name, text in others.items()}))
    code = llvm.emit_object(joined(parts), target)

    def piece(tag: str) -> Piece:
        return Piece(code, section(tag), f"{tag}.")

    made = {
        text: known if known is not None else _keep(text, target, tags[text], piece(tags[text]))
        for text, known in bodies.items()
    }
    return [
        image_of(piece(f"k{number}"), {names[text]: made[text].piece for text in others.values()})
        for number, (_, others) in enumerate(texts)
    ]
