"""Renders chat messages into a prompt, in a sandbox: templates come with models, not from us."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fastgen_runtime.models.model_config import invalid

_OWN_NAMES: Final = ("self", "strftime_now")


class ChatTemplateError(ValueError):
    """The messages do not fit the model's chat template; the client's own error."""


class _Generation(Extension):
    """`{% generation %}` marks what a model is trained on; in a prompt it changes nothing."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template; `render` has no effect outside its result."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        """special_tokens: `bos_token`, `eos_token`, … as templates name them."""
        try:
            self._template = _environment().from_string(text)
        except jinja2.TemplateError as error:
            raise invalid(f"the model's chat template cannot be compiled: {error}") from error
        self._special_tokens = dict(special_tokens)
        self.own_names = frozenset({*self._template.globals, *special_tokens, *_OWN_NAMES})
        """What a template means by these is not for a request to change."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any] | None = None,
        *,
        now: Callable[[], datetime] = datetime.now,
    ) -> str:
        """The prompt of `messages`; variables: `tools`, `add_generation_prompt` (true where it is
        not given) and what else templates may read.

        Raises ChatTemplateError with the template's own words where it refuses the messages.
        """
        names = {
            **self._special_tokens,
            "strftime_now": lambda form: now().strftime(form),
            "add_generation_prompt": True,
            **(variables or {}),
            "messages": list(messages),
        }
        try:
            return self._template.render(names)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"messages: the model's chat template says: {error}") from error
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            # What a template does with values of a shape that it did not expect.
            raise ChatTemplateError(
                f"messages: they do not fit the model's chat template ({error})"
            ) from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which models were not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
