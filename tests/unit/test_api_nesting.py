"""JSON that is nested deeper than decoders go."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.nesting import KEPT_LEVELS, MOST_LEVELS, is_too_deep, shallow


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


def below(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = value["a"]
    return value


@pytest.mark.parametrize("levels", [1000, 1500, 9000, 100_000])
def test_what_no_decoder_takes_loses_only_its_depth(levels: int) -> None:
    text = f'{{"b": "kept", "a": {nested(levels)}, "c": [1, "]}}{{\\"["], "d": {{"e": 2}}}}'
    with pytest.raises(RecursionError):
        msgspec.json.decode(text)
    cut = shallow(text.encode())
    for decode in (json.loads, msgspec.json.decode):
        found = decode(cut)
        assert below(found, KEPT_LEVELS) is None
        assert (found["b"], found["c"], found["d"]) == ("kept", [1, ']}{"['], {"e": 2})
        assert is_too_deep(found)


def test_one_deep_item_of_a_list_hides_no_other() -> None:
    items = ",".join(f'{{"name": "{name}", "spec": {nested(1500)}}}' for name in "abc")
    found = msgspec.json.decode(shallow(f'{{"items": [{items}]}}'.encode()))
    assert [each["name"] for each in found["items"]] == ["a", "b", "c"]


def test_lists_are_levels_too() -> None:
    assert shallow(b"[" * 2000 + b"]" * 2000) == (b"[" * KEPT_LEVELS + b"null" + b"]" * KEPT_LEVELS)


@pytest.mark.parametrize("levels", [0, 12, MOST_LEVELS, KEPT_LEVELS])
def test_what_decoders_take_is_left_alone(levels: int) -> None:
    text = nested(levels).encode()
    assert shallow(text) is text
    assert is_too_deep(json.loads(text)) == (levels > MOST_LEVELS)


@pytest.mark.parametrize("text", [b"", b"<html>", b'{"half": ', b"\xff"])
def test_what_is_no_json_comes_back_as_it_is(text: bytes) -> None:
    assert shallow(text) is text


@given(
    st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_beside_what_is_too_deep_every_value_stays(value: Any) -> None:
    text = json.dumps([value, json.loads(nested(900))]).encode()
    assert msgspec.json.decode(shallow(text))[0] == value
