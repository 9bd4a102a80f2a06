"""The operator behind a network and an API server that fail it, on a real API server.

The images named here do not exist: what pods do is the business of test_operator_pods.
"""

import copy
import json
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from api_proxy import BAD_DAYS, ApiProxy, Fault, Request, nothing, proxy_to
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from operator_questions import delete, has_all_children, pull_failed_and_quiet, settled_writes

from fastgen_api import names
from fastgen_cli.plan import free_ports
from fastgen_operator.kinds import WATCHED_KINDS, path_of
from fastgen_operator.monitoring import MONITORING_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

SILENCE_SECONDS = 5
"""So that a dropped watch is noticed within a test's patience."""
NONE = "127.0.0.1:1/none:1"


@pytest.fixture(scope="module")
def operator(
    tmp_path_factory: pytest.TempPathFactory, definition: Path
) -> Iterator[OperatorProcess]:
    """An operator in a namespace of this module, not started."""
    name = f"fastgen-outages-{uuid.uuid4().hex[:6]}"
    folder = tmp_path_factory.mktemp("outages")
    (port,) = free_ports(1)
    with operator_in(name, folder, {"runtime": NONE, "control": NONE}, port) as operator:
        yield operator


@pytest.fixture(scope="module")
def proxy(
    operator: OperatorProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiProxy]:
    with proxy_to(operator.kubeconfig, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture
def behind(operator: OperatorProcess, proxy: ApiProxy) -> Iterator[ApiProxy]:
    """The proxy with the operator running behind it; all is well before and after each test."""
    if operator.process is None:
        start(operator, proxy)
    yield proxy
    proxy.decide = nothing
    proxy.mend()


def start(operator: OperatorProcess, proxy: ApiProxy) -> None:
    operator.start(
        {
            "KUBECONFIG": str(proxy.kubeconfig),
            "FASTGEN_WATCH_SILENCE_SECONDS": str(SILENCE_SECONDS),
        }
    )


@pytest.fixture
def chat(operator: OperatorProcess, behind: ApiProxy) -> str:
    """A FastGenDeployment of the whole module with all its children."""
    if operator.find("fgd", "chat") is None:
        operator.create("chat")
    wait_until("children", lambda: has_all_children(operator, "chat"), seconds=30)
    return "chat"


def replicas_of(operator: OperatorProcess, name: str) -> int:
    return int(operator.get("deployment", f"{name}-replica")["spec"]["replicas"])


def test_changes_during_a_silent_cut_are_seen_after_it(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    """Watches that say nothing any more must not be waited for."""
    behind.cut()
    time.sleep(1)
    operator.patch(chat, {"replicas": 2})
    operator.kubectl("delete", "service", chat, "--wait")
    asked = len(behind.requests)
    time.sleep(3 * SILENCE_SECONDS)
    assert replicas_of(operator, chat) == 1
    assert len(behind.requests) - asked < 200, "a hanging API server is not hammered"
    assert operator.answers("/healthz"), "a fresh process would see no more"
    behind.mend()
    wait_until("two replicas", lambda: replicas_of(operator, chat) == 2, seconds=40)
    wait_until("the service", lambda: operator.find("service", chat), seconds=20)
    operator.patch(chat, {"replicas": 1})
    wait_until("one replica", lambda: replicas_of(operator, chat) == 1, seconds=20)
    assert metric(operator, "fastgen_operator_watch_ends_total", reason="silent") >= 1


def metric(operator: OperatorProcess, name: str, **labels: str) -> float:
    """The sum of the series that have these labels."""
    total = 0.0
    for line in (operator.answer("/metrics") or "").splitlines():
        series, _, value = line.rpartition(" ")
        wanted = (f'{label}="{text}"' in series for label, text in labels.items())
        if series.partition("{")[0] == name and all(wanted):
            total += float(value)
    return total


def test_broken_connections_are_made_again(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    for _ in range(3):
        behind.break_connections()
        time.sleep(0.5)
    operator.kubectl("delete", "configmap", f"{chat}-slo", "--wait")
    wait_until("it again", lambda: operator.find("configmap", f"{chat}-slo"), seconds=20)


@pytest.mark.parametrize("decide", BAD_DAYS.values(), ids=BAD_DAYS)
def test_what_fails_now_and_then_converges_and_is_told_to_nobody(
    operator: OperatorProcess, behind: ApiProxy, decide: Callable[[Request], Fault | None]
) -> None:
    behind.decide = decide
    before = behind.faults
    unlucky = [f"unlucky-{number}" for number in range(3)]
    for name in unlucky:
        operator.create(name)
    for name in unlucky:
        wait_until("children", lambda name=name: has_all_children(operator, name), seconds=60)
        wait_until("a status", lambda name=name: operator.condition(name, "Ready"), seconds=60)
        assert operator.condition(name, "Stalled")["status"] == "False"
    assert behind.faults - before >= 10
    behind.decide = nothing
    for name in unlucky:
        delete(operator, name)
    events = operator.get("events", "--field-selector", "reason=ApplyRejected")["items"]
    assert events == []


NO_LEADER = Fault(500, "etcdserver: no leader", in_stream=True)
"""An etcd without a leader ends watches so."""


def test_an_error_inside_the_watches_is_lived_with(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    kinds = [names.KIND, *(kind for kind in WATCHED_KINDS if kind not in MONITORING_KINDS)]
    waiting = {path_of(kind, operator.namespace) for kind in kinds}

    def once_each(request: Request) -> Fault | None:
        if not request.is_watch or request.path not in waiting:
            return None
        waiting.remove(request.path)
        return NO_LEADER

    behind.decide = once_each
    behind.break_connections()
    wait_until("errors in all watches", lambda: not waiting, seconds=30)
    operator.kubectl("delete", "service", chat, "--wait")
    wait_until("the service", lambda: operator.find("service", chat), seconds=30)
    operator.patch(chat, {"replicas": 2})
    wait_until("two replicas", lambda: replicas_of(operator, chat) == 2, seconds=20)
    operator.patch(chat, {"replicas": 1})


DEEP_LEVELS = 1500
"""More than any decoder takes, and the API server does."""


def test_a_resource_nested_too_deeply_hinders_no_other(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    nested = '{"a":' * DEEP_LEVELS + "{}" + "}" * DEEP_LEVELS
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "deep"},
        "spec": {"model": {"source": "file:///m.gguf"}, "affinity": {"nodeAffinity": "NESTED"}},
    }
    text = json.dumps(manifest).replace('"NESTED"', nested)
    path = path_of(names.KIND, operator.namespace)
    operator.kubectl("create", "--raw", path, "-f", "-", stdin=text)
    operator.patch(chat, {"replicas": 2})
    wait_until("two replicas", lambda: replicas_of(operator, chat) == 2, seconds=10)
    assert operator.answers("/healthz")
    operator.stop()
    start(operator, behind)
    operator.patch(chat, {"replicas": 1})
    wait_until("one replica", lambda: replicas_of(operator, chat) == 1, seconds=10)
    assert operator.answers("/healthz")
    words = '{.status.conditions[?(@.type=="Stalled")].message}'
    wait_until(
        "its status",
        lambda: (
            "nested deeper" in operator.kubectl("get", "fgd", "deep", "-o", f"jsonpath={words}")
        ),
        seconds=10,
    )
    operator.kubectl("delete", "fgd", "deep", "--wait=false")


def test_a_right_that_is_missing_is_told_by_readiness_and_kills_nobody(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    """As after an upgrade by somebody who may not give the operator its new rights."""
    path = path_of("PodDisruptionBudget", operator.namespace)
    behind.decide = lambda each: Fault(403, "forbidden: budgets") if each.path == path else None
    behind.break_connections()
    wait_until("not ready", lambda: not operator.answers("/readyz"), seconds=20)
    told = httpx2.get(f"http://127.0.0.1:{operator.port}/readyz").text
    assert "PodDisruptionBudget: forbidden: budgets" in told
    assert operator.answers("/healthz")
    behind.decide = nothing
    wait_until("ready", lambda: operator.answers("/readyz"), seconds=30)


def test_a_start_during_an_outage_ends_well(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    pull_failed_and_quiet(operator, chat)
    operator.stop()
    until = time.monotonic() + 10
    behind.decide = lambda _: Fault(503) if time.monotonic() < until else None
    since = time.time()
    start(operator, behind)
    assert time.monotonic() >= until, "it is not ready before it has listed"
    assert settled_writes(operator, since) == []


def test_two_operators_do_not_fight(
    operator: OperatorProcess, behind: ApiProxy, chat: str, tmp_path: Path
) -> None:
    """As while a node that is lost still runs its pods."""
    pull_failed_and_quiet(operator, chat)
    since = time.time()
    with twin_of(operator, tmp_path) as twin:
        for number in range(3):
            operator.kubectl("annotate", "--overwrite", "fgd", chat, f"touched={number}")
            time.sleep(1)
        assert settled_writes(operator, since) == []
        operator.patch(chat, {"replicas": 2})
        wait_until("two replicas", lambda: replicas_of(operator, chat) == 2, seconds=20)
        pull_failed_and_quiet(operator, chat)
        assert twin.answers("/healthz")
        assert operator.answers("/healthz")


@contextmanager
def twin_of(operator: OperatorProcess, folder: Path) -> Iterator[OperatorProcess]:
    """A second operator with the same rights, in the same namespace."""
    twin = copy.copy(operator)
    twin.log, (twin.port,) = folder / "twin.log", free_ports(1)
    twin.start()
    try:
        yield twin
    finally:
        twin.stop()


def test_probes_tell_of_a_process_that_does_not_move(
    operator: OperatorProcess, behind: ApiProxy
) -> None:
    assert operator.process
    operator.process.send_signal(signal.SIGSTOP)
    try:
        assert not operator.answers("/healthz")
    finally:
        operator.process.send_signal(signal.SIGCONT)
    wait_until("it moves again", lambda: operator.answers("/healthz"), seconds=20)


def test_the_steady_state_asks_for_little(
    operator: OperatorProcess, behind: ApiProxy, chat: str
) -> None:
    """One list of FastGenDeployments a minute, and watches that begin anew."""
    since = len(behind.requests)
    for number in range(5):
        operator.kubectl("annotate", "--overwrite", "fgd", chat, f"touched={number}")
        time.sleep(1)
    asked = [each for each in behind.requests[since:] if not each.is_watch]
    optional = re.compile("podmonitors|prometheusrules")
    assert len([each for each in asked if not optional.search(each.path)]) <= 1
