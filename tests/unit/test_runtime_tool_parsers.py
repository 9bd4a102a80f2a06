"""Calls are found in any text, however it is cut; what is no call is not lost."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_runtime.text.tools.format import ModelTools, ToolFormat, find_format
from fastgen_runtime.text.tools.source import Arguments, CallStart, Text, ToolEvent

NAMES = frozenset({"get_weather", "add"})
WEATHER = ("get_weather", {"city": 'Pa"ris\\', "days": [1, {"a": "}"}]})
ADD = ("add", {"x": 1.5, "y": None})
HERMES, LLAMA = ToolFormat.HERMES, ToolFormat.LLAMA
LIST, NAMED = ToolFormat.MISTRAL_LIST, ToolFormat.MISTRAL_NAMED


def call(name: str, arguments: Any, key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def read(form: ToolFormat, pieces: list[str]) -> list[ToolEvent]:
    """What a parser finds, neighbouring pieces of one thing joined."""
    parser = form.parser(NAMES)
    events = [event for piece in pieces for event in parser.push(piece)] + parser.flush()
    joined: list[ToolEvent] = []
    for event in events:
        last = joined[-1] if joined else None
        match event, last:
            case Text(new), Text(old):
                joined[-1] = Text(old + new)
            case Arguments(new), Arguments(old):
                joined[-1] = Arguments(old + new)
            case _:
                joined.append(event)
    return joined


def tell(events: list[ToolEvent]) -> list[Any]:
    """Texts as they are, calls as name and arguments."""
    told: list[Any] = []
    for event in events:
        match event:
            case Text(text):
                told.append(text)
            case CallStart(name):
                told.append((name, None))
            case Arguments(text):
                told[-1] = (told[-1][0], json.loads(text))
    return told


W, A = call(*WEATHER), call(*ADD)
FOUND: list[tuple[ToolFormat, str, list[Any]]] = [
    (HERMES, f"<tool_call>\n{W}\n</tool_call>", [WEATHER]),
    (HERMES, f"\n\n<tool_call>{W}</tool_call>\n<tool_call>\n{A}\n</tool_call>\n", [WEATHER, ADD]),
    (HERMES, f"I look.\n<tool_call>{W}</tool_call> Done.", ["I look.\n", WEATHER, "Done."]),
    (HERMES, f"<tool_call>{W}", [WEATHER]),
    (HERMES, f"<tool_call>{W} and so on", [WEATHER, "and so on"]),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>', [("now", {})]),
    (HERMES, '<tool_call>{"arguments": {"a": 1}, "id": 7, "name": "f"}</tool_call>',
     [("f", {"a": 1})]),
    (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
     [("f", {"a": 1})]),
    (HERMES, f" <tool_call> <tool_call>{A}</tool_call>", [" <tool_call> ", ADD]),
    (LLAMA, call(*WEATHER, "parameters"), [WEATHER]),
    (LLAMA, f"<|python_tag|>{call(*ADD, 'parameters')}; {W}", [ADD, WEATHER]),
    (LLAMA, f" \n{A}\n{W} bye", [ADD, WEATHER, "bye"]),
    (LIST, f"[TOOL_CALLS][{W}, {A}]", [WEATHER, ADD]),
    (LIST, f"Yes: [TOOL_CALLS] [{W}]", ["Yes: ", WEATHER]),
    (LIST, f"[TOOL_CALLS][{W}, oh]", [WEATHER, ", oh]"]),
    (NAMED, f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD[1])}[TOOL_CALLS]add[CALL_ID]a1b2[ARGS]{{}}",
     [ADD, ("add", {})]),
    (NAMED, "[TOOL_CALLS]add{}", [("add", {})]),
]  # fmt: skip
TEXTS: list[tuple[ToolFormat, str]] = [
    (HERMES, "a < b, <tool_> and </tool_call>"),
    (HERMES, "  \n"),
    (HERMES, "<tool_call>"),
    (HERMES, '\n<tool_call> {"name": 5, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arguments": 5}</tool_call>'),
    (HERMES, '<tool_call>{"name": "f", "arg'),
    (HERMES, '<tool_call>{"a": "never closed'),
    (HERMES, "<tool_call>{}</tool_call><tool_call>[1]</tool_call><tool"),
    (LLAMA, '{"name": "Bob", "parameters": {"age": 5}}'),
    (LLAMA, ' {"answer": 42}'),
    (LLAMA, "<|python_tag|>print(1)"),
    (LLAMA, f"The call is {W}"),
    (LIST, "[TOOL_CALLS] none [1]"),
    (LIST, "[TOOL_CALLS][]"),
    (NAMED, "[TOOL_CALLS]add[ARGS]"),
    (NAMED, "[TOOL_CALLS]what is this?"),
]


def id_of(case: Any) -> str:
    return str(case)[:60] if isinstance(case, str) else ""


@pytest.mark.parametrize(("form", "text", "told"), FOUND, ids=id_of)
def test_calls_are_found(form: ToolFormat, text: str, told: list[Any]) -> None:
    assert tell(read(form, [text])) == told
    assert read(form, list(text)) == read(form, [text])


@pytest.mark.parametrize(("form", "text"), TEXTS, ids=id_of)
def test_what_is_no_call_is_text_letter_for_letter(form: ToolFormat, text: str) -> None:
    assert read(form, [text]) == read(form, list(text)) == [Text(text)]


FRAGMENTS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "[", "]",
             "{", "}", ",", ";", " ", "\n", '"', "\\", ":", "name", '"name": "add"', "arguments",
             '"arguments": {', "add", "x", "<tool", W, A, "1.5", "null"]  # fmt: skip


@given(
    form=st.sampled_from(ToolFormat),
    text=st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    data=st.data(),
)
def test_any_cutting_finds_the_same(form: ToolFormat, text: str, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = read(form, [text])
    assert read(form, pieces) == whole
    if not any(isinstance(event, CallStart) for event in whole):
        assert "".join(event.text for event in whole if isinstance(event, Text)) == text


@given(st.text(alphabet="<tool_cal> []{}\n", max_size=40))
def test_text_without_calls_loses_nothing(text: str) -> None:
    for form in ToolFormat:
        assert read(form, [text]) in ([Text(text)], [])


def test_arguments_are_told_as_they_come() -> None:
    parser = HERMES.parser(NAMES)
    assert parser.push('<tool_call>{"name": "add", "argu') == []
    assert parser.push('ments": {"x"') == [CallStart("add"), Arguments('{"x"')]
    assert parser.push(": 1}") == [Arguments(": 1}")]
    assert parser.push("}</tool_call>") == parser.flush() == []


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ tools }}<tool_call>", HERMES),
        ("{% if tools is defined %}[TOOL_CALLS]{% endif %}", LIST),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]{% endif %}", NAMED),
        ("{% if tools %}{\"name\": f, \"parameters\": {% endif %}ipython", LLAMA),
        ("{{ messages }}<tool_call>", None),
        ("{{ tools }}<tool_call><function=x>", None),
        ("{{ tools }}", None),
        ("{{ tools }} {\"tool_name\": x, \"parameters\": y}", None),
        (None, None),
    ],
)  # fmt: skip
def test_a_template_tells_its_format(template: str | None, form: ToolFormat | None) -> None:
    found, problem = find_format(template)
    assert found is form
    assert bool(problem) == (form is None)


def test_ids_of_calls_are_new_and_fit_the_models_templates() -> None:
    for form in ToolFormat:
        first, second = form.new_call_id(), form.new_call_id()
        assert first != second
        if form in (LIST, NAMED):
            assert len(first) == 9
            assert first.isalnum()


def test_marks_that_are_special_tokens_are_shown_to_the_parser() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 6, "<tool_call>": 7}
    special = frozenset({5, 6})
    assert ModelTools(NAMED, "", ids.get, special).shown_token_ids == (5, 6)
    assert ModelTools(HERMES, "", ids.get, special).shown_token_ids == ()
    assert ModelTools(None, "none", ids.get, special).shown_token_ids == ()
