"""What the output must match: OpenAI's `response_format` and vLLM's `structured_outputs`."""

import json
from typing import Final

import msgspec

from fastgen_runtime.engine.grammar import MAX_GRAMMAR_CHARACTERS
from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.front.generation import invalid
from fastgen_runtime.protocols.raw_json import NOT_GIVEN, is_given, json_object, json_value

MAX_CHOICES: Final = 4096
"""Each is an alternative that a grammar goes through anew for each token."""
_ANY_OBJECT = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')


class JsonSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """strict: the schema is kept either way. name, description: for the client's own use."""

    name: str
    schema: msgspec.Raw = NOT_GIVEN
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """type: text, json_object or json_schema."""

    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One of them is to be given. json: a schema, as an object or as text. grammar: in the Lark
    language of llguidance. choice: the output is one of the texts."""

    json: msgspec.Raw = NOT_GIVEN
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


def grammar_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> tuple[Grammar | None, str]:
    """The grammar, if one is asked for, and the field that did; raises RequestError."""
    from_format = None if response_format is None else _from_format(response_format)
    if structured is None:
        return from_format, "response_format"
    grammar, name = _from_structured(structured)
    if from_format is not None:
        raise invalid("structured_outputs", "contradicts response_format: give one of them")
    return grammar, f"structured_outputs.{name}"


def schema_grammar(schema: bytes | msgspec.Raw, field: str) -> Grammar:
    """schema: JSON, as the client wrote it; raises RequestError."""
    json_object(field, schema)
    return Grammar(GrammarKind.JSON_SCHEMA, bytes(schema).decode())


def _from_format(form: ResponseFormat) -> Grammar | None:
    match form.type:
        case "text" | "json_object" if form.json_schema is not None:
            raise invalid("response_format.json_schema", f"does not go with the type {form.type}")
        case "text":
            return None
        case "json_object":
            return _ANY_OBJECT
        case "json_schema":
            return _from_schema(form.json_schema)
    kinds = "text, json_object or json_schema"
    raise invalid("response_format.type", f"must be {kinds}, not {form.type[:32]!r}")


def _from_schema(given: JsonSchema | None) -> Grammar:
    where = "response_format.json_schema"
    if given is None:
        raise invalid(where, "is missing")
    if not is_given(given.schema):
        raise invalid(f"{where}.schema", "is missing")
    return schema_grammar(given.schema, f"{where}.schema")


def _from_structured(given: StructuredOutputs) -> tuple[Grammar, str]:
    """The grammar, and the name of the one field that is given."""
    grammars = {}
    if is_given(given.json):
        schema, where = bytes(given.json), "structured_outputs.json"
        if schema.startswith(b'"'):
            schema = json_value(where, schema, str).encode()
        grammars["json"] = schema_grammar(schema, where)
    if given.regex is not None:
        grammars["regex"] = Grammar(GrammarKind.REGEX, given.regex)
    if given.choice is not None:
        grammars["choice"] = _from_choice(given.choice)
    if given.grammar is not None:
        grammars["grammar"] = Grammar(GrammarKind.LARK, given.grammar)
    if given.json_object:
        grammars["json_object"] = _ANY_OBJECT
    if len(grammars) != 1:
        raise invalid(
            "structured_outputs",
            "must hold one of json, regex, choice, grammar and json_object, "
            f"and holds {len(grammars)}",
        )
    ((name, grammar),) = grammars.items()
    return grammar, name


def _from_choice(texts: list[str]) -> Grammar:
    where = "structured_outputs.choice"
    if not texts:
        raise invalid(where, "must hold at least one text")
    if len(texts) > MAX_CHOICES:
        raise invalid(
            where,
            f"may hold at most {MAX_CHOICES} texts, not {len(texts)}: "
            "give a regex that covers them, or ask in two steps",
        )
    if sum(map(len, texts)) > MAX_GRAMMAR_CHARACTERS // 2:
        raise invalid(
            where,
            f"may have at most {MAX_GRAMMAR_CHARACTERS // 2} characters in all: "
            "give fewer or shorter texts",
        )
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(json.dumps, texts)))
