"""The engine's page, held against the code: a field or setting without a row fails here."""

import inspect
import json
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
import typer

from fastgen_api.v1 import inference_pb2
from fastgen_runtime import main
from fastgen_runtime.front.generation import RequestError
from fastgen_runtime.front.generation_check import check
from fastgen_runtime.models.architectures import ARCHITECTURES
from fastgen_runtime.models.model_config import RopeKind
from fastgen_runtime.protocols import openai_completion
from fastgen_runtime.protocols.grpc_generation import generation_of
from fastgen_runtime.protocols.openai_chat import CHAT_NEUTRAL, ChatRequest
from fastgen_runtime.protocols.openai_completion import COMPLETION_NEUTRAL, CompletionRequest
from fastgen_runtime.protocols.openai_fields import WITHOUT_EFFECT
from fastgen_runtime.protocols.openai_message import NEUTRAL_IN_MESSAGES
from fastgen_runtime.protocols.tokenize_api import DetokenizeRequest, TokenizeRequest
from fastgen_runtime.script import load_pipeline
from fastgen_runtime.script_parameters import KNOWN

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (REPOSITORY / "docs" / "engine.md").read_text()
_CODE: Final = re.compile(r"`([^`]+)`")
_CELL_BORDER: Final = re.compile(r"(?<!\\)\|")
_RANGE: Final = re.compile(r"(above )?(-?\d+) to (-?\d+)")


def tables(first: str) -> Iterator[list[str]]:
    """The cells of each row of the tables whose first column has this head."""
    is_inside = False
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in _CELL_BORDER.split(line)[1:-1]]
        if not cells:
            is_inside = False
        elif cells[0] == first:
            is_inside = True
        elif is_inside and set(cells[0]) != {"-"}:
            yield cells


def named(cells: Iterator[str]) -> list[str]:
    return [name for cell in cells for name in _CODE.findall(cell)]


PARAMETERS: Final = list(tables("gRPC"))
OTHERS: Final = list(tables("chat"))


def fields_of_message(message: Any, path: str = "") -> Iterator[str]:
    for field in message.fields:
        below = field.message_type
        if below is None or below.GetOptions().map_entry:
            yield path + field.name
        else:
            many = "[]" if field.is_repeated else ""
            yield from fields_of_message(below, f"{path}{field.name}{many}.")


def fields_of_body(kind: type[msgspec.Struct], path: str = "") -> Iterator[str]:
    hints = get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        below = list(structs_in(hints[field.name]))
        if not below or str in get_args(hints[field.name]):
            yield path + field.encode_name
        for struct, many in below:
            yield from fields_of_body(struct, f"{path}{field.encode_name}{many}.")


def structs_in(hint: Any) -> Iterator[tuple[type[msgspec.Struct], str]]:
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint, ""
    elif get_origin(hint) is list:
        for struct, many in structs_in(get_args(hint)[0]):
            yield struct, f"[]{many}"
    elif get_origin(hint) in (types.UnionType, Union):
        for one in get_args(hint):
            yield from structs_in(one)


@pytest.mark.parametrize(
    ("documented", "there"),
    [
        (
            named(row[0] for row in PARAMETERS),
            fields_of_message(inference_pb2.GenerateRequest.DESCRIPTOR),
        ),
        (
            named(row[1] for row in PARAMETERS) + named(row[0] for row in OTHERS),
            fields_of_body(ChatRequest),
        ),
        (
            named(row[2] for row in PARAMETERS) + named(row[1] for row in OTHERS),
            fields_of_body(CompletionRequest),
        ),
    ],
    ids=["gRPC", "chat", "completions"],
)
def test_every_parameter_has_one_row(documented: list[str], there: Iterator[str]) -> None:
    assert sorted(documented) == sorted(there)


def test_what_is_let_pass() -> None:
    told = {}
    for chat, completions, values in OTHERS:
        (name,) = set(_CODE.findall(f"{chat} {completions}"))
        told[name] = (
            "any"
            if values.startswith("any")
            else [json.loads(one) for one in _CODE.findall(values)]
        )
    neutral = CHAT_NEUTRAL | COMPLETION_NEUTRAL
    expected: dict[str, Any] = {name: list(values) for name, values in neutral.items()}
    expected |= dict.fromkeys(WITHOUT_EFFECT, "any")
    expected |= {f"messages[].{name}": [[]] for name in NEUTRAL_IN_MESSAGES}
    nested = {name for name in told if name.startswith(("response_format.", "messages[].tool"))}
    assert {name: told[name] for name in told if name not in nested} == expected
    assert {told[name] for name in nested} == {"any"}


def numeric() -> Iterator[tuple[str, bool, int, int]]:
    for row in PARAMETERS:
        found = _RANGE.match(row[3])
        names = _CODE.findall(row[0])
        if found and len(names) == 1 and "[]" not in names[0]:
            yield names[0], bool(found[1]), int(found[2]), int(found[3])


@pytest.mark.parametrize(("name", "is_above", "least", "most"), list(numeric()))
def test_ranges(name: str, is_above: bool, least: int, most: int) -> None:
    def refusal(value: float) -> str | None:
        request = inference_pb2.GenerateRequest(text="x")
        *parents, field = name.split(".")
        message: Any = request
        for parent in parents:
            message = getattr(message, parent)
        try:
            if field == "logit_bias":
                message.logit_bias[7] = value
            else:
                setattr(message, field, value)
        except ValueError:
            return "protobuf has no such number"
        generation = generation_of(
            request,
            9,
            request_id="",
            traceparent=None,
            waited_seconds=None,
            model_judged=False,
            is_unwitnessed=False,
            deadline=None,
        )
        try:
            check(generation)
        except RequestError as error:
            return error.message
        return None

    assert refusal(most) is None
    assert refusal(most + 1) is not None
    assert refusal(least - 1) is not None
    assert (refusal(least) is not None) == is_above


def test_ranges_were_found() -> None:
    assert len(list(numeric())) >= 10


def test_the_number_of_prompts() -> None:
    assert f"list of up to {openai_completion.MAX_PROMPTS} texts" in PAGE


def test_bodies_of_tokenize() -> None:
    rows = list(tables("body of"))
    for body, kind in (("/tokenize", TokenizeRequest), ("/detokenize", DetokenizeRequest)):
        told = named(row[1] for row in rows if row[0] == f"`{body}`")
        assert sorted(told) == sorted(kind.__struct_fields__)


def test_architectures_and_rope_scaling() -> None:
    first = "`architectures` in config.json"
    assert named(row[0] for row in tables(first)) == list(ARCHITECTURES)
    kinds = named(row[0] for row in tables("`rope_type`"))
    assert set(kinds) == {*RopeKind, "su"} - {RopeKind.FACTORS}


def test_architecture_tells_every_flag() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text()
    for parameter in typer.main.get_command(main.app).params:
        flags = "|".join([*parameter.opts, *parameter.secondary_opts])
        assert re.search(rf"[\[ ](?:{flags})[\] ]", page), flags


def test_script_mode() -> None:
    settings = named(row[0] for row in tables("setting of `pipeline`"))
    assert settings == [*inspect.signature(load_pipeline).parameters][1:]
    assert sorted(named(row[0] for row in tables("parameter of a call"))) == sorted(KNOWN)


def test_places_in_the_page_that_it_leads_to() -> None:
    heads = re.findall(r"^#+ (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= anchors
    for path in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", PAGE):
        assert (REPOSITORY / "docs" / path).exists(), path
