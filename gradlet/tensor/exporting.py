"""How a jitted function is written down; what does it is loaded when it is asked for (`io/program`, `io/csource`)."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any


class Exporting:
    """Methods of a jitted function that write it."""

    def export(self, path: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the function as a file that runs without tracing it: `gradlet run`, `gradlet.io.program.load`.

        It is traced with these arguments, of which tensors give shapes and types, and numbers count as they are. The
        call is undone: weights, state and random numbers stay what they are, and the file begins with them.

        Raises:
            JitError: the function cannot be captured, or does something that a file cannot hold.
            OSError: the file cannot be written.
        """
        import_module("gradlet.io.program").export(self, path, args, kwargs)

    def export_c(
        self,
        folder: str | os.PathLike[str],
        *args: Any,
        name: str | None = None,
        embed: bool | None = None,
        **kwargs: Any,
    ) -> list[Path]:
        """Write the function as C11: a C file, a header, and a file of weights unless they are small (or `embed` says).

        Raises:
            JitError: as for `export`.
            ArgumentError: `name`, which all names in C begin with, is no C identifier.
            OSError: a file cannot be written.
        """
        files: list[Path] = import_module("gradlet.io.csource").export_c(self, folder, args, kwargs, name, embed)
        return files
