"""Two nodes: addresses, names, policies, volumes and GPUs across both."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Commands
from gpus import RESOURCE, gpus, machine_nodes

from fastgen_devcluster import base_image
from fastgen_devcluster.command import CommandError
from fastgen_devcluster.images import load_image
from fastgen_devcluster.settings import Settings

pytestmark = pytest.mark.cluster

SERVER = """
import socket
listener = socket.create_server(("", 9000))
while True:
    listener.accept()[0].close()
"""
IDLE = "import signal; signal.pause()"
POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "friends-only"},
    "spec": {
        "podSelector": {"matchLabels": {"name": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"name": "friend"}}}]}],
    },
}


class Space:
    """A namespace with pods of one Python program each."""

    def __init__(self, cluster: Commands, image: str) -> None:
        self.cluster = cluster
        self.image = image
        self.name = f"nodes-test-{uuid.uuid4().hex[:6]}"

    def kubectl(self, *words: str, stdin: str = "") -> str:
        return self.cluster.kubectl("-n", self.name, *words, stdin=stdin)

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def apply(self, manifest: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def claim(self, name: str, mode: str, **spec: str) -> None:
        size = {"requests": {"storage": "1Mi"}}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": name},
                "spec": {"accessModes": [mode], "resources": size, **spec},
            }
        )

    def pod(self, name: str, script: str = IDLE, claims: tuple[str, ...] = (), **spec: Any) -> None:
        """A pod that mounts each claim at its name and is ready when port 9000 answers, if any."""
        container: dict[str, Any] = {
            "name": name,
            "image": self.image,
            "command": ["python3", "-c", script],
            "workingDir": "/tmp",
            "resources": spec.pop("resources", {}),
            "volumeMounts": [{"name": claim, "mountPath": f"/{claim}"} for claim in claims],
        }
        if script == SERVER:
            container["readinessProbe"] = {"tcpSocket": {"port": 9000}, "periodSeconds": 1}
        volumes = [
            {"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims
        ]
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "labels": {"name": name}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                    "volumes": volumes,
                    **spec,
                },
            }
        )

    def python(self, pod: str, script: str) -> str:
        return self.kubectl("exec", pod, "--", "python3", "-c", script).strip()

    def reaches(self, pod: str, host: str) -> bool:
        script = f"import socket; socket.create_connection(({host!r}, 9000), timeout=2)"
        try:
            self.python(pod, script)
        except CommandError as failure:
            # A packet that no policy allows is answered with a refusal.
            if "refused" in str(failure) or "timed out" in str(failure):
                return False
            raise
        return True


def eventually(question: Callable[[], Any], seconds: float = 30) -> Any:
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def space(cluster: Commands) -> Iterator[Space]:
    """A server in one zone, a friend and a stranger in the other, and two claims."""
    if cluster.cluster.is_own:
        pytest.skip("FASTGEN_KUBECONFIG names a cluster that is not the development cluster")
    space = Space(cluster, load_image(base_image.name()))
    cluster.kubectl("create", "namespace", space.name)
    space.claim("one", "ReadWriteOnce")
    space.claim("many", "ReadWriteMany", storageClassName="shared")
    here, there = (zone(number) for number in range(2))
    space.pod("server", SERVER, claims=("one", "many"), **here)
    space.pod("friend", claims=("many",), **there)
    space.pod("stranger", **there)
    space.kubectl("expose", "pod", "server", "--port=9000")
    space.kubectl("wait", "--for=condition=Ready", "pod", "--all", "--timeout=90s")
    yield space
    cluster.kubectl("delete", "namespace", space.name, "--wait=false")


def zone(number: int) -> dict[str, Any]:
    return {"nodeSelector": {"topology.kubernetes.io/zone": f"zone-{number}"}}


def test_pods_reach_one_another_across_nodes_by_address_and_by_name(space: Space) -> None:
    server = space.get("pod", "server")
    assert server["spec"]["nodeName"] != space.get("pod", "friend")["spec"]["nodeName"]
    assert space.reaches("friend", server["status"]["podIP"])
    eventually(lambda: space.reaches("friend", "server"))


def test_logs_come_from_either_node(space: Space) -> None:
    script = f"print('here I am', flush=True); {IDLE}"
    for number in range(2):
        space.pod(f"talker-{number}", script, **zone(number))
    for number in range(2):
        space.kubectl("wait", "--for=condition=Ready", f"pod/talker-{number}", "--timeout=30s")
        assert "here I am" in space.kubectl("logs", f"talker-{number}")


def test_a_network_policy_lets_one_pod_in_and_another_not(space: Space) -> None:
    address = space.get("pod", "server")["status"]["podIP"]
    assert space.reaches("stranger", address)
    space.apply(POLICY)
    eventually(lambda: not space.reaches("stranger", address))
    assert not space.reaches("stranger", "server")
    assert space.reaches("friend", address)
    assert space.reaches("friend", "server")
    # Its kubelet still reaches it: at a probe a second, three that failed have made it unready.
    time.sleep(4)
    space.kubectl("wait", "--for=condition=Ready", "pod/server", "--timeout=0s")
    space.kubectl("delete", "networkpolicy", "friends-only")
    eventually(lambda: space.reaches("stranger", address))


def test_a_shared_volume_is_the_same_on_both_nodes(space: Space) -> None:
    space.python("server", "open('/many/word', 'w').write('from the other node')")
    assert space.python("friend", "print(open('/many/word').read())") == "from the other node"


def test_the_default_class_makes_a_volume_on_the_pods_node_and_removes_it(
    space: Space, cluster: Commands
) -> None:
    space.claim("brief", "ReadWriteOnce")
    space.pod(
        "writer",
        "open('/brief/x', 'w').write('kept')",
        ("brief",),
        restartPolicy="Never",
        **zone(1),
    )
    space.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", "--timeout=60s")
    name = space.get("pvc", "brief")["spec"]["volumeName"]
    volume = json.loads(cluster.kubectl("get", "pv", name, "-o", "json"))
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert terms[0]["matchExpressions"][0]["values"] == [machine_nodes(cluster)[1]]
    directory = Path(volume["spec"]["hostPath"]["path"])
    assert directory.is_relative_to(Settings.from_environment().node(1).home)
    assert (directory / "x").read_text() == "kept"
    space.kubectl("delete", "pod/writer", "pvc/brief")
    eventually(lambda: not directory.exists())


def test_gpus_are_counted_and_a_pod_too_many_waits(space: Space, cluster: Commands) -> None:
    wanted = {"limits": {RESOURCE: "1"}}
    with gpus(cluster, {0: 1}):
        space.pod("first", resources=wanted)
        space.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=30s")
        assert space.get("pod", "first")["spec"]["nodeName"] == machine_nodes(cluster)[0]
        space.pod("second", resources=wanted)
        said = eventually(lambda: why_unscheduled(space.get("pod", "second")))
        assert f"Insufficient {RESOURCE}" in said
        # The kubelet's own reports leave the number as it is.
        space.kubectl("delete", "pod", "first")
        space.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=30s")
        space.kubectl("delete", "pod", "second")
    node = json.loads(cluster.kubectl("get", "node", machine_nodes(cluster)[0], "-o", "json"))
    assert RESOURCE not in node["status"]["capacity"] | node["status"]["allocatable"]


def why_unscheduled(pod: dict[str, Any]) -> str:
    """The scheduler's words, or nothing."""
    conditions = pod["status"].get("conditions", [])
    return next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
