"""What surrounds the pods on a real cluster: Pod Security, network policies, evictions."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from cluster_access import RESTRICTED, wait_until
from commands import Commands
from operator_process import OperatorProcess, operator_in

from fastgen_api import names
from fastgen_cli.plan import free_ports
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NAMESPACE = "fastgen-protection"
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4}
KNOCK = """
import socket, sys
for target in sys.argv[1:]:
    host, port = target.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print(target, "open")
    except OSError:
        print(target, "closed")
"""
LOOK_AROUND = """
import glob
print(open("/proc/mounts").read())
print(*[open(each).read() for each in glob.glob("/proc/[0-9]*/cmdline")])
"""
CONFINED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """An operator, and `guarded`: a replica and two balancers where only confined pods may run."""
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    (port,) = free_ports(1)
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, port) as operator:
        operator.kubernetes.kubectl("label", "namespace", NAMESPACE, RESTRICTED)
        operator.start()
        operator.create("guarded", resources=SMALL, engine=ENGINE, balancer={"replicas": 2})
        wait_until("Ready", lambda: is_ready(operator), seconds=180)
        yield operator


def is_ready(operator: OperatorProcess) -> bool:
    return bool(operator.condition("guarded", "Ready").get("status") == "True")


def pods(operator: OperatorProcess, component: str) -> list[Any]:
    selector = f"fastgen.dev/deployment=guarded,app.kubernetes.io/component={component}"
    found = operator.get("pods", "-l", selector)["items"]
    return [each for each in found if "deletionTimestamp" not in each["metadata"]]


@pytest.fixture(scope="module")
def strangers(guarded: OperatorProcess, cluster: Commands, namespace: str) -> list[str]:
    """Namespaces with a pod `stranger`: that of the deployment, and another."""
    stranger = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "stranger",
                    "image": guarded.images["control"],
                    "command": ["sleep", "infinity"],
                    "securityContext": CONFINED,
                }
            ],
        },
    }
    for where in (NAMESPACE, namespace):
        cluster.kubectl("create", "-n", where, "-f", "-", stdin=json.dumps(stranger))
    for where in (NAMESPACE, namespace):
        cluster.kubectl("wait", "-n", where, "--for=condition=Ready", "pod/stranger",
                        "--timeout=60s")  # fmt: skip
    return [NAMESPACE, namespace]


def open_ports(cluster: Commands, where: str, address: str, *ports: int) -> set[int]:
    """The ports at which a stranger is let in."""
    targets = [f"{address}:{port}" for port in ports]
    knock = ("exec", "-n", where, "stranger", "--", "python3", "-c", KNOCK, *targets)
    told = dict(line.split() for line in cluster.kubectl(*knock).splitlines())
    assert told.keys() == set(targets)
    return {port for port in ports if told[f"{address}:{port}"] == "open"}


def complete(operator: OperatorProcess) -> None:
    """One request by way of the balancers."""
    service = operator.get("service", "guarded")["spec"]["clusterIP"]
    answer = httpx2.post(
        f"http://{service}/v1/completions",
        json={"model": "guarded", "prompt": "Hello", "max_tokens": 4},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text


def test_only_balancers_reach_replicas_and_everybody_the_balancers(
    guarded: OperatorProcess, cluster: Commands, strangers: list[str]
) -> None:
    (replica,) = pods(guarded, "replica")
    balancers = pods(guarded, "balancer")
    assert len(balancers) == 2
    for where in strangers:
        address = replica["status"]["podIP"]
        assert open_ports(cluster, where, address, 8000, 9000, 9090) == {9090}
        for each in balancers:
            address = each["status"]["podIP"]
            ports = (8080, 9090, 9091, 9092, 9002, 9901)
            assert open_ports(cluster, where, address, *ports) == {8080, 9091}
    complete(guarded)


def test_a_balancer_asks_another_what_it_holds_and_reaches_nothing_else_of_it(
    guarded: OperatorProcess,
) -> None:
    one, other = pods(guarded, "balancer")
    targets = [f"{other['status']['podIP']}:{port}" for port in (9092, 9090, 9901)]
    knock = ("exec", one["metadata"]["name"], "-c", "picker", "--", "python3", "-c", KNOCK)
    told = guarded.kubectl(*knock, *targets).splitlines()
    assert [line.split()[1] for line in told] == ["open", "closed", "closed"]


def test_gateways_are_let_in_by_their_namespace(
    guarded: OperatorProcess, cluster: Commands, strangers: list[str]
) -> None:
    own, foreign = strangers
    guarded.patch("guarded", {"balancer": {"endpointPicker": True}})
    cluster.kubectl("label", "namespace", foreign, f"{names.GATEWAYS_LABEL}=true")
    try:
        wait_until(
            "balancers pick for gateways", lambda: balancers_with(guarded, 9003) == 2, seconds=120
        )
        (replica,) = pods(guarded, "replica")
        for where, lets_in in ((own, False), (foreign, True)):
            found = open_ports(cluster, where, replica["status"]["podIP"], 8000, 9000, 9090)
            assert found == ({8000, 9000, 9090} if lets_in else {9090})
            for each in pods(guarded, "balancer"):
                found = open_ports(cluster, where, each["status"]["podIP"], 9003, 9092)
                assert found == ({9003} if lets_in else set())
    finally:
        cluster.kubectl("label", "namespace", foreign, f"{names.GATEWAYS_LABEL}-")
        guarded.patch("guarded", {"balancer": {"endpointPicker": False}})
    wait_until("balancers as before", lambda: balancers_with(guarded, 9003) == 0, seconds=120)
    wait_until("Ready", lambda: is_ready(guarded), seconds=60)


def balancers_with(operator: OperatorProcess, port: int) -> int:
    """How many of the two balancers have the port, once there are two and both are ready."""
    found = pods(operator, "balancer")
    if len(found) != 2 or not all(is_pod_ready(each) for each in found):
        return -1
    return sum(
        port in {each["containerPort"] for each in container.get("ports", ())}
        for pod in found
        for container in pod["spec"]["containers"]
    )


def is_pod_ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def test_prometheus_scrapes_what_is_guarded(guarded: OperatorProcess, cluster: Commands) -> None:
    url = cluster.cluster.prometheus_url
    if url is None:
        pytest.skip("no Prometheus is known here")

    def count(series: str) -> int:
        query = f'count({series}{{deployment="guarded",deployment_namespace="{NAMESPACE}"}})'
        answer = httpx2.get(f"{url}/api/v1/query", params={"query": query}).json()
        return int(answer["data"]["result"][0]["value"][1]) if answer["data"]["result"] else 0

    wait_until("the replica's series", lambda: count("fastgen_running_requests") == 1, seconds=30)
    wait_until("both balancers'", lambda: count("fastgen_balancer_endpoints") == 2, seconds=30)


def test_without_policies_the_replica_is_open(
    guarded: OperatorProcess, cluster: Commands, strangers: list[str]
) -> None:
    """The refusals above are the policies' doing."""
    guarded.stop()
    guarded.start({"FASTGEN_NETWORK_POLICIES": "false"})
    (replica,) = pods(guarded, "replica")
    address = replica["status"]["podIP"]

    def is_open() -> bool:
        return open_ports(cluster, strangers[1], address, 8000, 9000) == {8000, 9000}

    wait_until("an open replica", is_open, seconds=30)
    assert guarded.get("networkpolicies")["items"] == []
    guarded.stop()
    guarded.start()
    wait_until("a closed one", lambda: not open_ports(cluster, strangers[1], address, 8000),
               seconds=30)  # fmt: skip
    assert [each["metadata"]["uid"] for each in pods(guarded, "replica")] == [
        replica["metadata"]["uid"]
    ]


