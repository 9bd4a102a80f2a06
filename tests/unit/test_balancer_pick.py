"""Picking: what holds for every fleet and every request."""

from dataclasses import replace
from hashlib import blake2b
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from fastgen_balancer.pick import (
    LOAD_BOUND,
    Candidate,
    Pick,
    Refusal,
    Request,
    homes,
    is_within_bound,
    pick,
)

CANDIDATES = st.lists(
    st.builds(
        Candidate,
        name=st.uuids().map(str),
        outstanding_tokens=st.integers(0, 10_000),
        requests=st.integers(0, 8),
        capacity=st.integers(1, 8),
        fresh=st.booleans(),
        weight=st.floats(0.1, 1.0),
    ),
    max_size=8,
    unique_by=lambda c: c.name,
)
WORK = Request(generates=True, tokens=100)


def candidate(name: str, tokens: int = 0, requests: int = 0, fresh: bool = True) -> Candidate:
    return Candidate(name, tokens, requests, capacity=4, fresh=fresh)


def score(affinity: int, name: str) -> int:
    """SplitMix64's finalizer, as published, over the key and the name's own hash."""
    mixed = affinity ^ int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = ((mixed ^ (mixed >> shift)) * factor) % 2**64
    return mixed ^ (mixed >> 31)


@given(st.lists(st.text(max_size=40), min_size=1, max_size=120, unique=True),
       st.integers(0, 2**64 - 1))  # fmt: skip
def test_homes_have_the_highest_scores(names: list[str], affinity: int) -> None:
    found = [each.name for each in homes([candidate(name) for name in names], affinity)]
    assert found == sorted(names, key=lambda name: score(affinity, name), reverse=True)[:2]


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
            first, second = ((c.outstanding_tokens + WORK.tokens) / c.weight for c in chosen)
            assert first <= second
        elif len(chosen) == 2:
            assert (chosen[0].requests + 1) / chosen[0].weight <= (
                (chosen[1].requests + 1) / chosen[1].weight
            )
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


def test_a_new_endpoint_gets_less() -> None:
    """As long as what it holds, measured by its weight, is no less than what the others hold."""
    old = candidate("old", tokens=1000)
    assert (
        pick([old, Candidate("new", 0, 0, 4, True, weight=0.5)], WORK, Random(0)).order[0] == "new"
    )
    assert (
        pick([old, Candidate("new", 0, 0, 4, True, weight=0.05)], WORK, Random(0)).order[0] == "old"
    )


def test_a_full_fleet_fills_a_new_endpoint_too() -> None:
    full = candidate("full", requests=4)
    new = Candidate("new", 5000, 3, 4, fresh=True, weight=0.1)
    assert pick([full, new], WORK, Random(0)) == Pick(("new",))


KEYS = st.integers(0, 2**64 - 1)


def fleet_of(size: int, tokens: int = 0) -> list[Candidate]:
    return [Candidate(f"chat-{i}", tokens, 0, 1000, fresh=True) for i in range(size)]


@given(CANDIDATES, KEYS, st.integers())
def test_affinity_holds_within_the_bound_only(
    candidates: list[Candidate], key: int, seed: int
) -> None:
    """A pick is the key's home within the load bound, or what load alone would have picked."""
    request = Request(generates=True, tokens=100, affinity=key)
    answer = pick(candidates, request, Random(seed))
    open_ = [c for c in candidates if c.has_room]
    if not isinstance(answer, Pick):
        assert not open_
        return
    by_name = {c.name: c for c in open_}
    assert set(answer.order) <= by_name.keys()
    assert len(set(answer.order)) == len(answer.order) == min(2, len(open_))
    allowed = [c.name for c in homes(open_, key) if is_within_bound(c, open_, request)]
    if allowed:
        assert answer.order[0] == allowed[0]
    else:
        rest = [c for c in open_ if c not in homes(open_, key)]
        by_load = pick(rest or open_, WORK, Random(seed))
        assert isinstance(by_load, Pick)
        assert answer.order[0] == by_load.order[0]


