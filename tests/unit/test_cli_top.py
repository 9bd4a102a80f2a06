"""What `fastgen top` makes of metrics and status, and how it fits a terminal."""

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from explained import EARLIER, NOW, resource
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fastgen_api.names import Metric, MetricLabel, Outcome
from fastgen_cli.top_rows import Row, rows
from fastgen_cli.top_sample import Figures, Sample, figures, quantile, read_samples
from fastgen_cli.top_table import COLUMNS, Picture, draw, fit, spark

LABELS = (MetricLabel.DEPLOYMENT, MetricLabel.NAMESPACE)


def exposition(deployment: str = "chat", namespace: str = "models") -> str:
    """What a replica tells that runs 3 requests and has ended two, one late."""
    registry = CollectorRegistry()
    own = {MetricLabel.DEPLOYMENT: deployment, MetricLabel.NAMESPACE: namespace}
    Gauge(Metric.RUNNING_REQUESTS, "x", LABELS, registry=registry).labels(**own).set(3)
    Gauge(Metric.WAITING_REQUESTS, "x", LABELS, registry=registry).labels(**own).set(2)
    Gauge(Metric.KV_USAGE, "x", LABELS, registry=registry).labels(**own).set(0.25)
    tokens = Counter(Metric.OUTPUT_TOKENS.removesuffix("_total"), "x", LABELS, registry=registry)
    tokens.labels(**own).inc(500)
    ends = Counter(
        Metric.REQUESTS.removesuffix("_total"), "x", (*LABELS, "outcome"), registry=registry
    )
    ends.labels(**own, outcome=Outcome.GOOD).inc()
    ends.labels(**own, outcome=Outcome.LATE_FIRST_TOKEN).inc()
    ends.labels(**own, outcome=Outcome.EXCLUDED).inc(7)
    ttft = Histogram(Metric.TTFT, "x", LABELS, buckets=(0.1, 1.0, 5.0), registry=registry)
    for seconds in (0.05, 3.0):
        ttft.labels(**own).observe(seconds)
    return str(generate_latest(registry).decode())


def test_a_sample_holds_what_one_pod_says_of_each_deployment() -> None:
    text = exposition() + exposition("other")
    found = read_samples(text, "models", 1.0)
    assert set(found) == {"chat", "other"}, "a balancer may speak of several"
    sample = found["chat"]
    assert sample.values == {
        Metric.RUNNING_REQUESTS: 3, Metric.WAITING_REQUESTS: 2, Metric.KV_USAGE: 0.25,
        Metric.OUTPUT_TOKENS: 500,
    }  # fmt: skip
    assert sample.outcomes[Outcome.GOOD] == 1
    assert sample.ttft == {0.1: 1, 1.0: 1, 5.0: 2, float("inf"): 2}
    assert read_samples(text, "elsewhere", 1.0) == {}


def test_text_that_is_no_exposition_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_samples("<html>not found</html>", "models", 1.0)


def sample(at: float, **counters: float) -> Sample:
    values = {Metric.RUNNING_REQUESTS: 1.0, Metric.OUTPUT_TOKENS: counters.get("tokens", 0.0)}
    good, bad = counters.get("good", 0.0), counters.get("bad", 0.0)
    ended = counters.get("ended", good + bad)
    return Sample(
        at,
        values,
        {Outcome.GOOD: good, Outcome.ERROR: bad},
        {0.5: ended / 2, 1.0: ended, float("inf"): ended},
    )


def test_rates_are_of_the_last_seconds_and_of_all_pods() -> None:
    one = [sample(0, tokens=0), sample(20, tokens=1000), sample(30, tokens=1100)]
    two = [sample(25, tokens=50), sample(30, tokens=100)]
    assert figures([one, two]).tokens_per_second == pytest.approx(10 + 10)


