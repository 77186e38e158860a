"""Whole characters, stop sequences across tokens, and which notes come with which text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradlet.llm.server.text import TextStream, token_text
from gradlet.llm.tokenizer import Tokenizer
from tests.llm.server import parrot


@pytest.fixture(scope="module")
def bytewise() -> Tokenizer:
    return parrot.tokenizer()


def pieces(tokenizer: Tokenizer, text: str, stops: tuple[str, ...] = ()) -> tuple[list[str], list[int], bool]:
    stream, shown, notes = TextStream(tokenizer, stops), [], []
    for number, token in enumerate(text.encode()):
        piece, some = stream.add(token, number)
        shown.append(piece)
        notes += some
        if stream.stopped:
            return shown, notes, True
    piece, some = stream.end()
    return [*shown, piece], notes + some, stream.stopped


@given(
    text=st.text(alphabet="abXé🙂 ", max_size=30),
    stops=st.lists(st.text(alphabet="abXé🙂", min_size=1, max_size=4), max_size=3),
)
def test_no_part_of_a_stop_sequence_is_shown(bytewise: Tokenizer, text: str, stops: list[str]) -> None:
    shown, notes, stopped = pieces(bytewise, text, tuple(stops))
    whole = "".join(shown)
    places = [text.find(stop) for stop in stops if stop in text]
    assert stopped == bool(places)
    if places:
        # The first that is complete ends the text; one that begins earlier may not be complete then.
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        clear = min(text.find(stop) for stop in stops if stop in text and text.find(stop) + len(stop) == min(ends))
        assert whole == text[:clear]
        assert len(notes) <= len(text[:clear].encode())
    else:
        assert whole == text and notes == list(range(len(text.encode())))
    assert notes == sorted(notes)


def test_what_is_held_back_and_for_how_long(bytewise: Tokenizer) -> None:
    assert pieces(bytewise, "aXbXYc", ("XYZ",))[0] == ["a", "", "Xb", "", "", "XYc", ""]
    assert pieces(bytewise, "é", ())[0] == ["", "é", ""]
    assert pieces(bytewise, "aXY", ("XYZ",))[0] == ["a", "", "", "XY"]


def test_half_a_character_at_the_end(bytewise: Tokenizer) -> None:
    stream = TextStream(bytewise)
    assert [stream.add(token)[0] for token in "aé".encode()[:2]] == ["a", ""]
    assert stream.end()[0] == "\ufffd"


def test_bytes_of_tokens(bytewise: Tokenizer) -> None:
    assert token_text(bytewise, ord("a")) == ("a", b"a")
    assert token_text(bytewise, 32) == (" ", b" ")
    assert token_text(bytewise, 0xC3) == ("\ufffd", b"\xc3")
    assert token_text(bytewise, parrot.END) == ("<end>", b"<end>")


def test_pieces_with_spaces_of_sentencepiece() -> None:
    package = pytest.importorskip("tokenizers")
    decoders = package.decoders
    inner = package.Tokenizer(package.models.BPE({"▁a": 0, "b": 1, "<0xC3>": 2, "<0xA9>": 3}, [], byte_fallback=True))
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made = Tokenizer(inner, None, frozenset(), False)
    stream = TextStream(made)
    assert [stream.add(token)[0] for token in (0, 0, 1, 2, 3, 0)] == ["a", " a", "b", "", "é", " a"]
    assert token_text(made, 0) == (" a", b" a") and token_text(made, 2) == ("\ufffd", b"\xc3")
