"""What a row of an error table says, and the one check of it."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradlet.base.errors import UserError

Row = tuple[Callable[[], Any], type[UserError], str]


def check(row: Row) -> None:
    """The call raises exactly this error, at the line that made the mistake, with a message that says what to do."""
    call, kind, message = row
    with pytest.raises(UserError) as caught:
        call()
    assert type(caught.value) is kind, repr(caught.value)
    assert re.search(message, str(caught.value)), str(caught.value)
    # The line of the call itself is on the stack: nothing was put off until a kernel ran.
    frames = traceback.extract_tb(caught.tb)
    assert any(frame.name == "<lambda>" for frame in frames)
    assert not any(Path(frame.filename).parent.name in ("engine", "schedule", "codegen") for frame in frames), frames
