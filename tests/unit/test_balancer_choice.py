"""Whose a request is, by the model, a header and the routes of its member."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api.names import Header
from fastgen_api.sharing import Declared
from fastgen_api.spec import parse
from fastgen_balancer.choice import MOST_NAMES, Chosen, Unplaced, choose, named_by_header
from fastgen_balancer.model_list import answer_of
from fastgen_balancer.pick import Refusal
from fastgen_balancer.roster import Roster, roster_of, static_roster
from fastgen_balancer.settings import Settings


def declared(deployment: str, /, served: str | None = None, **balancer: Any) -> Declared:
    model = {"source": "file:///m"} | ({"servedName": served} if served else {})
    spec = parse({"model": model, "balancer": balancer})
    return Declared(deployment, "2026-01-01T00:00:00Z", spec)


def way(deployment: str, /, **match: Any) -> dict[str, Any]:
    return {"match": match, "deployment": deployment}


BATCH = {"name": "X-FastGen-Class", "value": "batch"}
CHAT = declared(
    "chat",
    served="llama",
    routes=[
        way("gone", header=BATCH),
        way("slow", header=BATCH, minPromptTokens=100),
        way("batch", header=BATCH),
        way("long", minPromptTokens=1000),
    ],
)
OTHERS = [declared("batch"), declared("long", routes=[way("chat", minPromptTokens=1)])]
OWN = roster_of("chat", [CHAT, *OTHERS, declared("slow")])
SHARED = roster_of(
    "x",
    [
        declared("chat", served="llama", name="x", routes=[way("batch", header=BATCH)]),
        declared("code", name="x"),
        *OTHERS,
    ],
)
IS_BATCH = {"x-fastgen-class": "batch"}


@pytest.mark.parametrize(
    ("model", "headers", "tokens", "chosen"),
    [
        ("llama", {}, 5, Chosen("chat", False)),
        (None, {}, 5, Chosen("chat", False)),
        ("", {}, 5, Chosen("chat", False)),
        ("llama", IS_BATCH, 99, Chosen("batch", True)),
        ("", IS_BATCH, 99, Chosen("batch", True)),
        ("llama", IS_BATCH, 100, Chosen("slow", True)),
        ("llama", {"x-fastgen-class": "Batch"}, 99, Chosen("chat", False)),
        ("llama", {}, 999, Chosen("chat", False)),
        ("llama", {}, 1000, Chosen("long", True)),
        # Its replicas say that they do not serve it; no other may.
        ("none", IS_BATCH, 1000, Chosen("chat", False)),
        # A deployment alone is not named by a header.
        ("llama", {Header.MODEL: "batch"}, 5, Chosen("chat", False)),
    ],
)
def test_a_deployment_alone(
    model: str | None, headers: dict[str, str], tokens: int, chosen: Chosen
) -> None:
    assert choose(OWN, model, headers, lambda _: tokens) == chosen


@pytest.mark.parametrize(
    ("model", "headers", "chosen"),
    [
        ("llama", {}, Chosen("chat", True)),
        ("code", {}, Chosen("code", True)),
        ("llama", IS_BATCH, Chosen("batch", True)),
        ("code", IS_BATCH, Chosen("code", True)),
        ("code", {Header.MODEL: "chat"}, Chosen("chat", True)),
        (None, {Header.MODEL: "code"}, Chosen("code", True)),
        ("gpt-4", {Header.MODEL: "chat"} | IS_BATCH, Chosen("batch", True)),
    ],
)
def test_a_member_of_several(model: str | None, headers: dict[str, str], chosen: Chosen) -> None:
    assert choose(SHARED, model, headers, lambda _: 5) == chosen


@pytest.mark.parametrize(
    ("model", "headers", "refusal", "told"),
    [
        # The deployment's name is no model's where the model has another.
        ("chat", {}, Refusal.UNKNOWN_MODEL, "'llama', 'code'"),
        # A route's target is nobody's to name.
        ("batch", {}, Refusal.UNKNOWN_MODEL, "'llama', 'code'"),
        ("llama", {Header.MODEL: "batch"}, Refusal.UNKNOWN_MODEL, "'chat', 'code'"),
        ("llama", {Header.MODEL: "llama"}, Refusal.UNKNOWN_MODEL, "'chat', 'code'"),
        (None, {}, Refusal.MISSING_MODEL, "`model`"),
        ("", {Header.MODEL: ""}, Refusal.MISSING_MODEL, Header.MODEL),
    ],
)
def test_nobodys(model: str | None, headers: dict[str, str], refusal: Refusal, told: str) -> None:
    found = choose(SHARED, model, headers, lambda _: 5)
    assert isinstance(found, Unplaced)
    assert found.refusal is refusal
    assert told in found.message


def test_before_anything_is_known_nobody_is_told_that_a_model_is_unknown() -> None:
    assert choose(Roster(), "llama", {}, lambda _: 5) == Unplaced(Refusal.NO_ENDPOINTS)


def test_the_prompt_is_measured_only_where_its_length_counts() -> None:
    def measure(_: str) -> int:
        raise AssertionError("measured")

    assert choose(SHARED, "llama", IS_BATCH, measure) == Chosen("batch", True)


def test_a_refusal_tells_no_more_than_a_client_can_read() -> None:
    many = static_roster([f"m{number}" for number in range(500)], Settings())
    found = choose(many, "x" * 100_000, {}, lambda _: 5)
    assert isinstance(found, Unplaced)
    assert len(found.message) < 128 + 10 * MOST_NAMES + 200
    assert "…" in found.message


texts = st.text(max_size=5) | st.sampled_from(["llama", "chat", "code", "batch"])


@given(st.none() | texts, st.dictionaries(st.sampled_from([Header.MODEL, *IS_BATCH]), texts),
       st.integers(0, 2000), st.sampled_from([OWN, SHARED]))  # fmt: skip
def test_every_request_goes_where_the_balancer_reaches_or_is_told_why(
    model: str | None, headers: dict[str, str], tokens: int, roster: Roster
) -> None:
    found = choose(roster, model, headers, lambda _: tokens)
    if isinstance(found, Unplaced):
        assert roster.is_shared
        assert found.message
        return
    entry = roster.entry(found.deployment)
    assert entry is not None
    # What no member is for judged by the balancer, since its replicas would refuse the model.
    assert found.judged or entry.is_member
    # What the headers alone tell is true of the whole, but for routes and the model.
    named = named_by_header(roster, headers)
    if named is not None and "x-fastgen-class" not in headers:
        assert found.deployment == named.deployment


def test_the_list_of_models() -> None:
    listed = answer_of(SHARED, "GET", "/v1/models?limit=1")
    assert [each["id"] for each in listed["data"]] == ["llama", "code"]
    assert listed["data"][0]["created"] == 1767225600
    assert answer_of(SHARED, "GET", "/v1/models/code") == listed["data"][1]
    assert isinstance(answer_of(SHARED, "GET", "/v1/models/chat"), Unplaced)
    assert answer_of(SHARED, "POST", "/v1/models") is None
    assert answer_of(SHARED, "GET", "/v1/modelsx") is None
    assert answer_of(OWN, "GET", "/v1/models") is None, "its replicas know more of their model"
    odd = static_roster(["org/name"], Settings())
    assert answer_of(odd, "HEAD", "/v1/models/org%2Fname") == answer_of(
        odd, "GET", "/v1/models/org/name"
    )