def test_the_first_look_knows_loads_and_no_rates() -> None:
    found = figures([[sample(0, tokens=100, good=5)]])
    assert (found.running, found.tokens_per_second) == (1.0, None)
    assert (found.ttft_p50_seconds, found.good_percent) == (None, None)


def test_a_single_look_tells_of_all_requests_since_the_pods_began() -> None:
    found = figures([[sample(0, good=3, bad=1)]], lifetime=True)
    assert found.good_percent == 75.0
    assert found.ttft_p50_seconds == pytest.approx(0.5)


def test_a_minute_is_forgotten_after_it() -> None:
    history = [sample(0, good=0), sample(30, good=0, bad=10), sample(95, good=4, bad=10)]
    assert figures([history]).good_percent is None or figures([history]).good_percent == 100.0
    history = [sample(0), sample(40, bad=10), sample(100, good=4, bad=10)]
    assert figures([history]).good_percent == 100.0


def test_a_process_that_began_anew_counts_from_nothing() -> None:
    history = [sample(0, tokens=1000, good=50), sample(10, tokens=30, good=2)]
    found = figures([history])
    assert found.tokens_per_second == pytest.approx(3.0)
    assert found.good_percent == 100.0


def test_nobody_said_anything() -> None:
    assert figures([]) == Figures()
    assert figures([[]]) == Figures()


@pytest.mark.parametrize(
    ("buckets", "share", "seconds"),
    [
        ({1.0: 10, 2.0: 20, float("inf"): 20}, 0.5, 1.0),
        ({1.0: 10, 2.0: 20, float("inf"): 20}, 0.75, 1.5),
        ({1.0: 0, float("inf"): 5}, 0.5, 1.0),
        ({1.0: 0, float("inf"): 0}, 0.5, None),
        ({}, 0.5, None),
    ],
)
def test_quantiles_are_those_of_prometheus(
    buckets: dict[float, float], share: float, seconds: float | None
) -> None:
    assert quantile(buckets, share) == (None if seconds is None else pytest.approx(seconds))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=12), st.floats(0.01, 1.0))
def test_a_quantile_lies_within_the_buckets_and_grows(counts: list[int], share: float) -> None:
    total, buckets = 0, {}
    for bound, count in enumerate(counts, 1):
        total += count
        buckets[float(bound)] = float(total)
    found, more = quantile(buckets, share), quantile(buckets, min(1.0, share + 0.1))
    if total == 0:
        assert found is None
    else:
        assert found is not None
        assert more is not None
        assert 0 <= found <= more <= len(counts)


SLO = {"slo": {"targetPercent": "99", "timeToFirstToken": {"milliseconds": 500}}}


def test_a_row_prefers_the_last_minute_to_the_status() -> None:
    found = resource(SLO, slo={"goodPercent": "99.7"})
    (row,) = rows([found], {("models", "chat"): Figures(good_percent=50.0)}, NOW)
    assert (row.good_percent, row.target_percent) == (50.0, 99.0)
    (row,) = rows([found], {}, NOW)
    assert row.good_percent == 99.7


@pytest.mark.parametrize(
    ("found", "note"),
    [
        (
            resource(lastDecision={"time": EARLIER, "rule": "Steady", "replicas": 1,
                                   "message": "40 tokens/s are offered", "blockers": ["Frozen"]}),
            "1 by Steady 3 min ago, held by Frozen: 40 tokens/s are offered",
        ),
        (
            resource(conditions={"Ready": ("False", "ImagePullBackOff", "not found")}),
            "ImagePullBackOff: not found",
        ),
        ({"metadata": {"name": "chat", "namespace": "models"}, "spec": {}}, "no operator has"),
        (resource(observedGeneration=1), "the operator has not taken up the latest edit"),
        (resource(), ""),
        (
            resource({"replicas": 0, "scaling": {"minReplicas": 0}},
                     {"Ready": ("True", "ScaledToZero", "none")}, readyReplicas=0,
                     lastDecision={"time": EARLIER, "rule": "Steady", "replicas": 0,
                                   "message": "no traffic"}),
            "asleep, a request wakes it; 0 by Steady 3 min ago: no traffic",
        ),
        (
            resource({"replicas": 0, "scaling": {"mode": "Disabled"}},
                     {"Ready": ("True", "ScaledToZero", "none")}, readyReplicas=0),
            "scaled to zero",
        ),
    ],
)  # fmt: skip
def test_a_row_s_note_is_what_a_reader_wants_next(found: dict[str, Any], note: str) -> None:
    (row,) = rows([found], {}, NOW)
    assert row.note.startswith(note)


