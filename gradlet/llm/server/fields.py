"""What requests may ask for: every field is read with its type and bounds, and an error names the field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gradlet.base.errors import ArgumentError
from gradlet.llm.chat import ROLES
from gradlet.llm.sample import Penalties, Sampling

MOST_CHOICES: Final = 16  # of one request, prompts times n
MOST_STOPS: Final = 16
MOST_LIKELY: Final = 20
# Fields that say nothing about the answer.
IGNORED: Final = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls",
)  # fmt: skip
# Fields that may be there with the one value that means nothing.
NEUTRAL: Final[Mapping[str, Any]] = {
    "tools": [], "tool_choice": "none", "functions": [], "function_call": "none", "modalities": ["text"],
    "response_format": {"type": "text"}, "suffix": "", "best_of": 1, "audio": {}, "prediction": {},
}  # fmt: skip


class RequestError(Exception):
    """A request that cannot be answered, as OpenAI's API says it: a status, and an error object."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.status, self.code = message, param, status, code
        self.headers: dict[str, str] = {}

    def content(self) -> dict[str, Any]:
        """The body of the answer."""
        kinds = {401: "authentication_error", 429: "rate_limit_error"}
        kind = kinds.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def parse(raw: bytes) -> Fields:
    """The fields of a body.

    Raises:
        RequestError: not JSON, or not an object.
    """

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        body = json.loads(raw, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error or 'it is nested too deep'}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, and is {_kind(body)}")
    return Fields(body)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def check_text(value: Any, name: str) -> str:
    """A string whose characters can be written.

    Raises:
        RequestError: no string, or half a pair of surrogates.
    """
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a string, and is {_kind(value)}", name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(f"{name} has half a surrogate pair, which is no character", name) from None
    return value


