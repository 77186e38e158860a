"""A language model as its file has it: transformer, tokenizer and chat template, and texts that it goes on with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.graph.node import no_gc
from gradlet.io import formats, gguf
from gradlet.io.files import path_text
from gradlet.llm import config as configs
from gradlet.llm import tokenizer as tokenizers
from gradlet.llm import weights
from gradlet.llm.chat import Template
from gradlet.llm.model import Transformer
from gradlet.llm.sample import Sampler, Sampling
from gradlet.llm.tokenizer import Tokenizer

CONTEXT: Final = 4096  # positions for which there is room unless asked otherwise
BROKEN: Final = "\ufffd"  # what the bytes of half a character become


class LanguageModel:
    """A model that goes on with texts. It keeps what it has seen: a text that begins the same is not read again."""

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer, template: str | None, name: str) -> None:
        self.transformer, self.tokenizer, self.name = transformer, tokenizer, name
        self._source = template
        self._template: Template | None = None
        self._seen: list[int] = []

    def generate(
        self, tokens: Sequence[int], sampling: Sampling | None = None, limit: int | None = None
    ) -> Iterator[int]:
        """Tokens that follow some others, until one that ends an answer, `limit` tokens, or no more room.

        Raises:
            ArgumentError: no tokens, or more than there is room for.
        """
        room = self.transformer.positions
        if not 0 < len(tokens) <= room:
            raise ArgumentError(f"generate: {len(tokens)} tokens, and there is room for 1 to {room}")
        sampler = Sampler(sampling or Sampling())
        logits = self._read(tokens)
        made = 0
        while limit is None or made < limit:
            token = sampler.choose(logits, self._seen)
            made += 1
            if token in self.tokenizer.ends:
                return
            yield token
            if len(self._seen) >= room:
                return
            logits = self._next(token)

    def stream(self, text: str, sampling: Sampling | None = None, limit: int | None = None) -> Iterator[str]:
        """The text that follows a text, piece by piece, whole characters each."""
        made: list[int] = []
        shown = ""
        for token in self.generate(self.tokenizer.encode(text), sampling, limit):
            made.append(token)
            # All of it anew, so that spaces between tokens are right; a line ends what has to be looked at.
            whole = self.tokenizer.decode(made)
            if whole.endswith(BROKEN):
                continue
            if len(whole) > len(shown):
                yield whole[len(shown) :]
            shown = whole
            if shown.endswith("\n"):
                made, shown = [], ""

    def chat_text(self, messages: Sequence[Mapping[str, Any]], answer: bool = True) -> str:
        """The messages of a chat as the text that the model goes on with."""
        if self._template is None:
            self._template = Template(self._source, self.name)
        names = {"bos_token": self.tokenizer.name(self.tokenizer.bos), "eos_token": self._end_name()}
        return self._template.render(messages, answer, **names)

    def _end_name(self) -> str:
        return self.tokenizer.name(min(self.tokenizer.ends)) if self.tokenizer.ends else ""

    def _read(self, tokens: Sequence[int]) -> Any:
        """Logits after some tokens; those that were seen last time, from the first on, are not read again."""
        same = 0
        for one, other in zip(self._seen, tokens[:-1]):
            if one != other:
                break
            same += 1
        self._seen = list(tokens[:same])  # what comes after is written over
        logits = self.transformer.step(tokens[same:], same).numpy()
        self._seen = list(tokens)
        return logits

    def _next(self, token: int) -> Any:
        logits = self.transformer.step([token], len(self._seen)).numpy()
        self._seen.append(token)
        return logits


def load(
    path: str | os.PathLike[str], context: int | None = None, slots: int = 1, usual: int = CONTEXT
) -> LanguageModel:
    """A model from a GGUF file, or from a folder as Hugging Face's libraries write it.

    Args:
        path: of the file or folder.
        context: positions to have room for; the model's own limit, but at most `usual`, when None.
        slots: texts to have room for at once (`llm/batch`).
        usual: see there.

    Raises:
        FileFormatError: damaged files, or a family that cannot be run.
        ArgumentError: a context that the model does not have.
        MissingExtraError: a package that is needed is not installed.
        OSError: a file cannot be opened.
    """
    where = path_text(path)
    with no_gc():  # a vocabulary is a hundred thousand objects, none of which is garbage
        if os.path.isdir(where):
            return _from_folder(Path(where), context, slots, usual)
        return _from_file(where, context, slots, usual)


def _from_file(where: str, context: int | None, slots: int, usual: int) -> LanguageModel:
    file = gguf.File(where)
    tokenizer = tokenizers.from_gguf(file.metadata, where)
    found = configs.from_gguf(file.metadata, where)
    template = file.metadata.get("tokenizer.chat_template")
    # What its steps do depends on what the file says of its tensors, and not on what these hold.
    name = repr((found, [entry[1:4] for entry in file.entries.values()], [*file.entries]))
    made = Transformer(found, weights.from_gguf(file, found), _positions(context, usual, found), slots, name)
    return LanguageModel(made, tokenizer, template, str(file.metadata.get("general.name", Path(where).stem)))


def _positions(context: int | None, usual: int, found: configs.Config) -> int:
    if context is None:
        return min(found.context, usual)
    if type(context) is not int or not 2 <= context <= found.context:
        raise ArgumentError(f"context must be from 2 to the model's {found.context} positions, got {context!r}")
    return context


def _from_folder(folder: Path, context: int | None, slots: int, usual: int) -> LanguageModel:
    values = _json(folder / "config.json")
    found = configs.from_hf(values, str(folder / "config.json"))
    settings = {key: values[key] for key in ("eos_token_id",) if key in values}
    if (folder / "tokenizer_config.json").exists():
        settings.update(_json(folder / "tokenizer_config.json"))
    tokenizer = tokenizers.from_json(str(folder / "tokenizer.json"), settings)
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text()
    read = weights.from_hf(formats.load(folder), found, str(folder))
    made = Transformer(found, read, _positions(context, usual, found), slots)
    return LanguageModel(made, tokenizer, template if isinstance(template, str) else None, folder.name)


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: not a JSON object")
    return content