@given(CANDIDATES, KEYS, st.randoms(), st.integers(), st.integers())
def test_every_picker_knows_the_same_home(
    candidates: list[Candidate], key: int, shuffler: Random, one: int, other: int
) -> None:
    """Whatever its randomness, and in whatever order it has heard of the endpoints."""
    shuffled = list(candidates)
    shuffler.shuffle(shuffled)
    assert homes(candidates, key) == homes(shuffled, key)
    request = Request(generates=True, tokens=100, affinity=key)
    open_ = [c for c in candidates if c.has_room]
    if any(is_within_bound(c, open_, request) for c in homes(open_, key)):
        here, there = pick(candidates, request, Random(one)), pick(shuffled, request, Random(other))
        assert isinstance(here, Pick)
        assert isinstance(there, Pick)
        assert here.order[0] == there.order[0]


@settings(max_examples=25)
@given(st.integers(2, 12), st.integers(0, 10_000))
def test_one_endpoint_more_moves_its_share_of_the_keys(size: int, seed: int) -> None:
    """Of 600 keys about one in n + 1 moves, all of them to the new one."""
    keys = [Random(seed * 1000 + i).getrandbits(64) for i in range(600)]
    few, more = fleet_of(size), fleet_of(size + 1)
    before = [homes(few, key)[0].name for key in keys]
    after = [homes(more, key)[0].name for key in keys]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) <= {f"chat-{size}"}
    share = 1 / (size + 1)
    assert abs(len(moved) / 600 - share) < 5 * (share * (1 - share) / 600) ** 0.5


@settings(max_examples=25)
@given(st.integers(2, 10), st.integers(0, 2**32), st.integers(1, 5))
def test_one_hot_prompt_overloads_nobody(size: int, seed: int, different: int) -> None:
    """Few keys, many requests: by affinity nobody gets more than the bound and two requests."""
    rng = Random(seed)
    load = dict.fromkeys((c.name for c in fleet_of(size)), 0)
    for _ in range(200):
        fleet = [Candidate(name, n, n // 100, 10_000, fresh=True) for name, n in load.items()]
        request = Request(generates=True, tokens=100, affinity=rng.randrange(different))
        answer = pick(fleet, request, rng)
        assert isinstance(answer, Pick)
        load[answer.order[0]] += 100
        average = sum(load.values()) / size
        if answer.order[0] in {c.name for c in homes(fleet, request.affinity or 0)}:
            assert load[answer.order[0]] <= LOAD_BOUND * average + 200
    assert max(load.values()) <= LOAD_BOUND * sum(load.values()) / size + 200


def test_an_overloaded_home_gives_way() -> None:
    key = 7
    fleet = fleet_of(4, tokens=1000)
    first, second = (c.name for c in homes(fleet, key))
    request = Request(generates=True, tokens=100, affinity=key)

    def picked(loads: dict[str, int]) -> str:
        now = [Candidate(c.name, loads.get(c.name, 1000), 0, 9, fresh=True) for c in fleet]
        answer = pick(now, request, Random(0))
        assert isinstance(answer, Pick)
        return answer.order[0]

    assert picked({}) == first
    assert picked({first: 1400}) == first
    assert picked({first: 3000}) == second
    assert picked({first: 3000, second: 3000}) not in (first, second)
    full = [Candidate(c.name, 0, 9 * (c.name == first), 9, fresh=True) for c in fleet]
    assert pick(full, request, Random(0)).order[0] == second


def test_a_home_that_tells_nothing_is_judged_by_requests() -> None:
    """And its silence does not make the others' tokens meaningless."""
    key = 7
    first, second = (c.name for c in homes(fleet_of(2), key))
    request = Request(generates=True, tokens=100, affinity=key)
    silent = Candidate(first, 10**6, 1, 9, fresh=False)
    assert pick([silent, Candidate(second, 0, 1, 9, True)], request, Random(0)).order[0] == first
    busy = Candidate(first, 0, 5, 9, fresh=False)
    assert pick([busy, Candidate(second, 0, 1, 9, True)], request, Random(0)).order[0] == second


@given(st.integers(), st.none() | KEYS)
def test_nothing_goes_to_an_endpoint_that_has_just_failed_to_answer(
    seed: int, affinity: int | None
) -> None:
    fleet = [replace(each, answers=each.name == "chat-3") for each in fleet_of(5)]
    request = Request(generates=True, tokens=10, affinity=affinity)
    answer = pick(fleet, request, Random(seed))
    assert isinstance(answer, Pick)
    assert answer.order == ("chat-3",)
    gone = [replace(each, answers=False) for each in fleet]
    assert isinstance(pick(gone, request, Random(seed)), Pick), "one may have come back"
