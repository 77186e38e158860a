"""Messages of a chat as one text, by the template that comes with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from gradlet.base.errors import ArgumentError, FileFormatError, MissingExtraError

# For models that come without a template.
PLAIN: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ROLES: Final = ("system", "user", "assistant", "tool", "developer")


class Template:
    """A chat template, compiled where it cannot reach anything but what it is given."""

    def __init__(self, source: str | None, where: str = "chat template") -> None:
        try:
            from jinja2 import TemplateError
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError:
            raise MissingExtraError("chats need the package jinja2: pip install 'gradlet[llm]'") from None
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._error = TemplateError
        try:
            self._template = environment.from_string(PLAIN if source is None else source)
        except TemplateError as error:
            raise FileFormatError(f"{where}: the template cannot be read ({error})") from None

    def render(self, messages: Sequence[Mapping[str, Any]], answer: bool = True, **names: Any) -> str:
        """The messages as one text, up to where an answer begins if `answer`.

        Raises:
            ArgumentError: messages without role or content, or that the template refuses.
        """
        for number, message in enumerate(messages):
            if not isinstance(message, Mapping) or message.get("role") not in ROLES or "content" not in message:
                raise ArgumentError(f"messages[{number}] needs content and a role, one of {', '.join(ROLES)}")
        try:
            return str(self._template.render(messages=list(messages), add_generation_prompt=answer, **names))
        except (self._error, TypeError, ValueError, OverflowError) as error:
            raise ArgumentError(f"messages: the model's template refuses them: {error}") from None


def _refuse(message: str) -> None:
    raise ValueError(message)
