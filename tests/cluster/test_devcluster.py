"""The development cluster as its users meet it: names, addresses, metrics, refusals, records."""

import json
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fastgen_devcluster import Cluster, audit_log_path, base_image, images
from fastgen_devcluster.clients import kubectl
from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.images import load_image
from fastgen_devcluster.process import Ledger
from fastgen_devcluster.settings import Settings

pytestmark = pytest.mark.cluster

NAMESPACE = "devcluster-test"
# Serves one metric on port 9000, and is where names are looked up from.
SERVER = """
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/numbers" else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"devcluster_answer 42\\n")
http.server.HTTPServer(("", 9000), Handler).serve_forever()
"""


def devcluster(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fastgen_devcluster", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode())


def eventually(question: Any, seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    cluster = Cluster.current()
    if cluster.is_own:
        pytest.skip("FASTGEN_KUBECONFIG names a cluster that is not the development cluster")
    return cluster


@pytest.fixture(scope="module")
def pod(cluster: Cluster) -> Iterator[str]:
    """A pod with Python in it and a metric to scrape."""
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "probe",
            "namespace": NAMESPACE,
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "9000",
                "prometheus.io/path": "/numbers",
            },
        },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "probe",
                    "image": load_image(base_image.name()),
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["python3", "-c", SERVER],
                }
            ],
        },
    }
    kubectl(cluster, "delete", "namespace", NAMESPACE, "--ignore-not-found")
    kubectl(cluster, "create", "namespace", NAMESPACE)
    kubectl(cluster, "apply", "--filename=-", stdin=yaml.safe_dump(manifest))
    wait = ("wait", "--for=condition=Ready", "pod/probe", f"--namespace={NAMESPACE}")
    kubectl(cluster, *wait, "--timeout=60s")
    yield "probe"
    kubectl(cluster, "delete", "namespace", NAMESPACE, "--wait=false")


def python(cluster: Cluster, pod: str, script: str) -> str:
    execute = ("exec", pod, f"--namespace={NAMESPACE}", "--", "python3", "-c", script)
    return kubectl(cluster, *execute).strip()


def test_status_tells_that_it_is_up(cluster: Cluster) -> None:
    told = devcluster("status", "--json")
    assert told.returncode == 0, told.stderr
    facts = json.loads(told.stdout)
    assert facts["is_up"]
    assert facts["missing"] == []
    assert Path(facts["kubeconfig"]) == cluster.kubeconfig


def test_kubectl_and_helm_pass_through(cluster: Cluster) -> None:
    nodes = json.loads(devcluster("kubectl", "get", "nodes", "--output=json").stdout)["items"]
    wanted = [node.name for node in Settings.from_environment().nodes]
    assert sorted(node["metadata"]["name"] for node in nodes) == wanted
    assert {node["status"]["nodeInfo"]["kubeletVersion"] for node in nodes} == {"v1.35.4"}
    refused = devcluster("kubectl", "get", "no-such-thing")
    assert refused.returncode == 1
    assert "no-such-thing" in refused.stderr
    assert json.loads(devcluster("helm", "list", "--all-namespaces", "--output=json").stdout) != {}


def test_up_again_changes_nothing(cluster: Cluster) -> None:
    ledger = Ledger(Settings.from_environment().records)
    before = [ledger.find(name) for name in ledger.names()]
    started = time.monotonic()
    assert devcluster("up").returncode == 0
    # Two seconds by itself; the rest is for what else runs on the machine.
    assert time.monotonic() - started < 10
    assert [ledger.find(name) for name in ledger.names()] == before
    assert all(before)


def test_the_host_reaches_services_and_pods(cluster: Cluster, pod: str) -> None:
    assert cluster.prometheus_url is not None
    assert "Ready" in get(f"{cluster.prometheus_url}/-/ready")
    query = ("get", "pod", pod, f"--namespace={NAMESPACE}", "--output=jsonpath={.status.podIP}")
    assert "42" in get(f"http://{kubectl(cluster, *query)}:9000/numbers")


