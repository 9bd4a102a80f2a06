"""OpenAI's `tools`, `tool_choice` and `parallel_tool_calls`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.front.generation import Tool, invalid
from fastgen_runtime.protocols.raw_json import NOT_GIVEN, is_given, json_object
from fastgen_runtime.text.tools.format import ModelTools, ToolFormat
from fastgen_runtime.text.tools.grammar import call_grammar

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class FunctionField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """parameters: a JSON schema. strict: arguments follow it however the model decides to call."""

    name: str
    description: str | None = None
    parameters: msgspec.Raw = NOT_GIVEN
    strict: bool | None = None


class ToolField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: FunctionField


class NamedFunction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["function"]
    function: NamedFunction


class AllowedTools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class ToolChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """type function: the one function. type allowed_tools: some of the tools."""

    type: Literal["function", "allowed_tools"]
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: all that the prompt shows. callable: those that may be called.

    is_constrained: a grammar sees to it that calls are right; without it the model is free.
    """

    tools: tuple[Tool, ...]
    callable: tuple[Tool, ...]
    must_call: bool
    is_parallel: bool
    is_constrained: bool
    form: ToolFormat
    shown_token_ids: tuple[int, ...]

    @property
    def names(self) -> frozenset[str]:
        """Of the functions that may be called."""
        return frozenset(tool.name for tool in self.callable)


def tool_use(
    given: Sequence[ToolField] | None,
    choice: str | ToolChoice | None,
    parallel: bool | None,
    model: ModelTools,
) -> ToolUse | None:
    """None where no call can come; raises RequestError naming the field."""
    if not given:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "needs tools")
        return None
    tools = tuple(_tool(f"tools[{index}].function", field) for index, field in enumerate(given))
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        raise invalid("tools", "must have different names")
    names, must_call = _chosen(choice, by_name)
    if not names:
        return None
    if model.format is None:
        raise invalid("tools", f"cannot be used: {model.problem}")
    is_named = isinstance(choice, ToolChoice) and choice.type == "function"
    is_strict = any(field.function.strict for field in given)
    is_constrained = must_call or is_strict or parallel is False or len(names) < len(tools)
    return ToolUse(
        tools=tools,
        callable=tuple(by_name[name] for name in names),
        must_call=must_call,
        is_parallel=parallel is not False and not is_named,
        is_constrained=is_constrained,
        form=model.format,
        shown_token_ids=model.shown_token_ids,
    )


def tool_grammar(
    use: ToolUse, answer: Grammar | None, answer_field: str, model: ModelTools
) -> tuple[Grammar | None, str]:
    """What the output must match, and the field that asks for it; raises RequestError.

    answer: what text must match where no tool is called, and the field that asks for that.
    """
    if answer is not None and answer.kind is not GrammarKind.JSON_SCHEMA:
        raise invalid(answer_field, "goes with tools only as a JSON schema")
    if answer is not None and use.form is ToolFormat.LLAMA and not use.must_call:
        raise invalid(answer_field, "does not go with tools: this model writes calls as JSON, too")
    if answer is None and not use.is_constrained:
        return None, "tools"
    text = call_grammar(
        use.form,
        use.callable,
        model.token_id,
        must_call=use.must_call,
        parallel=use.is_parallel,
        answer_schema=answer.text if answer is not None else None,
    )
    return Grammar(GrammarKind.LARK, text), "tools" if answer is None else answer_field


def _chosen(
    choice: str | ToolChoice | None, by_name: dict[str, Tool]
) -> tuple[tuple[str, ...], bool]:
    """The names that may be called, and whether one has to be."""
    match choice:
        case None | "auto" | "required":
            return tuple(by_name), choice == "required"
        case "none":
            return (), False
        case ToolChoice(type="function", function=NamedFunction(name), allowed_tools=None):
            _check_known("tool_choice.function.name", name, by_name)
            return (name,), True
        case ToolChoice(type="allowed_tools", function=None, allowed_tools=AllowedTools() as some):
            names = tuple(dict.fromkeys(tool.function.name for tool in some.tools))
            if not names:
                raise invalid("tool_choice.allowed_tools.tools", "must hold at least one")
            for name in names:
                _check_known("tool_choice.allowed_tools.tools", name, by_name)
            return names, some.mode == "required"
        case ToolChoice():
            raise invalid(f"tool_choice.{choice.type}", "is missing, or not the only one")
    raise invalid("tool_choice", f"must be none, auto, required or an object, not {choice[:32]!r}")


def _check_known(where: str, name: str, by_name: dict[str, Tool]) -> None:
    if name not in by_name:
        raise invalid(where, f"is {name[:64]!r}, and no tool has this name")


def _tool(where: str, field: ToolField) -> Tool:
    function = field.function
    if not _NAME.fullmatch(function.name):
        raise invalid(f"{where}.name", "must be 1 to 64 letters, digits, dots, dashes or _")
    parameters: dict[str, Any] = {}
    if is_given(function.parameters):
        parameters = json_object(f"{where}.parameters", function.parameters)
    return Tool(function.name, function.description or "", parameters)
