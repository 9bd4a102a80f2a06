"""The operator's own process: settings, health, metrics, logs, and what Kopf may do."""

from typing import cast

import httpx2
import kopf
import pytest

from fastgen_operator.handlers import _Operator, registry_of
from fastgen_operator.health import (
    API_LIMIT_SECONDS,
    TICK_LIMIT_SECONDS,
    Metrics,
    Pulse,
    serve,
)
from fastgen_operator.loop import Loop
from fastgen_operator.main import kopf_settings, run
from fastgen_operator.queue import Key
from fastgen_operator.settings import Images, Settings, SettingsError, settings_from

REQUIRED = {"FASTGEN_RUNTIME_IMAGE": "runtime:1", "FASTGEN_CONTROL_IMAGE": "control:1"}


def test_defaults() -> None:
    assert settings_from(REQUIRED) == Settings(Images("runtime:1", "control:1"))


def test_every_setting() -> None:
    settings = settings_from(
        REQUIRED
        | {
            "FASTGEN_ENVOY_IMAGE": "envoy:1",
            "FASTGEN_IMAGE_PULL_POLICY": "Always",
            "FASTGEN_IMAGE_PULL_SECRETS": "a, b,,a",
            "FASTGEN_WATCH_NAMESPACES": "team-a,team-b",
            "FASTGEN_PROMETHEUS_URL": "http://prometheus:9090",
            "FASTGEN_LOG_LEVEL": "DEBUG",
            "FASTGEN_HTTP_PORT": "0",
            "POD_NAME": "operator-1",
        }
    )
    assert settings == Settings(
        Images("runtime:1", "control:1", "envoy:1", "Always", ("a", "b")),
        namespaces=("team-a", "team-b"),
        prometheus_url="http://prometheus:9090",
        log_level="DEBUG",
        identity="operator-1",
        http_port=0,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FASTGEN_RUNTIME_IMAGE", " "),
        ("FASTGEN_IMAGE_PULL_POLICY", "Sometimes"),
        ("FASTGEN_LOG_LEVEL", "LOUD"),
        ("FASTGEN_HTTP_PORT", "99999"),
    ],
)
def test_a_wrong_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        settings_from(REQUIRED | {name: value})


def test_the_program_ends_with_the_name_of_the_wrong_setting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FASTGEN_RUNTIME_IMAGE", raising=False)
    with pytest.raises(SystemExit) as exit_:
        run()
    assert exit_.value.code == 2
    assert "FASTGEN_RUNTIME_IMAGE" in capsys.readouterr().err


def test_kopf_only_watches() -> None:
    registry = registry_of(settings_from(REQUIRED))
    assert len(registry._watching.get_all_handlers()) == 8
    for writing in (registry._changing, registry._spawning, registry._webhooks, registry._indexing):
        assert not writing.get_all_handlers()
    settings = kopf_settings()
    assert not settings.posting.enabled
    assert isinstance(settings, kopf.OperatorSettings)


def test_a_pulse_complains_when_something_stands_still() -> None:
    now = 100.0
    pulse = Pulse(clock=lambda: now)
    assert pulse.complaint() == ""
    now += TICK_LIMIT_SECONDS + 1
    assert "reconcile loop" in pulse.complaint()
    pulse.tick()
    assert pulse.complaint() == ""
    now += API_LIMIT_SECONDS
    pulse.tick()
    assert "API server" in pulse.complaint()
    pulse.answer()
    assert pulse.complaint() == ""


async def test_health_and_metrics_over_http() -> None:
    now = 0.0
    pulse, metrics = Pulse(clock=lambda: now), Metrics()
    metrics.reconciles.labels("ok").inc()
    runner = await serve(0, pulse, metrics)
    try:
        port = runner.addresses[0][1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/healthz")).status_code == 200
            assert "fastgen_operator_reconciles_total" in (await client.get("/metrics")).text
            now = 1000.0
            sick = await client.get("/healthz")
            assert sick.status_code == 503
            assert "has not" in sick.text
    finally:
        await runner.cleanup()


class Asked:
    """A loop that notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Key, bool]] = []

    def ask(self, key: Key, delay_seconds: float = 0.0, *, changed: bool = False) -> None:
        self.calls.append((key, changed))


async def test_only_a_new_generation_ends_the_wait_after_a_failure() -> None:
    operator, loop = _Operator(settings_from(REQUIRED)), Asked()
    operator._loop = cast("Loop", loop)
    for kind, generation in (("ADDED", 1), ("MODIFIED", 1), ("MODIFIED", 2), ("ADDED", 2),
                             ("DELETED", 2), ("ADDED", 2)):  # fmt: skip
        body = {"metadata": {"generation": generation}}
        await operator.on_resource("team", "chat", {"type": kind, "object": body})
    assert [changed for _, changed in loop.calls] == [True, False, True, False, False, True]
    assert {key for key, _ in loop.calls} == {("team", "chat")}
