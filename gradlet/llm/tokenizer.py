"""Texts to tokens and back, through the package `tokenizers`: from GGUF metadata or from a tokenizer.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gradlet.base.errors import ArgumentError, FileFormatError, MissingExtraError

_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How a text is cut before pairs are merged, by the names that GGUF files use; others are cut as GPT-2 does.
_CUTS: Final = {
    "llama3": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "llama-bpe": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "llama-v3": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "smaug-bpe": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "dbrx": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "olmo2": rf"{_WORDS}\p{{N}}{{1,3}}{_REST}",
    "qwen2": rf"{_WORDS}\p{{N}}{_REST}",
    "gpt-4o": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
        r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
_SINGLE_DIGITS: Final = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
_NORMAL, _CONTROL, _USER = 1, 3, 4  # of the types of tokens in GGUF files
SPACE: Final = "▁"  # what SentencePiece writes for a space


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("language models need the package tokenizers: pip install 'gradlet[llm]'") from None
    return tokenizers


class Tokenizer:
    """A vocabulary, and which of its tokens begin and end texts.

    Attributes:
        bos: the token in front of texts, or None.
        ends: tokens that end an answer.
        adds_bos: whether `encode` puts `bos` in front.
    """

    def __init__(self, inner: Any, bos: int | None, ends: frozenset[int], adds_bos: bool) -> None:
        self._inner, self.bos, self.ends, self.adds_bos = inner, bos, ends, adds_bos

    def __len__(self) -> int:
        return int(self._inner.get_vocab_size())

    def encode(self, text: str, start: bool = True) -> list[int]:
        """The tokens of a text; names of special tokens become these.

        Args:
            text: any.
            start: put the token in front that begins texts, if the model has one and the text does not begin with it.
        """
        if not isinstance(text, str):
            raise ArgumentError(f"encode: text must be a str, got {type(text).__name__}")
        found: list[int] = self._inner.encode(text, add_special_tokens=False).ids
        if start and self.adds_bos and self.bos is not None and found[:1] != [self.bos]:
            return [self.bos, *found]
        return found

    def decode(self, tokens: Sequence[int], special: bool = False) -> str:
        """The text of some tokens; special ones are left out unless asked for."""
        return str(self._inner.decode(list(tokens), skip_special_tokens=not special))

    def name(self, token: int | None) -> str:
        """A token as it stands in the vocabulary; nothing for none."""
        return "" if token is None else str(self._inner.id_to_token(token) or "")


def from_json(path: str, settings: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a tokenizer.json, with what its tokenizer_config.json or config.json say.

    Raises:
        FileFormatError: the file is damaged.
        MissingExtraError: the package tokenizers is not installed.
    """
    package = _package()
    try:
        inner = package.Tokenizer.from_file(path)
    except Exception as error:  # the package raises plain exceptions
        raise FileFormatError(f"{path}: no tokenizer that can be read ({error})") from None

    def number(key: str) -> int | None:
        token = settings.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        return inner.token_to_id(token) if isinstance(token, str) else token if isinstance(token, int) else None

    bos, end = number("bos_token"), number("eos_token")
    more = settings.get("eos_token_id")
    ends = {end, *(more if isinstance(more, list) else [more])} - {None}
    adds = bool(settings.get("add_bos_token", bos is not None and bos in inner.encode("a").ids[:1]))
    return Tokenizer(inner, bos, _ends(inner, ends), adds)


