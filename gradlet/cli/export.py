"""`gradlet export module:function`: a jitted function, with its weights and state, as one file."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from pathlib import Path
from typing import Any, Final

from gradlet.base.errors import ArgumentError

_SPEC: Final = re.compile(r"(\w+)\[([^]]*)\]")
_RANGE: Final = re.compile(r"(?:(\w+):)?(-?\d+)\.\.(-?\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `gradlet export`."""
    parser.add_argument("function", help="module:name of a jitted function; name may be a path, as in model.step")
    parser.add_argument("--out", metavar="FILE", help="the file to write, as step.gradlet")
    parser.add_argument("--c", metavar="FOLDER", help="write C into this folder: a C file, a header, weights")
    parser.add_argument("--name", help="what names in C begin with (default: the function's)")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="[NAME=]VALUE",
        help="an argument, in order or by name: float32[2,3] is a tensor of this form, float32[n:1..64,3] one whose "
        "size is known at the call, x.npy an array of this form, p:0..63 a variable, anything else a number or text",
    )  # fmt: skip
    parser.add_argument("--train", action="store_true", help="with Tensor.training on")


def run(arguments: argparse.Namespace) -> int:
    """Import, trace, write.

    Raises:
        ArgumentError: no such module or function, or an argument that cannot be read.
    """
    from gradlet import Tensor
    from gradlet.io import csource, program

    if arguments.out is None and arguments.c is None:
        raise ArgumentError("nothing is asked for: use --out FILE, or --c FOLDER")
    function = found(arguments.function)
    args, kwargs = example(arguments.arg)
    with Tensor.train(arguments.train):
        if arguments.c is not None:
            files = csource.export_c(function, arguments.c, args, kwargs, arguments.name)
            print("\n".join([f"{file}: {file.stat().st_size:,} bytes" for file in files]))
            print(csource.prototype(files[1].read_text()))
        if arguments.out is None:
            return 0
        program.export(function, arguments.out, args, kwargs)
    loaded = program.load(arguments.out)
    print(f"{arguments.out}: {Path(arguments.out).stat().st_size:,} bytes, {loaded.kernels} kernels")
    print(loaded.signature())
    return 0


def found(text: str) -> Any:
    """What `module:name` names; the current folder is searched too.

    Raises:
        ArgumentError: there is no such thing.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise ArgumentError(f"{text!r} names no function; write module:name, as in model:step")
    sys.path.insert(0, "")
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except ModuleNotFoundError as error:
        raise ArgumentError(f"module {module!r}: {error}; start where it can be imported, or install it") from None
    except AttributeError as error:
        raise ArgumentError(f"{text!r}: {error}") from None
    finally:
        sys.path.remove("")
    return value


def example(texts: list[str]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments that these texts describe, in order and by name.

    Raises:
        ArgumentError: one that cannot be read.
    """
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, mark, rest = text.partition("=")
        if mark and name.isidentifier():
            kwargs[name] = _value(rest)
        else:
            args.append(_value(text))
    return args, kwargs


def _value(text: str) -> Any:
    import numpy as np

    from gradlet import Tensor

    if text.endswith(".npy"):
        return Tensor(np.load(text, allow_pickle=False))
    spec, limits = _SPEC.fullmatch(text), _RANGE.fullmatch(text)
    if spec is not None:
        return _tensor(text, spec[1], [size.strip() for size in spec[2].split(",") if size.strip()])
    if limits is not None:
        return _variable(limits)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"True": True, "False": False, "None": None}.get(text, text)


def _variable(limits: re.Match[str]) -> Any:
    from gradlet import Variable

    if limits[1] is None:
        raise ArgumentError(f"{limits[0]!r}: a variable has a name, as in n:{limits[2]}..{limits[3]}")
    return Variable(limits[1], int(limits[2]), int(limits[3])).bind(int(limits[3]))


def _tensor(text: str, name: str, sizes: list[str]) -> Any:
    from gradlet import Tensor, dtypes

    dtype = next((d for d in dtypes.all() if d.name == name), None)
    limits = [_RANGE.fullmatch(size) for size in sizes]
    if dtype is None or not all(size.isdecimal() or limit for size, limit in zip(sizes, limits, strict=True)):
        raise ArgumentError(f"{text!r} is no tensor; write its type and sizes, as in float32[2,3] or int32[n:1..64]")
    most = [int(limit[3]) if limit else int(size) for size, limit in zip(sizes, limits, strict=True)]
    bound = [slice(_variable(limit)) if limit else slice(None) for limit in limits]
    tensor = Tensor.zeros(*most, dtype=dtype).contiguous().realize()
    return tensor[tuple(bound)] if any(limits) else tensor
