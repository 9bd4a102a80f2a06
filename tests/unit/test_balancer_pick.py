"""Picking: what holds for every fleet and every request."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from fastgen_balancer.pick import Candidate, Pick, Refusal, Request, pick

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.uuids().map(str),
        outstanding_tokens=st.integers(0, 10_000),
        requests=st.integers(0, 8),
        capacity=st.integers(1, 8),
        fresh=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda c: c.name,
)
WORK = Request(generates=True, tokens=100)


def candidate(name: str, tokens: int = 0, requests: int = 0, fresh: bool = True) -> Candidate:
    return Candidate(name, tokens, requests, capacity=4, fresh=fresh)


@given(CANDIDATES, st.integers())
def test_a_pick_has_room_and_is_the_less_loaded_of_its_two(
    candidates: list[Candidate], seed: int
) -> None:
    answer = pick(candidates, WORK, Random(seed))
    by_name = {c.name: c for c in candidates}
    if isinstance(answer, Pick):
        chosen = [by_name[name] for name in answer.order]
        assert all(c.has_room for c in chosen)
        assert len(chosen) == len({c.name for c in chosen}) in (1, 2)
        if len(chosen) == 2 and all(c.fresh for c in chosen):
            assert chosen[0].outstanding_tokens <= chosen[1].outstanding_tokens
        elif len(chosen) == 2:
            assert chosen[0].requests <= chosen[1].requests
    elif answer is Refusal.FULL:
        assert candidates
        assert not any(c.has_room for c in candidates)
    else:
        assert not candidates


@given(CANDIDATES, st.integers())
def test_a_request_without_cost_goes_anywhere(candidates: list[Candidate], seed: int) -> None:
    answer = pick(candidates, Request(generates=False), Random(seed))
    assert isinstance(answer, Pick) == bool(candidates)


@given(CANDIDATES, st.integers())
def test_the_same_randomness_gives_the_same_pick(candidates: list[Candidate], seed: int) -> None:
    assert pick(candidates, WORK, Random(seed)) == pick(candidates, WORK, Random(seed))


def test_two_choices_spread_the_load() -> None:
    """1,000 requests over 10 replicas: the fullest stays near the mean of 100."""
    load = {f"r{i}": 0 for i in range(10)}
    rng = Random(1)
    for _ in range(1000):
        fleet = [Candidate(name, n, n, 10_000, fresh=True) for name, n in load.items()]
        answer = pick(fleet, WORK, rng)
        assert isinstance(answer, Pick)
        load[answer.order[0]] += 1
    assert max(load.values()) - min(load.values()) <= 8


def test_tokens_decide_among_fresh_and_requests_among_stale() -> None:
    few_tokens = candidate("few-tokens", tokens=10, requests=3)
    few_requests = candidate("few-requests", tokens=9000, requests=1)
    assert pick([few_tokens, few_requests], WORK, Random(0)) == Pick(("few-tokens", "few-requests"))
    stale = candidate("few-tokens", tokens=10, requests=3, fresh=False)
    assert pick([stale, few_requests], WORK, Random(0)) == Pick(("few-requests", "few-tokens"))
