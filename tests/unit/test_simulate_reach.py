"""Which requests could be good at all, and whether the simulation agrees."""

import pytest

from fastgen_api.spec import SLO, TimeToFirstToken
from fastgen_cli.simulate.profile import LLAMA8B_L4
from fastgen_cli.simulate.reach import first_token_seconds, hindrance
from fastgen_cli.simulate.simulation import Setup, own_scaler, simulate
from fastgen_cli.simulate.slo import parse_slo
from fastgen_cli.simulate.trace import Arrival, Trace

ONE_STEP = LLAMA8B_L4.limits.budget_tokens


def trace_of(*lengths: tuple[int, int]) -> Trace:
    return tuple(Arrival(10.0 * i, *length) for i, length in enumerate(lengths))


SHORT, LONG, ALONE = (100, 20), (1000, 20), (1000, 1)
"""76 and 279 ms to the first token, 54 ms for each further one; the last has none."""


@pytest.mark.parametrize(
    ("slo", "trace", "words"),
    [
        ("ttft=80ms", trace_of(SHORT), None),
        ("ttft=70ms", trace_of(SHORT), "a prompt of 100 tokens takes 76 ms"),
        ("ttft=50ms", trace_of((1, 5)), "a prompt of 1 token takes 54 ms"),
        ("ttft=1ms+1us", trace_of((800, 20)), "longer than ttft allows (1.8 ms)"),
        ("ttft=1ms+800us", trace_of(SHORT, LONG), None),
        ("ttft=1ms+700us", trace_of(SHORT, LONG), "only 1 of 2 requests can keep ttft"),
        ("ttft=1ms+700us,percent=50", trace_of(SHORT, LONG), None),
        ("ttft=1ms+700us,percent=50.1", trace_of(SHORT, LONG), "only 1 of 2 requests can keep"),
        ("ttft=80ms,percent=50", trace_of(SHORT, LONG), None),
        ("ttft=1ms+200us", trace_of(SHORT, LONG), "prompt of 100 tokens takes 76 ms"),
        ("tpot=50ms", trace_of(ALONE), None),
        ("gap=50ms,percent=50", trace_of(ALONE, LONG), None),
        ("tpot=50ms", trace_of(ALONE, LONG), "only 1 of 2 requests can keep tpot"),
        ("gap=50ms", trace_of(LONG), "a step of one token takes 54 ms, longer than gap allows"),
        ("ttft=1s,tpot=50ms", trace_of(LONG), "longer than tpot allows (50 ms)"),
        ("ttft=80ms,tpot=50ms,percent=50", trace_of(SHORT, ALONE), "only 0 of 2 requests can"),
        ("ttft=9s,tpot=1s,gap=1s", trace_of(SHORT, LONG, ALONE), None),
    ],
)
def test_what_no_number_of_replicas_keeps_is_named(
    slo: str, trace: Trace, words: str | None
) -> None:
    told = hindrance(trace, LLAMA8B_L4, parse_slo(slo))
    if words is None:
        assert told is None
    else:
        assert told is not None
        assert words in told


@pytest.mark.parametrize("prompt", [1, 100, ONE_STEP, ONE_STEP + 1, 3 * ONE_STEP + 5])
def test_a_request_alone_takes_what_it_takes_at_least(prompt: int) -> None:
    slo = SLO(time_to_first_token=TimeToFirstToken(60_000))
    setup = Setup(trace_of((prompt, 1)), 60.0, LLAMA8B_L4, slo, max_replicas=1, initial_replicas=1)
    (entry,) = simulate(setup, own_scaler(setup)).entries
    assert entry.ttft_seconds == pytest.approx(first_token_seconds(prompt, LLAMA8B_L4))
