"""The operator as a process of this machine, with the rights that the chart gives it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cluster_access import Kubernetes, wait_until

from fastgen_devcluster import Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
CRD = REPOSITORY / "crds" / "fastgendeployments.fastgen.dev.yaml"
CRD_NAME = "fastgendeployments.fastgen.dev"
CHART_OPERATOR = ("-n", "fastgen-system", "deployment/fastgen")
RIGHTS = ("ServiceAccount", "Role", "RoleBinding")


@dataclass
class OperatorProcess:
    """An operator that watches one namespace; it can be stopped and started."""

    kubernetes: Kubernetes
    namespace: str
    kubeconfig: Path
    log: Path
    images: dict[str, str]
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:fastgen"

    def start(self, **images: str) -> None:
        """Starts it and waits until it has listed what there is."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "KUBECONFIG": str(self.kubeconfig),
            "FASTGEN_RUNTIME_IMAGE": (self.images | images)["runtime"],
            "FASTGEN_CONTROL_IMAGE": (self.images | images)["control"],
            "FASTGEN_WATCH_NAMESPACES": self.namespace,
            "FASTGEN_HTTP_PORT": str(self.port),
        }
        program = Path(sys.executable).parent / "fastgen-operator"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([program], env=environment, stderr=log, stdout=log)
        wait_until("the operator is healthy", self.is_healthy, seconds=60)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self.process = None

    def is_healthy(self) -> bool:
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"the operator ended: {self.log.read_text()[-2000:]}")
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/healthz").status_code == 200
        except httpx2.HTTPError:
            return False

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return str(self.kubernetes.kubectl("-n", self.namespace, *words, stdin=stdin))

    def get(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "-o", "json"))

    def find(self, *words: str) -> Any:
        """The object, or None."""
        text = self.kubectl("get", *words, "--ignore-not-found", "-o", "json")
        return json.loads(text) if text else None

    def create(self, name: str, **spec: Any) -> None:
        """Creates a FastGenDeployment that scales by hand; `spec` replaces top-level fields."""
        manifest = {
            "apiVersion": "fastgen.dev/v1alpha1",
            "kind": "FastGenDeployment",
            "metadata": {"name": name},
            "spec": {
                "model": {"source": "file:///models/SmolLM2-135M-Instruct.gguf"},
                "scaling": {"mode": "Disabled"},
                "balancer": {"replicas": 1},
                "rollout": {"drainSeconds": 5},
            }
            | spec,
        }
        self.kubectl("create", "-f", "-", stdin=json.dumps(manifest))

    def patch(self, name: str, spec: dict[str, Any]) -> None:
        self.kubectl("patch", "fgd", name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """One condition of a FastGenDeployment, or an empty dict."""
        conditions = self.get("fgd", name).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def children(self, name: str) -> dict[tuple[str, str], dict[str, Any]]:
        kinds = "deployment,service,configmap,serviceaccount,role,rolebinding"
        found = self.get(kinds, "-l", f"fastgen.dev/deployment={name}")["items"]
        return {(each["kind"], each["metadata"]["name"]): each for each in found}

    def writes(self, since: float) -> list[str]:
        """What the operator wrote, by the cluster's audit log; `since` is a Unix time."""
        return [text for user, text in self._audited(since) if user == self.user]

    def writes_of_all(self, since: float) -> list[str]:
        """What any of our service accounts wrote, Leases apart: operator and balancers."""
        ours = f"system:serviceaccount:{self.namespace}:"
        return [
            f"{user.removeprefix(ours)}: {text}"
            for user, text in self._audited(since)
            if user.startswith(ours) and "/leases" not in text
        ]

    def _audited(self, since: float) -> Iterator[tuple[str, str]]:
        path = self.kubernetes.cluster.audit_log
        if path is None:
            pytest.skip("only the development cluster shows its audit log")
        for line in path.read_text().splitlines():
            event = json.loads(line)
            if _time(event) >= since:
                user = event["user"].get("username", "")  # Nobody, for what was not let in.
                yield user, f"{event['verb']} {event['requestURI']}"


def _time(event: dict[str, Any]) -> float:
    return datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()


@contextmanager
def operator_in(
    namespace: str, folder: Path, images: dict[str, str], port: int
) -> Iterator[OperatorProcess]:
    """An operator that is not started yet, in a fresh namespace; takes all of it away at the end.

    A chart's operator that watches all namespaces would see the same resources; it sleeps
    meanwhile.
    """
    kubernetes = Kubernetes(Cluster.current())
    kubectl = kubernetes.kubectl
    had_crd = bool(kubectl("get", "crd", CRD_NAME, "--ignore-not-found", "-o", "name"))
    kubectl("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")
    sleeping = _sees_everything(kubernetes)
    if sleeping:
        kubectl("scale", *CHART_OPERATOR, "--replicas=0")
    kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait")
    kubectl("create", "namespace", namespace)
    operator = OperatorProcess(
        kubernetes,
        namespace,
        _restricted_kubeconfig(kubernetes, namespace, folder),
        folder / "operator.log",
        images,
        port,
    )
    try:
        yield operator
    finally:
        operator.stop()
        kubectl("delete", "namespace", namespace, "--wait")
        if sleeping:
            kubectl("scale", *CHART_OPERATOR, "--replicas=1")
        if not had_crd and not kubectl("get", "fgd", "-A", "-o", "name"):
            kubectl("delete", "crd", CRD_NAME)


def _sees_everything(kubernetes: Kubernetes) -> bool:
    """Whether an operator that the chart installed watches all namespaces."""
    text = kubernetes.kubectl("get", *CHART_OPERATOR, "--ignore-not-found", "-o", "json")
    if not text:
        return False
    (container,) = json.loads(text)["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    return not environment["FASTGEN_WATCH_NAMESPACES"]


def _restricted_kubeconfig(kubernetes: Kubernetes, namespace: str, folder: Path) -> Path:
    """Rights as the chart gives them in namespaced mode, and a kubeconfig with these alone."""
    text = kubernetes.helm(
        "template", "fastgen", str(REPOSITORY / "charts" / "fastgen"), "--namespace", namespace,
        "--set", f"watchNamespaces={{{namespace}}},images.control=c:1,images.runtime=r:1",
    )  # fmt: skip
    rights = [each for each in yaml.safe_load_all(text) if each and each["kind"] in RIGHTS]
    kubernetes.kubectl("-n", namespace, "apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    token = kubernetes.kubectl("-n", namespace, "create", "token", "fastgen", "--duration=2h")
    raw = kubernetes.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    config = json.loads(raw)
    config["users"][0]["user"] = {"token": token.strip()}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path