def test_what_pod_security_forbids_is_told_and_earlier_replicas_serve_on(
    guarded: OperatorProcess,
) -> None:
    (before,) = pods(guarded, "replica")
    guarded.patch("guarded", {"podTemplate": {"spec": {"hostNetwork": True}}})
    told = wait_until(
        "the refusal",
        lambda: (
            guarded.condition("guarded", "Ready")
            if guarded.condition("guarded", "Ready")["reason"] == "FailedCreate"
            else None
        ),
        seconds=60,
    )
    assert 'violates PodSecurity "restricted' in told["message"]
    assert "hostNetwork" in told["message"]
    assert guarded.condition("guarded", "Available")["status"] == "True"
    guarded.patch("guarded", {"podTemplate": None})
    wait_until("Ready", lambda: is_ready(guarded), seconds=60)
    assert [each["metadata"]["uid"] for each in pods(guarded, "replica")] == [
        before["metadata"]["uid"]
    ]


def test_three_ranks_of_one_replica_talk_in_a_confined_pod(guarded: OperatorProcess) -> None:
    """Tensor parallel without GPUs: the ranks share the CPUs."""
    resources = {"requests": SMALL["requests"], "limits": {"memory": "4Gi"}}
    engine = ENGINE | {"tensorParallelSize": 3}
    guarded.patch("guarded", {"engine": engine, "resources": resources})

    def has_three_ranks() -> bool:
        found = guarded.get("fgd", "guarded")
        if not is_ready(guarded) or found["status"]["observedGeneration"] < 2:
            return False
        (pod,) = pods(guarded, "replica")
        (runtime,) = pod["spec"]["containers"]
        return "--tensor-parallel-size=3" in runtime["args"]

    wait_until("a replica of three ranks", has_three_ranks, seconds=180)
    look = ("exec", "deployment/guarded-replica", "--", "python3", "-c", LOOK_AROUND)
    told = guarded.kubectl(*look)
    assert told.count("fastgen_runtime.rank_main") == 2
    assert "tmpfs /dev/shm tmpfs rw" in told
    assert "size=1048576k" in told
    complete(guarded)


def evict(operator: OperatorProcess, pod: Any) -> None:
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
    operator.kubernetes.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))


def test_one_balancer_stays_and_the_only_replica_may_go(guarded: OperatorProcess) -> None:
    wait_until("Ready", lambda: is_ready(guarded), seconds=60)
    first, second = pods(guarded, "balancer")
    evict(guarded, first)
    with pytest.raises(CommandError, match="disruption budget"):
        evict(guarded, second)
    evict(guarded, pods(guarded, "replica")[0])
    assert [each["metadata"]["name"] for each in pods(guarded, "balancer")
            if each["metadata"]["uid"] == second["metadata"]["uid"]]  # fmt: skip