def row(name: str = "chat", **more: Any) -> Row:
    busy = Figures(812.4, 14, 3, 0.95, 0.21, 1.4, 91.0)
    return Row("models", name, True, 3, 3, 91.0, 99.0, busy, "3 by Steady just now: fine", **more)


def picture(*shown: Row, **more: Any) -> Picture:
    return Picture(rows=shown, scope="namespace models", now=NOW, source="By the pods.", **more)


def test_a_screen_has_every_figure() -> None:
    text = draw(picture(row(), rates={("models", "chat"): (1.0, 8.0)}), 140).plain
    figures_told = ("3/3", "91.0 %", "99 %", "210 ms", "1.4 s", "812", "14", "3", "95 %", "▂█")
    assert not [figure for figure in figures_told if figure not in text]
    assert "1 deployment, 3 of 3 replicas ready, 812 tokens/s" in text


def test_what_is_not_known_is_a_dash_and_no_zero() -> None:
    found = replace(row(), figures=Figures(), good_percent=None, target_percent=None)
    line = draw(picture(found), 100).plain.splitlines()[4]
    assert line.split() == ["chat", "3/3", *["–"] * 8]


@given(
    width=st.integers(40, 200),
    height=st.integers(8, 60),
    names=st.lists(st.text("abcdefghij-", min_size=1, max_size=48), min_size=1, max_size=30),
)
def test_no_line_is_wider_than_the_terminal_and_no_screen_higher(
    width: int, height: int, names: list[str]
) -> None:
    text = draw(picture(*(row(name) for name in names)), width, height).plain
    lines = text.splitlines()
    assert max(map(len, lines)) <= max(width, 12 + 2 + 5 + 2 + 7 + 2 + 6 + 2 + 4)
    assert len(lines) <= height


def test_rows_that_do_not_fit_are_counted() -> None:
    text = draw(picture(*(row(f"chat-{number}") for number in range(20))), 120, 12).plain
    assert "… 17 more" in text
    assert len(text.splitlines()) <= 12


@pytest.mark.parametrize("width", [200, 100, 80, 70, 60])
def test_a_narrow_terminal_keeps_the_columns_that_matter_most(width: int) -> None:
    columns, _ = fit((row(),), width)
    titles = [column.title for column in columns]
    assert {"READY", "GOOD", "TOK/S", "WAIT"} <= set(titles)
    assert titles == [column.title for column in COLUMNS if column.title in titles]


def test_several_namespaces_are_named() -> None:
    text = draw(picture(row(), replace(row(), namespace="team")), 120).plain
    assert "models/chat" in text
    assert "team/chat" in text


def test_bars_are_scaled_to_the_highest() -> None:
    assert spark((0.0, 4.0, 8.0)) == "▁▅█"
    assert spark((0.0, 0.0)) == ""
    assert spark(()) == ""


def test_the_plugin_loads_nothing_that_computes_or_operates() -> None:
    """Whoever installs `fastgen[cli]` alone has none of it."""
    program = (
        "import fastgen_cli.plugin, fastgen_cli.explain_command, fastgen_cli.top_command, sys; "
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.decode().split()}
    assert "lightkube" in loaded
    assert loaded & {"torch", "triton", "kopf", "numpy", "grpc", "starlette", "huggingface_hub",
                     "fastgen_runtime", "fastgen_balancer"} == set()  # fmt: skip