class Fields:
    """The fields of a request; what nobody asked for is an error in the end."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body, self._known = body, {"model", *IGNORED}

    def raw(self, name: str) -> Any:
        """A field as it is; None where it is missing or null."""
        self._known.add(name)
        return self._body.get(name)

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """A number within bounds."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise RequestError(f"{name} must be a number from {low:g} to {high:g}, and is {_shown(value)}", name)
        return float(value)

    def whole(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A whole number within bounds."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if type(value) is not int or not low <= value <= high:
            raise RequestError(f"{name} must be a whole number from {low} to {high}, and is {_shown(value)}", name)
        return value

    def flag(self, name: str) -> bool:
        """True or false; false where it is missing."""
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise RequestError(f"{name} must be true or false, and is {_shown(value)}", name)
        return bool(value)

    def choice(self, name: str, default: str, *values: str) -> str:
        """One of some strings."""
        value = self.raw(name)
        if value is not None and value not in values:
            raise RequestError(f"{name} must be one of {', '.join(values)}, and is {_shown(value)}", name)
        return default if value is None else str(value)

    def done(self) -> None:
        """Refuse fields that are not known, or not supported."""
        for name, value in self._body.items():
            if name in self._known or value is None or (name in NEUTRAL and value == NEUTRAL[name]):
                continue
            known = name in NEUTRAL
            check_text(name, "a field's name")
            raise RequestError(f"{name} is not {'supported' if known else 'a field of this request'}", name)


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


@dataclass(frozen=True)
class Wanted:
    """How answers are made, whatever the prompt."""

    sampling: Sampling
    penalties: Penalties
    limit: int | None
    stops: tuple[str, ...]
    choices: int
    likely: int | None
    streams: bool
    counts_tokens: bool

    def of_choice(self, number: int) -> Sampling:
        """Choices of one request draw differently, whether there is a seed or not."""
        if self.sampling.seed is None or number == 0:
            return self.sampling
        values = {**self.sampling.__dict__, "seed": self.sampling.seed + number}
        return Sampling(**values)


def wanted(fields: Fields, is_chat: bool, vocabulary: int) -> Wanted:
    """The fields that chats and completions share."""
    top = fields.whole("top_logprobs", None, 0, MOST_LIKELY) if is_chat else None
    likely: int | None
    if is_chat:
        likely = (top or 0) if fields.flag("logprobs") else None
        if top is not None and likely is None:
            raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    else:
        likely = fields.whole("logprobs", None, 0, MOST_LIKELY)
    limit = fields.whole("max_tokens", None if is_chat else 16, 1, 2**31)
    if is_chat:
        limit = fields.whole("max_completion_tokens", limit, 1, 2**31)
    streams, options, counts = fields.flag("stream"), fields.raw("stream_options"), False
    if options is not None:
        if not isinstance(options, dict) or not streams:
            raise RequestError("stream_options must be an object, and needs stream to be true", "stream_options")
        inner = Fields(options)
        counts = inner.flag("include_usage")
        inner.flag("include_obfuscation")
        inner.done()
    choices = fields.whole("n", 1, 1, MOST_CHOICES)
    assert choices is not None
    sampling = Sampling(
        temperature=fields.number("temperature", 1.0, 0.0, 2.0),
        top_k=fields.whole("top_k", 0, 0, 2**31) or 0,
        top_p=fields.number("top_p", 1.0, 0.0, 1.0),
        min_p=fields.number("min_p", 0.0, 0.0, 1.0),
        repetition_penalty=fields.number("repetition_penalty", 1.0, 0.01, 100.0),
        seed=_seed(fields),
    )
    penalties = Penalties(
        fields.number("frequency_penalty", 0.0, -2.0, 2.0),
        fields.number("presence_penalty", 0.0, -2.0, 2.0),
        _bias(fields.raw("logit_bias"), vocabulary),
    )
    return Wanted(sampling, penalties, limit, _stops(fields.raw("stop")), choices, likely, streams, counts)


def _seed(fields: Fields) -> int | None:
    seed = fields.whole("seed", None, -(2**63), 2**63 - 1)
    return None if seed is None else seed % 2**64


def _bias(value: Any, vocabulary: int) -> tuple[tuple[int, float], ...]:
    name = "logit_bias"
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object of numbers by token, and is {_kind(value)}", name)
    found = []
    for key, bias in value.items():
        if not key.isascii() or not key.isdigit() or len(key) > 9 or int(key) >= vocabulary:
            raise RequestError(f"{name} has a key that is no token from 0 to {vocabulary - 1}", name)
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise RequestError(f"{name} of token {key} must be a number from -100 to 100", name)
        found.append((int(key), float(bias)))
    return tuple(found)


def _stops(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(texts, list) or len(texts) > MOST_STOPS:
        raise RequestError(f"stop must be a string or an array of at most {MOST_STOPS} strings", "stop")
    found = tuple(check_text(text, f"stop[{number}]") for number, text in enumerate(texts))
    if not all(0 < len(text) <= 1000 for text in found):
        raise RequestError("stop has a text that is empty, or longer than 1000 characters", "stop")
    return found


def messages(value: Any) -> list[dict[str, Any]]:
    """The messages of a chat, each with its content as one text."""
    if not isinstance(value, list) or not value:
        raise RequestError("messages must be an array with at least one message", "messages")
    return [_message(message, f"messages[{number}]") for number, message in enumerate(value)]


def _message(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{name} must be an object, and is {_kind(value)}", name)
    role, content = value.get("role"), value.get("content")
    if role not in ROLES:
        raise RequestError(f"{name}.role must be one of {', '.join(ROLES)}", f"{name}.role")
    if isinstance(content, list):
        return {"role": role, "content": "".join(_part(p, f"{name}.content[{n}]") for n, p in enumerate(content))}
    return {"role": role, "content": check_text(content, f"{name}.content")}


def _part(value: Any, name: str) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise RequestError(f"{name} must be of type text: this model reads nothing else", name)
    return check_text(value.get("text"), f"{name}.text")


def prompts(value: Any, name: str, most: int) -> list[str | list[int]]:
    """Texts, or lists of tokens: one, or an array of them."""
    if isinstance(value, str) or (isinstance(value, list) and value and _is_number(value[0])):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= most:
        raise RequestError(f"{name} must be a string, an array of tokens, or an array of at most {most} of these", name)
    found: list[str | list[int]] = []
    for number, item in enumerate(value):
        where = name if len(value) == 1 else f"{name}[{number}]"
        if isinstance(item, list):
            if not all(map(_is_number, item)):
                raise RequestError(f"{where} must be a string or an array of tokens, which are whole numbers", where)
            found.append(item)
        else:
            found.append(check_text(item, where))
    return found


def _is_number(value: Any) -> bool:
    return type(value) is int


def refuse_tokens(error: ArgumentError, name: str, tokens: Sequence[int], room: int) -> RequestError:
    """The error for a text that the model cannot take."""
    code = "context_length_exceeded" if len(tokens) > room else None
    return RequestError(f"{name}: {error}", name, code=code)
