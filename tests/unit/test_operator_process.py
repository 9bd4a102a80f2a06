"""The operator's own process: settings, health, metrics, logs, and what Kopf may do."""

import itertools
from typing import cast

import httpx2
import pytest
from namespaces import deployment

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.handlers import Operator, registry_of
from fastgen_operator.health import (
    API_LIMIT_SECONDS,
    TICK_LIMIT_SECONDS,
    Metrics,
    Pulse,
    serve,
)
from fastgen_operator.loop import Loop
from fastgen_operator.main import LONGEST_BACKOFF_SECONDS, kopf_settings, run
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
            "FASTGEN_HUB_ENDPOINT": "https://mirror",
            "FASTGEN_DOWNLOAD_ENVIRONMENT": '{"HTTPS_PROXY": "http://proxy"}',
            "FASTGEN_LOG_LEVEL": "DEBUG",
            "FASTGEN_HTTP_PORT": "0",
            "FASTGEN_WATCH_SILENCE_SECONDS": "20",
            "POD_NAME": "operator-1",
        }
    )
    assert settings == Settings(
        Images("runtime:1", "control:1", "envoy:1", "Always", ("a", "b")),
        namespaces=("team-a", "team-b"),
        prometheus_url="http://prometheus:9090",
        hub_endpoint="https://mirror",
        download_environment={"HTTPS_PROXY": "http://proxy"},
        log_level="DEBUG",
        identity="operator-1",
        http_port=0,
        watch_silence_seconds=20,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FASTGEN_RUNTIME_IMAGE", " "),
        ("FASTGEN_IMAGE_PULL_POLICY", "Sometimes"),
        ("FASTGEN_LOG_LEVEL", "LOUD"),
        ("FASTGEN_HTTP_PORT", "99999"),
        ("FASTGEN_WATCH_SILENCE_SECONDS", "0"),
        ("FASTGEN_DOWNLOAD_ENVIRONMENT", "HTTPS_PROXY=http://proxy"),
        ("FASTGEN_DOWNLOAD_ENVIRONMENT", '{"RETRIES": 3}'),
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


def test_kopf_neither_watches_nor_writes() -> None:
    registry = registry_of(Operator(settings_from(REQUIRED)))
    for kind in ("_watching", "_changing", "_spawning", "_webhooks", "_indexing"):
        assert not getattr(registry, kind).get_all_handlers()
    settings = kopf_settings()
    assert not settings.posting.enabled
    assert settings.scanning.disabled


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


async def test_health_and_metrics_over_http(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    pulse, metrics = Pulse(clock=lambda: now), Metrics()
    metrics.reconciles.labels("ok").inc()
    unready = "listing what there is"
    runner = await serve(0, pulse.complaint, lambda: unready, metrics)
    try:
        port = runner.addresses[0][1]
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            assert (await client.get("/healthz")).status_code == 200
            starting = await client.get("/readyz")
            assert (starting.status_code, starting.text) == (503, unready)
            unready = ""
            assert (await client.get("/readyz")).status_code == 200
            assert "fastgen_operator_reconciles_total" in (await client.get("/metrics")).text
            now = 1000.0
            for path in ("/healthz", "/readyz"):
                sick = await client.get(path)
                assert sick.status_code == 503
                assert "has not" in sick.text
            assert [each.getMessage() for each in caplog.records] == ["not healthy"]
            now = 0.0
            assert (await client.get("/healthz")).status_code == 200
            assert caplog.records[-1].getMessage() == "healthy again"
    finally:
        await runner.cleanup()


class Asked:
    """A loop that notes what it was asked for."""

    def __init__(self) -> None:
        self.calls: list[tuple[Key, bool]] = []

    def ask(self, key: Key, delay_seconds: float = 0.0, *, changed: bool = False) -> None:
        self.calls.append((key, changed))


def told(operator: Operator, version: int, generation: int | None) -> None:
    """Tells of a FastGenDeployment; no generation: that it is gone."""
    shelf = operator._store.shelf(names.KIND, "team")
    assert shelf is not None
    metadata = {"namespace": "team", "name": "chat", "generation": generation}
    found = {"metadata": metadata | {"resourceVersion": str(version)}}
    for key in shelf.remove(found) if generation is None else shelf.put(found):
        operator.ask_resource(key)


def test_only_a_new_generation_ends_the_wait_after_a_failure() -> None:
    operator, loop = Operator(settings_from(REQUIRED)), Asked()
    operator._loop = cast("Loop", loop)
    for version, generation in enumerate((1, 1, 2, 2, None, 2), start=1):
        told(operator, version, generation)
    assert [changed for _, changed in loop.calls] == [True, False, True, False, False, True]
    assert {key for key, _ in loop.calls} == {("team", "chat")}


def test_news_of_a_member_and_of_its_balancer_are_news_for_all_that_share_it() -> None:
    operator, loop = Operator(settings_from(REQUIRED)), Asked()
    operator._loop = cast("Loop", loop)
    shelf = operator._store.shelf(names.KIND, "team")
    assert shelf is not None

    def tell(version: int, resource: KubernetesObject) -> set[str]:
        loop.calls.clear()
        metadata = resource["metadata"] | {"resourceVersion": str(version)}
        for key in shelf.put(resource | {"metadata": metadata}):
            operator.ask_resource(key)
        return {name for (_, name), _ in loop.calls}

    assert tell(1, deployment("chat", "models")) == {"chat"}
    assert tell(2, deployment("alone")) == {"alone"}
    assert tell(3, deployment("code", "models")) == {"code", "chat"}
    status = deployment("code", "models") | {"status": {"replicas": 1}}
    assert tell(4, status) == {"code"}, "a status concerns nobody else"
    assert [changed for _, changed in loop.calls] == [False]
    assert tell(5, deployment("code", generation=2)) == {"code", "chat"}
    assert dict(loop.calls) == {("team", "code"): True, ("team", "chat"): False}
    loop.calls.clear()
    operator._ask_child(("team", "models"))
    assert {name for (_, name), _ in loop.calls} == {"models", "chat"}


def test_kopf_never_gives_up_on_a_request() -> None:
    """It would end the process, and a fresh one could not reach the API server either."""
    backoffs = kopf_settings().networking.error_backoffs
    assert not isinstance(backoffs, float)
    for _ in range(2):  # Each request begins anew.
        assert list(itertools.islice(backoffs, 3)) == [1, 1, 2]
    assert list(itertools.islice(backoffs, 1000))[-1] == LONGEST_BACKOFF_SECONDS
