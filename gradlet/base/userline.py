"""The user's line of code that led here, for error messages."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Final

_PACKAGE: Final = __name__.partition(".")[0]


def user_line() -> str:
    """The innermost line outside of the package as `file.py:12: code`, empty when there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
        frame = frame.f_back
    if frame is None:
        return ""
    path, number = frame.f_code.co_filename, frame.f_lineno
    code = linecache.getline(path, number).strip()
    return f"{path.replace(chr(92), '/').rpartition('/')[2]}:{number}" + (f": {code}" if code else "")
