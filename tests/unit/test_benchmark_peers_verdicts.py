"""The acceptance table, from invented rows."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peers.figures import Spread
from peers.settings import CHUNKS, LLAMACPP, OPENVINO, OURS, VLLM, Configuration, configurations
from peers.verdicts import (
    MAIN,
    REFERENCE_CHUNK,
    Outcome,
    Row,
    Verdict,
    best_peer,
    is_beaten,
    judge,
    least_gap,
    unbeaten,
    verdicts,
)
from peers.workloads import Name

OUTPUT, TTFT, TPOT = "output_tokens_per_second", "ttft_p50_seconds", "tpot_p50_seconds"


def row(
    engine: str, label: str, workload: Name, peak: int | None = None, is_other: bool = False,
    **medians: float,
) -> Row:  # fmt: skip
    configuration = Configuration(engine, label, (workload,), is_other_precision=is_other)
    spreads = {name: Spread(value, value, value, 5) for name, value in medians.items()}
    return Row(configuration, workload, spreads, peak)


def stall(engine: str, label: str, ttft: float, gap: float) -> Row:
    return row(engine, label, Name.STALL, long_ttft_seconds=ttft, longest_gap_seconds=gap)


def verdict(rows: Sequence[Row], words: str, workload: str | None = None) -> Verdict:
    (found,) = [each for each in verdicts(rows)
                if words in each.measure and workload in (None, each.workload)]  # fmt: skip
    return found


@pytest.mark.parametrize(
    ("measured", "is_more_better", "expected"),
    [
        (2.1, True, Outcome.AIM), (2.09, True, Outcome.BAR), (1.7, True, Outcome.BAR),
        (1.69, True, Outcome.MISSED), (None, True, Outcome.UNKNOWN),
        (float("nan"), True, Outcome.UNKNOWN), (1.7, False, Outcome.AIM), (2.1, False, Outcome.AIM),
    ],
)  # fmt: skip
def test_a_bar_that_is_touched_is_met(
    measured: float | None, is_more_better: bool, expected: Outcome
) -> None:
    assert judge(measured, 1.7, 2.1, is_more_better) is expected


def test_smaller_is_judged_the_other_way_round() -> None:
    outcomes = [judge(value, 0.65, 0.5, False) for value in (0.5, 0.65, 0.66)]
    assert outcomes == [Outcome.AIM, Outcome.BAR, Outcome.MISSED]


def test_the_best_peer_is_the_best_of_all_engines_and_configurations() -> None:
    rows = [
        row(OURS, MAIN, Name.DECODE, **{OUTPUT: 9000.0}),
        row(OPENVINO, "a", Name.DECODE, **{OUTPUT: 600.0}),
        row(OPENVINO, "b", Name.DECODE, **{OUTPUT: 700.0}),
        row(VLLM, "a", Name.DECODE, **{OUTPUT: 650.0}),
        row(LLAMACPP, "a", Name.MIXTURE, **{OUTPUT: 999.0}),
    ]
    best, worst = (best_peer(rows, Name.DECODE, OUTPUT, flag) for flag in (True, False))
    assert best is not None
    assert worst is not None
    assert (best.configuration.name, worst.configuration.name) == ("openvino b", "openvino a")
    found = verdict(rows, "output tokens")
    assert found.measured == pytest.approx(9000 / 700)
    assert (found.outcome, found.against) == (Outcome.AIM, "openvino b")


def test_what_was_not_measured_is_said_to_be() -> None:
    assert {each.outcome for each in verdicts([])} == {Outcome.UNKNOWN}
    alone = [row(OURS, MAIN, Name.DECODE, **{OUTPUT: 9000.0})]
    assert {each.outcome for each in verdicts(alone)} == {Outcome.UNKNOWN}


def test_other_precisions_of_ours_do_not_stand_for_ours() -> None:
    rows = [
        row(OURS, MAIN, Name.SINGLE, **{TTFT: 1.0, TPOT: 10.0}),
        row(OURS, "int8", Name.SINGLE, is_other=True, **{TTFT: 0.1, TPOT: 6.0}),
        row(OPENVINO, "a", Name.SINGLE, **{TTFT: 1.0, TPOT: 10.0}),
    ]
    assert verdict(rows, "ttft").outcome is Outcome.MISSED
    assert verdict(rows, "tpot p50 ÷ best").measured == 1.0
    int8 = verdict(rows, "int8")
    assert int8.measured == pytest.approx(0.6)
    assert int8.outcome is Outcome.AIM


def test_a_long_prompt_among_streams_at_its_bars() -> None:
    peers = [stall(OPENVINO, REFERENCE_CHUNK, 2.5, 0.215), stall(VLLM, "nochunk", 2.6, 2.6)]
    bar = [*peers, stall(OURS, "auto40ms", 2.07, 0.068)]
    assert verdict(bar, "none of ours").outcome is Outcome.AIM
    assert verdict(bar, "least gap").outcome is Outcome.BAR
    assert verdict(bar, "least gap").measured == 0.068
    aim = [*bar, stall(OURS, "auto20ms", 2.0, 0.050)]
    assert verdict(aim, "least gap").outcome is Outcome.AIM
    late = [*peers, stall(OURS, "auto20ms", 2.4, 0.050)]
    assert verdict(late, "least gap").outcome is Outcome.MISSED
    assert verdict(late, "least gap").measured is None


def test_a_peer_that_no_point_of_ours_is_below_is_named() -> None:
    rows = [stall(OURS, "auto20ms", 2.0, 0.05), stall(OPENVINO, "nosplit", 1.9, 2.1),
            stall(OPENVINO, REFERENCE_CHUNK, 2.5, 0.2)]  # fmt: skip
    assert unbeaten(rows) == ["openvino nosplit"]
    found = verdict(rows, "none of ours")
    assert (found.outcome, found.measured, found.against) == (
        Outcome.MISSED, 1.0, "openvino nosplit",
    )  # fmt: skip
    assert unbeaten([*rows, stall(OURS, "whole", 1.8, 1.9)]) == []


points = st.tuples(st.floats(0.1, 10), st.floats(0.01, 10))


@given(points, st.lists(points, max_size=5))
def test_a_point_is_beaten_by_one_that_is_better_in_one_and_worse_in_none(
    peer: tuple[float, float], ours: list[tuple[float, float]]
) -> None:
    found = is_beaten(peer, ours)
    assert not is_beaten(peer, [peer])
    assert is_beaten(peer, [*ours, (peer[0], peer[1] / 2)])
    assert found or all(ttft > peer[0] or gap > peer[1] or (ttft, gap) == peer
                        for ttft, gap in ours)  # fmt: skip


@given(st.lists(points, max_size=5), st.floats(0.1, 10))
def test_a_wider_share_never_makes_the_gap_longer(
    ours: list[tuple[float, float]], reference: float
) -> None:
    narrow, wide = (least_gap(ours, reference, share) for share in (0.8, 0.85))
    assert narrow is None or (wide is not None and wide <= narrow)


def test_memory_is_our_largest_over_openvinos_smallest_on_the_worst_workload() -> None:
    rows = [
        row(OURS, MAIN, Name.DECODE, peak=500), row(OPENVINO, "a", Name.DECODE, peak=1000),
        row(OURS, MAIN, Name.STALL, peak=700), row(OURS, "whole", Name.STALL, peak=900),
        row(OPENVINO, "a", Name.STALL, peak=1200), row(OPENVINO, "b", Name.STALL, peak=1000),
        row(OURS, MAIN, Name.MIXTURE, peak=9999), row(VLLM, "a", Name.MIXTURE, peak=1),
    ]  # fmt: skip
    found = verdict(rows, "memory")
    assert found.measured == pytest.approx(0.9)
    assert (found.outcome, found.against) == (Outcome.BAR, "largest on W3")


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_every_engine_runs_every_workload_and_the_sweeps_are_there(has_bfloat16: bool) -> None:
    found = configurations(has_bfloat16)
    assert len({each.name for each in found}) == len(found)
    for engine in (OURS, OPENVINO, VLLM, LLAMACPP):
        mine = [each for each in found if each.engine == engine]
        assert {name for each in mine for name in each.workloads} == set(Name)
    for engine in (OPENVINO, VLLM):
        chunks = {each.arguments.get("chunk") for each in found
                  if each.engine == engine and Name.STALL in each.workloads}  # fmt: skip
        assert {*CHUNKS, None} <= chunks
    assert any(each.engine == OURS and each.label == MAIN for each in found)
    assert any(each.engine == OPENVINO and each.label == REFERENCE_CHUNK for each in found)
    types = {each.dtype for each in found if each.engine == OPENVINO}
    assert types == {"bfloat16" if has_bfloat16 else "float32"}


@pytest.mark.parametrize("has_bfloat16", [True, False])
def test_ours_are_judged_as_the_product_runs_by_default(has_bfloat16: bool) -> None:
    ours = [each for each in configurations(has_bfloat16) if each.engine == OURS]
    assert {each.dtype for each in ours if not each.is_other_precision} == {"auto"}
    assert [(each.label, each.dtype) for each in ours if each.is_other_precision] == [
        ("f32", "float32")
    ]