def from_gguf(metadata: Mapping[str, Any], where: str = "metadata") -> Tokenizer:
    """The tokenizer in the metadata of a GGUF file.

    Raises:
        FileFormatError: a kind that is not known, or a damaged vocabulary.
        MissingExtraError: the package tokenizers is not installed.
    """
    package = _package()
    kind, names = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * len(names or ())
    if not isinstance(names, list) or not names or len(types) != len(names):
        raise FileFormatError(f"{where}: there is no vocabulary, or one whose types of tokens do not fit")
    if kind == "gpt2":
        inner = _byte_pairs(package, metadata, names, where)
    elif kind == "llama":
        inner = _pieces(package, metadata, names, where)
    else:
        raise FileFormatError(f"{where}: tokenizers of kind {kind!r} are not known; known: gpt2, llama")
    odd = [(name, type) for name, type in zip(names, types, strict=True) if type != _NORMAL]
    for wanted, special in ((_CONTROL, True), (_USER, False)):
        # An added token keeps the number that its text has in the vocabulary.
        added = [package.AddedToken(name, special=special, normalized=False) for name, type in odd if type == wanted]
        (inner.add_special_tokens if special else inner.add_tokens)(added)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    ends = {metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot", "eom")} - {None}
    cut = metadata.get("tokenizer.ggml.pre")
    adds = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama" or cut in ("llama3", "llama-bpe", "llama-v3"))
    return Tokenizer(inner, bos, _ends(inner, ends), bool(adds))


def _ends(inner: Any, ends: set[Any]) -> frozenset[int]:
    """Also the names by which chat models end an answer, whatever the file says."""
    usual = [inner.token_to_id(name) for name in ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|return|>")]
    return frozenset({*ends, *usual} - {None})


def _byte_pairs(package: Any, metadata: Mapping[str, Any], names: list[str], where: str) -> Any:
    merges = metadata.get("tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ")) for merge in merges] if isinstance(merges, list) else [()]
    if set(map(len, pairs)) - {2}:
        raise FileFormatError(f"{where}: the tokenizer's merges are missing or damaged")
    vocabulary = dict(zip(names, range(len(names)), strict=True))
    cut = metadata.get("tokenizer.ggml.pre", "default")
    pre = package.pre_tokenizers
    try:
        inner = package.Tokenizer(
            package.models.BPE(vocabulary, pairs, ignore_merges=cut in ("llama3", "llama-bpe", "gpt-4o"))
        )
    except Exception as error:  # the package raises plain exceptions
        raise FileFormatError(f"{where}: the tokenizer's merges do not fit its vocabulary ({error})") from None
    if cut in _CUTS:
        first = pre.Split(package.Regex(_CUTS[cut]), "isolated")
        inner.pre_tokenizer = pre.Sequence([first, pre.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        digits = [pre.Digits(individual_digits=True)] if cut in _SINGLE_DIGITS else []
        inner.pre_tokenizer = pre.Sequence([*digits, pre.ByteLevel(add_prefix_space=False)])
    inner.decoder = package.decoders.ByteLevel()
    return inner


def _pieces(package: Any, metadata: Mapping[str, Any], names: list[str], where: str) -> Any:
    """SentencePiece: which pairs are merged first is what the scores say."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(names):
        raise FileFormatError(f"{where}: the tokenizer's scores are missing")
    vocabulary = {name: number for number, name in enumerate(names)}
    found: list[tuple[float, int, int, tuple[str, str]]] = []
    for name, number in vocabulary.items():
        for place in range(1, len(name)):
            left, right = vocabulary.get(name[:place]), vocabulary.get(name[place:])
            if left is not None and right is not None:
                found.append((-scores[number], left, right, (name[:place], name[place:])))
    found.sort()
    merges = [pair for *_, pair in found]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    model = package.models.BPE(
        vocabulary,
        merges,
        unk_token=names[unknown if 0 <= unknown < len(names) else 0],
        fuse_unk=True,
        byte_fallback=True,
    )
    inner = package.Tokenizer(model)
    prefix = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    normal, decode = package.normalizers, package.decoders
    steps = [normal.Prepend(SPACE)] if prefix else []
    inner.normalizer = normal.Sequence([*steps, normal.Replace(" ", SPACE)])
    strip = [decode.Strip(" ", 1, 0)] if prefix else []
    inner.decoder = decode.Sequence([decode.Replace(SPACE, " "), decode.ByteFallback(), decode.Fuse(), *strip])
    return inner
