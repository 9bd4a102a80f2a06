"""What the output must match: OpenAI's `response_format` and vLLM's `structured_outputs`."""

import json

import msgspec

from fastgen_runtime.engine.request import Grammar, GrammarKind
from fastgen_runtime.front.generation import invalid
from fastgen_runtime.protocols.raw_json import NOT_GIVEN, is_given, json_object

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
    grammar = _from_structured(structured)
    if from_format is not None:
        raise invalid("structured_outputs", "contradicts response_format: give one of them")
    return grammar, "structured_outputs"


def schema_grammar(schema: bytes | msgspec.Raw, field: str) -> Grammar:
    """schema: JSON, as the client wrote it; raises RequestError."""
    try:
        json_object(field, schema)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise invalid(field, f"is no JSON: {error}") from error
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


def _from_structured(given: StructuredOutputs) -> Grammar:
    grammars = []
    if is_given(given.json):
        schema = bytes(given.json)
        if schema.startswith(b'"'):
            schema = msgspec.json.decode(schema, type=str).encode()
        grammars.append(schema_grammar(schema, "structured_outputs.json"))
    if given.regex is not None:
        grammars.append(Grammar(GrammarKind.REGEX, given.regex))
    if given.choice is not None:
        if not given.choice:
            raise invalid("structured_outputs.choice", "must hold at least one text")
        choices = " | ".join(map(json.dumps, given.choice))
        grammars.append(Grammar(GrammarKind.LARK, f"start: {choices}"))
    if given.grammar is not None:
        grammars.append(Grammar(GrammarKind.LARK, given.grammar))
    if given.json_object:
        grammars.append(_ANY_OBJECT)
    if len(grammars) != 1:
        raise invalid(
            "structured_outputs",
            "must hold one of json, regex, choice, grammar and json_object, "
            f"and holds {len(grammars)}",
        )
    return grammars[0]
