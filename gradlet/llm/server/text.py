"""Text from tokens as they come: whole characters only, and never a part of a stop sequence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from gradlet.llm.tokenizer import SPACE, Tokenizer

BROKEN: Final = "\ufffd"  # what the bytes of half a character become


class TextStream:
    """The text of an answer, token by token.

    Text that may be the beginning of a stop sequence is held back until it is clear. Notes that belong to tokens (their
    probabilities) come out together with the first character of their token.

    Attributes:
        stopped: a stop sequence has come; it and what follows are left out.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._tokens: list[int] = []
        # Tokens are decoded together with some before them, so that spaces between them are right.
        self._begin = self._decoded = 0
        self._held = ""
        self._shown = 0  # characters that came out
        self._notes: list[tuple[int, Any]] = []
        self.stopped = False

    def add(self, token: int, note: Any = None) -> tuple[str, list[Any]]:
        """What can be shown now that a token has come: text, and the notes of its tokens."""
        if note is not None:
            self._notes.append((self._shown + len(self._held), note))
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._begin : self._decoded])
        whole = self._tokenizer.decode(self._tokens[self._begin :])
        if whole.endswith(BROKEN) or len(whole) <= len(before):
            return "", []
        self._begin, self._decoded = self._decoded, len(self._tokens)
        return self._show(whole[len(before) :])

    def end(self) -> tuple[str, list[Any]]:
        """What is left when no token comes any more."""
        if self.stopped:
            return "", []
        before = self._tokenizer.decode(self._tokens[self._begin : self._decoded])
        rest = self._tokenizer.decode(self._tokens[self._begin :])[len(before) :]
        text, notes = self._show(rest)
        text, self._held = text + self._held if not self.stopped else text, ""
        if not self.stopped:
            notes += [note for _, note in self._notes]
        self._notes = []
        return text, notes

    def _show(self, new: str) -> tuple[str, list[Any]]:
        text = self._held + new
        found = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if found:
            self.stopped = True
            clear = min(found)
        else:
            clear = len(text) - self._beginning_of_a_stop(text)
        self._held = text[clear:]
        self._shown += clear
        count = next((n for n, (place, _) in enumerate(self._notes) if place >= self._shown), len(self._notes))
        notes = [note for _, note in self._notes[:count]]
        del self._notes[:count]
        return text[:clear], notes

    def _beginning_of_a_stop(self, text: str) -> int:
        """How many characters at the end are the beginning of a stop sequence."""
        most = max(map(len, self._stops), default=1) - 1
        for count in range(min(most, len(text)), 0, -1):
            if any(stop.startswith(text[-count:]) for stop in self._stops):
                return count
        return 0


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write for bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in plain]
    return letters | {chr(256 + number): byte for number, byte in enumerate(others)}


_BYTES: Final = _byte_letters()


def token_text(tokenizer: Tokenizer, token: int) -> tuple[str, bytes]:
    """A token's own text and bytes; those of half a character are no text, and their name stands for it."""
    name = tokenizer.name(token)
    if re.fullmatch(r"<0x[0-9A-F]{2}>", name):
        raw = bytes([int(name[3:5], 16)])
    elif SPACE in name:
        raw = name.replace(SPACE, " ").encode()
    else:
        text = tokenizer.decode([token], special=True)
        if BROKEN not in text or not all(letter in _BYTES for letter in name):
            return text, text.encode()
        raw = bytes(_BYTES[letter] for letter in name)
    return raw.decode(errors="replace"), raw
