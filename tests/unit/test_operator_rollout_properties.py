"""Rollouts in simulated time: they end, keep serving, and do not go to and fro."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_model import RolloutModel

from fastgen_api.spec import Rollout, RolloutStrategy

machines = st.fixed_dictionaries(
    {
        "gpus": st.integers(1, 5),
        "wanted": st.integers(1, 4),
        "load_seconds": st.integers(1, 25),
        "drain_seconds": st.integers(1, 25),
    }
)
edits = st.lists(
    st.tuples(st.integers(1, 70), st.sampled_from(["form-0", "form-1", "form-2"])),
    min_size=1,
    max_size=4,
)


@given(machines, edits)
@settings(max_examples=150)
def test_a_rollout_ends_and_stops_at_most_one_that_serves(
    machine: dict[str, int], edits: list[tuple[int, str]]
) -> None:
    """Whatever room there is, whatever is edited meanwhile."""
    model = RolloutModel(**machine)
    fewest = min(model.wanted, model.gpus) - 1
    for pause, template in edits:
        model.edit(template)
        for _ in range(pause):
            model.step()
            assert len(model.ready) >= fewest
    per_replica = model.load_seconds + model.drain_seconds + 5
    for _ in range(30 + (model.wanted + 2) * per_replica):
        if model.is_done and not model.annotations:
            break
        model.step()
        assert len(model.ready) >= fewest
    assert model.is_done
    assert model.strategy == {"maxSurge": 1, "maxUnavailable": 0}
    assert not model.blocked
    assert model.changes_of_strategy <= 2 * len(edits)


@given(machines)
@settings(max_examples=100)
def test_with_room_a_rollout_surges(machine: dict[str, int]) -> None:
    model = RolloutModel(**machine | {"gpus": machine["wanted"] + 1})
    model.edit("form-1")
    for _ in range((model.wanted + 1) * (model.load_seconds + model.drain_seconds + 30)):
        model.step()
        assert len(model.ready) >= model.wanted
        assert not model.annotations
    assert model.is_done


@pytest.mark.parametrize("wanted", [1, 3])
def test_surge_waits_for_room_however_long_and_says_so(wanted: int) -> None:
    rollout = Rollout(strategy=RolloutStrategy.SURGE)
    model = RolloutModel(wanted, wanted, 10, 10, rollout)
    model.edit("form-1")
    for _ in range(600):
        model.step()
        assert len(model.ready) == wanted
    assert model.blocked == "NoRoomToSurge"
    model.gpus += 1
    for _ in range((wanted + 1) * 60):
        model.step()
        assert len(model.ready) >= wanted
    assert model.is_done
    assert not model.blocked


@given(machines)
@settings(max_examples=100)
def test_in_place_is_done_without_a_detour(machine: dict[str, int]) -> None:
    gpus = max(machine["gpus"], machine["wanted"])
    rollout = Rollout(strategy=RolloutStrategy.IN_PLACE)
    model = RolloutModel(**machine | {"gpus": gpus}, rollout=rollout)
    model.edit("form-1")
    for _ in range((model.wanted + 1) * (model.load_seconds + model.drain_seconds + 5)):
        model.step()
        assert len(model.ready) >= model.wanted - 1
        assert not model.annotations
    assert model.is_done
