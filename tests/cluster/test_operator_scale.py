"""Five hundred FastGenDeployments: how fast, how quiet and how small the operator is.

Their pods run on nodes without machines, so nobody answers a request; each prints its figures.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from api_proxy import BAD_DAYS, ApiProxy, Fault, Request, nothing, proxy_to
from fleet import TEAMS, Fleet, fleet_of, patch_all, seconds_until

from fastgen_cli.plan import free_ports
from fastgen_devcluster import components
from fastgen_devcluster.cluster import own_kubeconfig
from fastgen_devcluster.process import Ledger
from fastgen_devcluster.programs import Programs
from fastgen_devcluster.settings import Settings

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

SIZE = 500
MEMORY_LIMIT_MIB = 256
RESTART_SECONDS = 60
SETTLE_SECONDS = 900
EDIT_SECONDS = 300
QUIET_SECONDS = 180
CUT_SECONDS = 180


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The fleet, created; its operator is not started."""
    (port,) = free_ports(1)
    with fleet_of(SIZE, tmp_path_factory.mktemp("fleet"), port) as fleet:
        fleet.create()
        yield fleet


@pytest.fixture(scope="module")
def proxy(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProxy]:
    """Between the operator and the API server."""
    with proxy_to(fleet.operator.kubeconfig, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
def running(fleet: Fleet, proxy: ApiProxy) -> Iterator[Fleet]:
    """The fleet with its operator running behind the proxy."""
    if fleet.operator.process is None:
        start(fleet, proxy)
    yield fleet
    proxy.decide = nothing
    proxy.mend()


def start(fleet: Fleet, proxy: ApiProxy) -> None:
    fleet.operator.start({"KUBECONFIG": str(proxy.kubeconfig), "FASTGEN_WATCH_NAMESPACES": ""})


def is_quiet(fleet: Fleet) -> bool:
    return not fleet.writes(time.time() - 10)


def test_five_hundred_settle(running: Fleet) -> None:
    took = seconds_until(lambda: not running.unready(), SETTLE_SECONDS, pause=5)
    memory = running.memory_mib()
    print(f"\n{SIZE} settled in {took:.0f} s; {running.children()} children; memory {memory}")
    assert memory["VmHWM"] <= MEMORY_LIMIT_MIB


def test_the_settled_fleet_is_quiet(running: Fleet) -> None:
    seconds_until(lambda: is_quiet(running), 120, pause=5)
    since = time.time()
    time.sleep(QUIET_SECONDS)
    writes = running.writes(since)
    print(f"\n{len(writes)} writes in {QUIET_SECONDS} s; memory {running.memory_mib()}")
    assert len(writes) <= QUIET_SECONDS / 60, writes
    assert running.memory_mib()["VmHWM"] <= MEMORY_LIMIT_MIB


def test_a_restart_sees_all_again_and_writes_nothing(running: Fleet, proxy: ApiProxy) -> None:
    running.operator.stop()
    since = time.time()
    start(running, proxy)
    ready = time.time() - since
    seconds_until(lambda: reconciled(running) >= SIZE, RESTART_SECONDS)
    took = time.time() - since
    print(f"\nready after {ready:.0f} s, all reconciled after {took:.0f} s; "
          f"memory {running.memory_mib()}")  # fmt: skip
    assert took <= RESTART_SECONDS
    time.sleep(5)
    assert running.writes(since) == []
    assert running.memory_mib()["VmHWM"] <= MEMORY_LIMIT_MIB


def reconciled(fleet: Fleet) -> float:
    """How many reconciles of this process went well."""
    text = fleet.operator.answer("/metrics") or ""
    lines = [line for line in text.splitlines() if 'reconciles_total{outcome="ok"}' in line]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


def test_an_edit_of_the_whole_fleet(running: Fleet) -> None:
    for team in TEAMS:
        running.kubectl("-n", team, "scale", "fgd", "--all", "--replicas=2")
    took = seconds_until(lambda: running.replicas() == {"2"}, EDIT_SECONDS)
    print(f"\n{SIZE} scaled in {took:.0f} s; memory {running.memory_mib()}")
    seconds_until(lambda: not running.unready(), EDIT_SECONDS, pause=5)


def test_changes_while_it_was_away_are_made_up_for(running: Fleet, proxy: ApiProxy) -> None:
    running.operator.stop()
    tamper(running, replicas=1)
    start(running, proxy)
    took = seconds_until(lambda: is_mended(running, replicas=1), RESTART_SECONDS)
    print(f"\nmade up for after {took:.0f} s")


CHANGED = slice(0, 20)
DAMAGED = slice(20, 40)


def tamper(fleet: Fleet, replicas: int) -> None:
    """Changes some of the fleet, and takes from others what the operator must make again."""
    patch_all(fleet, fleet.keys[CHANGED], {"replicas": replicas})
    for namespace, name in fleet.keys[DAMAGED]:
        fleet.kubectl("-n", namespace, "delete", "service", name, "--wait=false")


def is_mended(fleet: Fleet, replicas: int) -> bool:
    changed = [
        fleet.kubectl("-n", namespace, "get", "deployment", f"{name}-replica",
                      "-o", "jsonpath={.spec.replicas}")
        for namespace, name in fleet.keys[CHANGED]
    ]  # fmt: skip
    services = fleet.kubectl("get", "service", "-A", "-o", "name").split()
    return set(changed) == {str(replicas)} and all(
        f"service/{name}" in services for _, name in fleet.keys[DAMAGED]
    )


def test_three_minutes_without_a_network(running: Fleet, proxy: ApiProxy) -> None:
    """Nothing comes through and nobody is told: watches must notice by themselves."""
    proxy.cut()
    began = time.monotonic()
    tamper(running, replicas=3)
    while time.monotonic() - began < CUT_SECONDS:
        assert running.operator.answers("/healthz"), "a fresh process would see no more"
        time.sleep(5)
    proxy.mend()
    took = seconds_until(lambda: is_mended(running, replicas=3), 90)
    print(f"\nmended {took:.0f} s after a cut of {CUT_SECONDS} s; memory {running.memory_mib()}")
    assert running.operator.answers("/healthz")


@pytest.mark.parametrize(
    ("decide", "replicas"), list(zip(BAD_DAYS.values(), (1, 2), strict=True)), ids=BAD_DAYS
)
def test_an_api_server_that_fails_now_and_then(
    running: Fleet, proxy: ApiProxy, decide: Callable[[Request], Fault | None], replicas: int
) -> None:
    proxy.decide = decide
    tamper(running, replicas)
    took = seconds_until(lambda: is_mended(running, replicas), 120)
    print(f"\nmended after {took:.0f} s")
    proxy.decide = nothing
    seconds_until(lambda: not running.unready(), 120, pause=5)


def test_a_restart_of_the_api_server(running: Fleet) -> None:
    if own_kubeconfig():
        pytest.skip("only the development cluster's API server can be restarted")
    settings = Settings.from_environment()
    ledger = Ledger(settings.records)
    ledger.stop(["kube-apiserver"], grace_seconds=10)
    time.sleep(10)
    argv = components.apiserver(settings, Programs(settings.cache))
    ledger.start("kube-apiserver", argv, settings.logs / "kube-apiserver.log")
    seconds_until(lambda: answers(running), 120)
    tamper(running, replicas=3)
    took = seconds_until(lambda: is_mended(running, replicas=3), 90)
    print(f"\nmended after {took:.0f} s; memory {running.memory_mib()}")
    assert running.operator.answers("/healthz")


def answers(fleet: Fleet) -> bool:
    try:
        return fleet.kubectl("get", "--raw", "/readyz") == "ok"
    except Exception:  # It is not there yet, in whatever way.
        return False


def test_it_is_quiet_again_after_all_that(running: Fleet) -> None:
    # Nobody heard of the nodes while the API server was away: their pods count as unready until
    # kwok has told otherwise of each, one after the other.
    seconds_until(lambda: not running.unready(), SETTLE_SECONDS, pause=5)
    seconds_until(lambda: is_quiet(running), 300, pause=5)
    since = time.time()
    time.sleep(60)
    writes = running.writes(since)
    assert len(writes) <= 1, writes
    memory = running.memory_mib()
    print(f"\nmemory {memory}")
    assert memory["VmHWM"] <= MEMORY_LIMIT_MIB
