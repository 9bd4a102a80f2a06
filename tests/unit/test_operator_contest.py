"""A child is put back when others change it, and left for a while when they do not stop."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastgen_operator.contest import (
    REPAIRS,
    WINDOW,
    Repairs,
    contested,
    is_repair,
    last_writer,
)
from fastgen_operator.drift import with_applied_annotation

NOW = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
CHILD = ("Deployment", "chat-replica")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def test_a_few_changes_are_put_back_at_once_and_a_fight_is_not() -> None:
    repairs = Repairs()
    for second in range(REPAIRS):
        assert repairs.wait(CHILD, after(second)) is None
        repairs.note(CHILD, after(second))
    assert repairs.wait(CHILD, after(REPAIRS)) == WINDOW - timedelta(seconds=REPAIRS)
    assert repairs.wait(("Service", "chat"), after(REPAIRS)) is None, "each child for itself"
    assert repairs.wait(CHILD, NOW + WINDOW) is None, "then one more try"


@given(st.lists(st.floats(0, 3600), max_size=60))
def test_no_window_sees_more_repairs_than_allowed(changes: list[float]) -> None:
    repairs, done = Repairs(), []
    for second in sorted(changes):
        if repairs.wait(CHILD, after(second)) is None:
            repairs.note(CHILD, after(second))
            done.append(after(second))
    for begin in done:
        assert sum(begin <= each < begin + WINDOW for each in done) <= REPAIRS


@given(st.lists(st.floats(0, 3600), min_size=REPAIRS, max_size=60))
def test_a_wait_ends_when_it_says(changes: list[float]) -> None:
    repairs = Repairs()
    now = NOW
    for second in sorted(changes):
        now = after(second)
        if repairs.wait(CHILD, now) is None:
            repairs.note(CHILD, now)
    wait = repairs.wait(CHILD, now)
    if wait is not None:
        assert timedelta() < wait <= WINDOW
        assert repairs.wait(CHILD, now + wait) is None


def manifest(**spec: Any) -> Any:
    return with_applied_annotation({"kind": "Service", "metadata": {"name": "chat"}, "spec": spec})


def test_only_what_undoes_others_is_a_repair() -> None:
    edited = manifest(port=80) | {"spec": {"port": 1234}}
    assert is_repair(manifest(port=80), edited)
    assert not is_repair(manifest(port=81), edited), "a change of what is declared"
    assert not is_repair(manifest(port=80), None), "a child that was deleted"
    assert not is_repair(manifest(port=80), {"metadata": {"name": "chat"}}), "one without a mark"


def write(manager: str, minute: int, **more: str) -> dict[str, str]:
    return {"manager": manager, "time": f"2025-01-02T03:{minute:02}:00Z", **more}


@pytest.mark.parametrize(
    ("writes", "manager"),
    [
        ([write("fastgen-operator", 9), write("kubectl-edit", 5), write("scaler", 7)], "scaler"),
        ([write("controller", 9, subresource="status"), write("kubectl", 1)], "kubectl"),
        ([write("scaler", 7, subresource="scale")], "scaler"),
        ([write("fastgen-operator", 9)], ""),
        ([], ""),
    ],
)
def test_the_last_writer_is_found(writes: list[Any], manager: str) -> None:
    assert last_writer({"metadata": {"managedFields": writes}}) == manager


def test_a_fight_is_told_with_the_other_side_and_the_way_out() -> None:
    found = {"metadata": {"managedFields": [write("scaler", 7)]}}
    problem = contested(CHILD, found)
    assert problem.reason == "Contested"
    assert problem.message == (
        "Deployment chat-replica was changed by others, last by scaler, and put back, 5 times "
        "within 10 minutes: it is left as it is for a while; stop whoever changes it"
    )
    assert "last by" not in contested(CHILD, None).message