def test_a_pod_finds_services_by_name_and_nothing_outside(cluster: Cluster, pod: str) -> None:
    fetch = "import urllib.request; print(urllib.request.urlopen({!r}, timeout=5).read().decode())"
    ready = python(cluster, pod, fetch.format("http://prometheus.monitoring:9090/-/ready"))
    assert "Ready" in ready
    lookup = "import socket; print(socket.gethostbyname({!r}))"
    api = python(cluster, pod, lookup.format("kubernetes.default.svc.cluster.local"))
    assert api == Settings.from_environment().service_address(1)
    with pytest.raises(CommandError, match=r"Name or service not known|No address"):
        python(cluster, pod, lookup.format("no-such-host.example.com"))
    connect = "import socket; socket.create_connection(('198.51.100.1', 80), timeout=5)"
    with pytest.raises(CommandError, match="Network is unreachable"):
        python(cluster, pod, connect)


def test_a_pod_reaches_this_machine(cluster: Cluster, pod: str) -> None:
    assert cluster.host_address is not None
    server = (
        "import socket; listener = socket.create_server(({!r}, 0));"
        "print(listener.getsockname()[1], flush=True); listener.accept()"
    )
    command = [sys.executable, "-c", server.format(cluster.host_address)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        port = int(host.stdout.readline())
        connect = f"import socket; socket.create_connection(('{cluster.host_address}', {port}), 5)"
        python(cluster, pod, connect)
        assert host.wait(timeout=5) == 0


def test_prometheus_scrapes_annotated_pods_and_says_where_they_are(
    cluster: Cluster, pod: str
) -> None:
    query = urllib.parse.urlencode({"query": f'devcluster_answer{{namespace="{NAMESPACE}"}}'})

    def samples() -> list[dict[str, Any]]:
        answer = json.loads(get(f"{cluster.prometheus_url}/api/v1/query?{query}"))
        return list(answer["data"]["result"])

    (sample,) = eventually(samples)
    assert sample["value"][1] == "42"
    assert sample["metric"]["pod"] == pod
    where = ("get", "pod", pod, f"--namespace={NAMESPACE}", "--output=jsonpath={.spec.nodeName}")
    assert sample["metric"]["node"] == kubectl(cluster, *where)


def test_what_a_killed_build_has_left_mounted_is_removed() -> None:
    stands_on = images.Plan.read().local("build-dependencies")
    container = run("buildah", "from", "--pull=never", stands_on).strip()
    mounted = run("buildah", "mount", container).strip()
    images.remove_abandoned(Settings.from_environment())
    assert container not in run("buildah", "containers", "--format", "{{.ContainerName}}")
    assert mounted not in Path("/proc/mounts").read_text()


def test_kubectl_refuses_a_field_that_does_not_exist(cluster: Cluster, pod: str) -> None:
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "wrong", "namespace": NAMESPACE},
        "dada": {},
    }
    with pytest.raises(CommandError, match="dada"):
        kubectl(cluster, "apply", "--filename=-", stdin=yaml.safe_dump(manifest))


def test_the_audit_log_tells_who_wrote_what_and_who_read_nothing(
    cluster: Cluster, pod: str
) -> None:
    name = f"written-{time.monotonic_ns()}"
    kubectl(cluster, "create", "configmap", name, f"--namespace={NAMESPACE}")
    kubectl(cluster, "get", "configmap", name, f"--namespace={NAMESPACE}")

    def events() -> list[dict[str, Any]]:
        lines = audit_log_path().read_text().splitlines()
        found = [json.loads(line) for line in lines if name in line]
        return [event for event in found if event["objectRef"]["name"] == name]

    (event,) = eventually(events)
    assert event["verb"] == "create"
    assert event["user"]["username"] == "admin"
    assert "requestObject" not in event
