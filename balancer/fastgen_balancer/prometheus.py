"""Reads the autoscaler's signals from Prometheus; whatever goes wrong becomes an Unknown."""

import asyncio
import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import httpx2
import msgspec

from fastgen_api.names import Outcome, Target
from fastgen_balancer.promql import OTHERS, PART, Selector, Windows, snapshot
from fastgen_balancer.signals import MetricSignals, Outcomes, ReplicaReading, Unknown

TIMEOUT_SECONDS: Final = 5.0
"""For the whole answer: one that trickles must not keep the leader from deciding."""
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024

Key = TypeVar("Key", Outcome, Target)


class _Sample(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Vector(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str
    result: tuple[_Sample, ...]


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Vector | None = None
    error_type: str = ""


Part = Mapping[str, float]
"""Values by instance, outcome or target; by "" where there is one only."""


async def read_metrics(
    http: httpx2.AsyncClient,
    url: str | None,
    selector: Selector,
    windows: Windows,
    patience_seconds: float | None = None,
) -> MetricSignals | Unknown:
    """One snapshot; never raises because of Prometheus or its URL, and never tells the URL.

    patience_seconds: how long it may take; None: TIMEOUT_SECONDS.
    """
    if url is None:
        return Unknown("NotConfigured", "no Prometheus is configured")
    try:
        base = httpx2.URL(url)
    except httpx2.InvalidURL:
        return Unknown("InvalidUrl", "the URL of Prometheus is not valid")
    if base.scheme not in ("http", "https") or not base.host or base.query:
        text = "the URL of Prometheus must be http:// or https:// with a host and without a query"
        return Unknown("InvalidUrl", text)
    # Credentials travel in a header: URLs are logged.
    auth = httpx2.BasicAuth(base.username, base.password) if base.username else httpx2.Auth()
    address = base.copy_with(
        username=None, password=None, path=base.path.rstrip("/") + "/api/v1/query", fragment=None
    )
    seconds = TIMEOUT_SECONDS if patience_seconds is None else patience_seconds
    query = {"query": snapshot(selector, windows), "timeout": f"{math.ceil(seconds)}s"}
    try:
        async with (
            asyncio.timeout(seconds),
            http.stream("POST", address, data=query, auth=auth, timeout=seconds) as response,
        ):
            body = bytearray()
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    return Unknown("BadAnswer", "Prometheus answered with too many bytes")
    except (httpx2.TimeoutException, TimeoutError):
        return Unknown("Timeout", f"Prometheus did not answer within {seconds:g} s")
    except (httpx2.HTTPError, httpx2.InvalidURL, UnicodeError) as error:
        return Unknown("Unreachable", f"Prometheus cannot be reached ({type(error).__name__})")
    return parse(response.status_code, bytes(body), selector, windows)


def parse(
    status: int, body: bytes, selector: Selector, windows: Windows
) -> MetricSignals | Unknown:
    """Prometheus' answer as signals: an error, an empty answer and a NaN stay different things."""
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except msgspec.DecodeError:
        return Unknown("BadAnswer", f"Prometheus answered {status} without a readable body")
    if status != 200 or answer.status != "success":
        kind = answer.error_type or "no reason"
        return Unknown("QueryFailed", f"Prometheus answered {status} ({kind})")
    if answer.data is None or answer.data.result_type != "vector":
        return Unknown("BadAnswer", "Prometheus answered with something else than a vector")
    try:
        parts, not_numbers = _parts(answer.data.result)
    except ValueError:
        return Unknown("BadAnswer", "Prometheus answered with a value that is no number")
    has_others = bool(parts.pop(OTHERS, {}).get(""))
    if not parts and not not_numbers:
        return _absent(selector, has_others)
    now = answer.data.result[0].value[0]
    return _signals(parts, not_numbers, now, windows)


def _absent(selector: Selector, has_others: bool) -> Unknown:
    """Nothing of this deployment: either nothing is scraped, or not by these labels."""
    ours = f"series of deployment {selector.deployment} in namespace {selector.namespace}"
    if not has_others:
        return Unknown("NoSeries", f"Prometheus has no {ours}: does it scrape the pods?")
    text = (
        f"Prometheus has series of other deployments, and no {ours}: its scrape job leaves these "
        "pods out, or changes the labels deployment and deployment_namespace"
    )
    return Unknown("LabelMismatch", text)


def _parts(samples: Iterable[_Sample]) -> tuple[dict[str, Part], tuple[str, ...]]:
    parts: dict[str, dict[str, float]] = {}
    not_numbers = set()
    for sample in samples:
        labels = {name: text for name, text in sample.metric.items() if name != PART}
        part = sample.metric.get(PART, "")
        value = float(sample.value[1])
        if math.isfinite(value):
            parts.setdefault(part, {})["".join(labels.values())] = value
        else:
            not_numbers.add(part)
    return dict(parts), tuple(sorted(not_numbers))


def _signals(
    parts: Mapping[str, Part], not_numbers: tuple[str, ...], now: float, windows: Windows
) -> MetricSignals:
    def only(part: str) -> float | None:
        return parts.get(part, {}).get("")

    def outcomes(
        part: str, seconds: float, misses: Mapping[Target, float] | None
    ) -> Outcomes | None:
        if part not in parts:
            return None
        return Outcomes(_keyed(parts[part], Outcome), seconds, misses)

    misses = _keyed(parts["misses"], Target) if "misses" in parts else None
    return MetricSignals(
        replicas=tuple(
            _reading(parts, instance, now - sampled)
            for instance, sampled in sorted(parts.get("sampled", {}).items())
        ),
        arriving=only("arriving"),
        arriving_requests=only("arriving_requests"),
        done=only("done"),
        queued_requests=only("queued"),
        queue_growth=only("queue_growth"),
        short=outcomes("short", windows.short_seconds, None),
        long=outcomes("long", windows.long_seconds, misses),
        not_numbers=not_numbers,
        latest_requests=only("latest_requests"),
    )


def _keyed(part: Part, keys: type[Key]) -> dict[Key, float]:
    # A name of a newer version is left out rather than taken for another.
    known = {key.value: key for key in keys}
    return {known[text]: value for text, value in part.items() if text in known}


def _reading(parts: Mapping[str, Part], instance: str, age: float) -> ReplicaReading:
    def at(part: str) -> float | None:
        return parts.get(part, {}).get(instance)

    return ReplicaReading(
        instance=instance,
        age_seconds=max(0.0, age),
        whole_window=at("present") is not None,
        work=at("work"),
        running=at("running"),
        running_floor=at("running_floor"),
        waiting=at("waiting"),
        waiting_floor=at("waiting_floor"),
        waiting_growth=at("waiting_growth"),
        owed=at("owed"),
        owed_floor=at("owed_floor"),
        kv_usage=at("kv_usage"),
        kv_usage_floor=at("kv_usage_floor"),
    )
