"""The operator as a process of this machine, with the rights that the chart gives it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cluster_access import Kubernetes, wait_until
from commands import Commands
from operator_report import noted

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

    def start(self, settings: Mapping[str, str] | None = None, **images: str) -> None:
        """Starts it and waits until it has listed what there is.

        `settings` are more of its environment variables, for this start alone.
        """
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "KUBECONFIG": str(self.kubeconfig),
            "FASTGEN_RUNTIME_IMAGE": (self.images | images)["runtime"],
            "FASTGEN_CONTROL_IMAGE": (self.images | images)["control"],
            "FASTGEN_WATCH_NAMESPACES": self.namespace,
            "FASTGEN_HTTP_PORT": str(self.port),
            **(settings or {}),
        }
        program = Path(sys.executable).parent / "fastgen-operator"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([program], env=environment, stderr=log, stdout=log)
        wait_until("the operator is ready", lambda: self.answers("/readyz"), seconds=60)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self.process = None

    def answers(self, path: str) -> bool:
        """Whether one of its probes is content."""
        return self.answer(path) is not None

    def answer(self, path: str) -> str | None:
        """What it answers with 200; None: nothing, or with another status."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"the operator ended: {self.log.read_text()[-2000:]}")
        try:
            answer = httpx2.get(f"http://127.0.0.1:{self.port}{path}")
        except httpx2.HTTPError:
            return None
        return answer.text if answer.status_code == 200 else None

    def kubectl(self, *words: str, stdin: str = "") -> str:
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
        kinds = (
            "deployment,service,configmap,serviceaccount,role,rolebinding,poddisruptionbudget,"
            "networkpolicy"
        )
        found = self.get(kinds, "-l", f"fastgen.dev/deployment={name}")["items"]
        return {(each["kind"], each["metadata"]["name"]): each for each in found}

    def writes(self, since: float) -> list[str]:
        """What the operator wrote, by the cluster's audit log; `since` is a Unix time."""
        return [text for user, text in self._audited(since) if user == self.user]

    def writers_of(self, what: str, since: float) -> list[str]:
        """Users, the last part of their names, of the writes whose URI names `what`."""
        within = f"/namespaces/{self.namespace}/"
        return [
            user.rpartition(":")[2]
            for user, text in self._audited(since)
            if within in text and what in text and "dryRun" not in text
        ]

    def writes_of_all(self, since: float) -> list[str]:
        """What any of our service accounts wrote, Leases apart: operator and balancers."""
        return [text for text in self._by_us(since) if "/leases" not in text]

    def leases_written(self, since: float) -> list[str]:
        """The renewals of Leases among what our service accounts wrote."""
        return [text for text in self._by_us(since) if "/leases" in text]

    def _by_us(self, since: float) -> Iterator[str]:
        ours = f"system:serviceaccount:{self.namespace}:"
        for user, text in self._audited(since):
            if user.startswith(ours):
                yield f"{user.removeprefix(ours)}: {text}"

    def _audited(self, since: float) -> Iterator[tuple[str, str]]:
        path = self.kubernetes.cluster.audit_log
        if path is None:
            pytest.skip("only the development cluster shows its audit log")
        yield from audited(path.read_text(), since)


def audited(text: str, since: float) -> Iterator[tuple[str, str]]:
    """User, and verb with URI, of the requests in an audit log since a Unix time.

    A last line without its end is still being written, and told the next time.
    """
    whole, _, _ = text.rpartition("\n")
    for line in whole.splitlines():
        event = json.loads(line)
        received = datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp()
        if received >= since:
            # A request that was not let in has no user, or one without a name.
            user = (event.get("user") or {}).get("username", "")
            yield user, f"{event['verb']} {event['requestURI']}"


@contextmanager
def operator_in(
    namespace: str, folder: Path, images: dict[str, str], port: int
) -> Iterator[OperatorProcess]:
    """An operator that is not started yet, in a fresh namespace; takes both away at the end.

    A chart's operator sleeps meanwhile.
    """
    kubernetes = Kubernetes(Cluster.current())
    kubectl = kubernetes.kubectl
    # As Helm would: a later installation of the chart finds its own field manager.
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=helm")
    kubectl(*apply, "-f", str(CRD))
    kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")
    with chart_operator_asleep(kubernetes):
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
            with noted(operator):
                yield operator
        finally:
            operator.stop()
            _clear(kubernetes, namespace)
            # Its end takes Kubernetes a while, and only who makes it anew must wait for that.
            kubectl("delete", "namespace", namespace, "--ignore-not-found", "--wait=false")


def _clear(kubernetes: Kubernetes, namespace: str) -> None:
    """Ends the pods at once: when the tests are over nobody waits for streams."""
    if not kubernetes.kubectl("get", "namespace", namespace, "--ignore-not-found"):
        return
    here = ("-n", namespace)
    kubernetes.kubectl(*here, "delete", "fgd", "--all", "--wait")
    # Those that a test made to be in the way, too.
    kubernetes.kubectl(*here, "delete", "deployment", "--all", "--wait", "--timeout=120s")
    kubernetes.kubectl(*here, "delete", "pods", "--all", "--grace-period=1", "--wait")


@contextmanager
def chart_operator_asleep(cluster: Commands) -> Iterator[None]:
    """Meanwhile no operator of a chart takes up what a test makes in a namespace of its own."""
    if not _sees_everything(cluster):
        yield
        return
    cluster.kubectl("scale", *CHART_OPERATOR, "--replicas=0")
    pods = ("-n=fastgen-system", "-l=app.kubernetes.io/name=fastgen-operator")
    cluster.kubectl("wait", "--for=delete", "pod", *pods, "--timeout=60s")
    try:
        yield
    finally:
        cluster.kubectl("scale", *CHART_OPERATOR, "--replicas=1")


def _sees_everything(cluster: Commands) -> bool:
    """Whether an operator that the chart installed watches all namespaces and runs."""
    text = cluster.kubectl("get", *CHART_OPERATOR, "--ignore-not-found", "-o", "json")
    if not text:
        return False
    spec = json.loads(text)["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value", "") for each in container["env"]}
    return bool(spec["replicas"]) and not environment["FASTGEN_WATCH_NAMESPACES"]


def _restricted_kubeconfig(kubernetes: Kubernetes, namespace: str, folder: Path) -> Path:
    """Rights as the chart gives them in namespaced mode, and a kubeconfig with these alone."""
    text = kubernetes.helm(
        "template", "fastgen", str(REPOSITORY / "charts" / "fastgen"), "--namespace", namespace,
        "--set", f"watchNamespaces={{{namespace}}},images.control=c:1,images.runtime=r:1",
    )  # fmt: skip
    rights = [each for each in yaml.safe_load_all(text) if each and each["kind"] in RIGHTS]
    kubernetes.kubectl("-n", namespace, "apply", "-f", "-", stdin=yaml.safe_dump_all(rights))
    return account_kubeconfig(kubernetes, namespace, folder)


def account_kubeconfig(kubernetes: Kubernetes, namespace: str, folder: Path) -> Path:
    """A kubeconfig with the rights of the operator's ServiceAccount alone."""
    token = kubernetes.kubectl("-n", namespace, "create", "token", "fastgen", "--duration=4h")
    raw = kubernetes.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    config = json.loads(raw)
    config["users"][0]["user"] = {"token": token.strip()}
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path
