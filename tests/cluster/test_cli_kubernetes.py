"""`fastgen explain` and `fastgen top` on a real cluster, by people with few rights and many."""

import json
import os
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from cluster_access import wait_until
from operator_process import OperatorProcess, operator_in
from terminal import Terminal, on_terminal

from fastgen_devcluster.images import build_images

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

REPOSITORY = Path(__file__).resolve().parents[2]
NAMESPACE = "fastgen-tools-test"
PROGRAMS = Path(sys.executable).parent
SMALL = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "1536Mi"}}
ENGINE = {"dtype": "Float32", "maxModelLength": 512, "maxConcurrentRequests": 4}
SLO = {"timeToFirstToken": {"milliseconds": 60000}}
ONE = {"replicas": 1}


@dataclass(frozen=True)
class Person:
    """Somebody with a kubeconfig of their own."""

    operator: OperatorProcess
    kubeconfig: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        given = {
            "KUBECONFIG": str(self.kubeconfig),
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
            "HOME": "/nonexistent",
            "TERM": "xterm-256color",
            "COLUMNS": "120",
        }
        object.__setattr__(self, "environment", given)

    def fastgen(self, *words: str, code: int | None = 0) -> str:
        """What the program printed; fails unless it exits with `code`."""
        done = subprocess.run(
            ["fastgen", *words], env=self.environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def explain(self, name: str, code: int) -> str:
        return self.fastgen("explain", name, code=code)

    def top(self, *words: str) -> str:
        return self.fastgen("top", "--once", *words)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One that serves, one without its model, one that no node takes, one without its image."""
    built = build_images()
    images = {"runtime": built.runtime, "control": built.control}
    with operator_in(NAMESPACE, tmp_path_factory.mktemp("operator"), images, 18093) as operator:
        operator.start()
        auto = {"mode": "Auto", "minReplicas": 1, "maxReplicas": 2}
        operator.create("chat", resources=SMALL, engine=ENGINE, slo=SLO, scaling=auto)
        source = {"source": "file:///models/absent.gguf"}
        operator.create("absent", model=source, resources=SMALL, engine=ENGINE)
        operator.create("huge", resources={"requests": {"memory": "9Ti"}})
        operator.create("pictureless", image="127.0.0.1:1/none:1")
        wait_until("Ready", lambda: is_ready(operator, "chat"), seconds=180)
        yield operator
        # Nobody waits for these pods' drains.
        operator.stop()
        operator.kubectl("delete", "fgd,deployments", "--all", "--wait=false")
        operator.kubectl("delete", "pods", "--all", "--force", "--grace-period=0")


def is_ready(operator: OperatorProcess, name: str) -> bool:
    return bool(operator.condition(name, "Ready").get("status") == "True")


@pytest.fixture(scope="module")
def people(served: OperatorProcess, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Person]:
    """A viewer and an editor of the namespace, and one who may read FastGenDeployments alone."""
    folder = tmp_path_factory.mktemp("people")
    chart = str(REPOSITORY / "charts/fastgen")
    values = "--set=images.control=c:1,images.runtime=r:1"
    rendered = yaml.safe_load_all(served.kubernetes.helm("template", "fastgen", chart, values))
    # The chart adds these rules to the cluster roles; here they are the namespace's.
    (rules,) = [each["rules"] for each in rendered
                if each and each["kind"] == "ClusterRole"
                and each["metadata"]["name"] == "fastgen-view"]  # fmt: skip
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": {"name": "fastgen-view"}, "rules": rules}  # fmt: skip
    served.kubectl("apply", "-f", "-", stdin=json.dumps(role))
    found = {}
    for name, cluster_role in (("viewer", "view"), ("editor", "edit"), ("reader", None)):
        served.kubectl("create", "serviceaccount", name)
        account = f"--serviceaccount={NAMESPACE}:{name}"
        served.kubectl("create", "rolebinding", f"{name}-fgd", "--role=fastgen-view", account)
        if cluster_role:
            served.kubectl("create", "rolebinding", name, f"--clusterrole={cluster_role}", account)
        found[name] = Person(served, credentials(served, name, folder))
    return found


def credentials(operator: OperatorProcess, account: str, folder: Path) -> Path:
    token = operator.kubectl("create", "token", account).strip()
    raw = operator.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    config = json.loads(raw)
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = NAMESPACE
    path = folder / account
    path.write_text(json.dumps(config))
    return path


def test_a_viewer_is_told_why_there_are_so_many_replicas(people: dict[str, Person]) -> None:
    text = people["viewer"].explain("chat", code=0)
    assert "ready: 1 of 1 replicas serve" in text
    assert "the autoscaler chooses, from 1 to 2" in text
    assert "as at its creation, by somebody with kubectl create" in text
    assert "Not seen" not in text


def test_whoever_scales_by_hand_is_told(people: dict[str, Person], served: OperatorProcess) -> None:
    served.kubectl("scale", "fgd/huge", "--replicas=2")
    text = people["viewer"].explain("huge", code=1)
    assert "2 replicas are wanted" in text
    assert "spec.replicas was last written by somebody with kubectl" in text


@pytest.mark.parametrize(
    ("name", "kind", "words", "command"),
    [
        ("absent", "ModelReady", "/models/absent.gguf", "edit fgd absent"),
        ("huge", "CapacityBlocked", "Insufficient memory", "describe pod huge-replica-"),
        ("pictureless", "Ready", "127.0.0.1:1/none:1", "edit fgd pictureless"),
    ],
)
def test_a_viewer_is_told_what_is_amiss_in_its_own_words_and_what_to_do(
    people: dict[str, Person],
    served: OperatorProcess,
    name: str,
    kind: str,
    words: str,
    command: str,
) -> None:
    wait_until("the words", lambda: words in str(served.condition(name, kind)), seconds=90)
    text = people["viewer"].explain(name, code=1)
    assert words in text
    assert f"kubectl -n {NAMESPACE} {command}" in text
    assert "Not seen" not in text
    found = json.loads(people["viewer"].fastgen("explain", name, "-o", "json", code=1))
    assert found["ready"] is False
    assert words in json.dumps(found["pods"])
    assert found["advice"]


def test_what_a_missing_right_hides_is_told_and_the_rest_is_not_lost(
    people: dict[str, Person],
) -> None:
    text = people["reader"].explain("absent", code=1)
    assert "/models/absent.gguf" in text
    assert "Not seen" in text
    assert 'pods is forbidden: User "system:serviceaccount:' in text


def test_a_name_that_does_not_exist_lists_those_that_do(people: dict[str, Person]) -> None:
    text = people["viewer"].explain("caht", code=2)
    assert "There are: absent, chat, huge, pictureless" in text


def test_kubectl_runs_it_as_a_plugin(people: dict[str, Person], served: OperatorProcess) -> None:
    kubectl = str(served.kubernetes.cluster.kubectl)
    done = subprocess.run(
        [kubectl, "fastgen", "explain", "chat"],
        env=people["viewer"].environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("✓ chat in namespace")


def ask_for_tokens(operator: OperatorProcess) -> None:
    address = operator.get("service", "chat")["spec"]["clusterIP"]
    answer = httpx2.post(
        f"http://{address}/v1/completions",
        json={"model": "chat", "prompt": "Hello", "max_tokens": 8},
        timeout=60,
    )
    assert answer.status_code == 200, answer.text


def cells(table: str, name: str) -> list[str]:
    """The words of the row of one deployment."""
    return next(line.split() for line in table.splitlines() if line.startswith(name))


def test_an_editor_sees_the_pods_own_figures(
    people: dict[str, Person], served: OperatorProcess
) -> None:
    ask_for_tokens(served)
    table = people["editor"].top()
    assert "by the pods' own /metrics." in table
    _, ready, good, sign, slo, *more = cells(table, "chat")
    assert (ready, good, sign, slo) == ("1/1", "100.0", "%", "99")
    assert more[1] != "–", table
    assert "0/1" in cells(table, "absent")
    assert "Insufficient memory" in table


def test_a_viewer_sees_the_status_and_is_told_what_is_missing(people: dict[str, Person]) -> None:
    table = people["viewer"].top()
    assert f"Status only of {NAMESPACE}: live figures need the right to get pods/proxy" in table
    assert cells(table, "chat")[1] == "1/1"


def test_prometheus_gives_the_figures_to_whoever_names_it(
    people: dict[str, Person], served: OperatorProcess
) -> None:
    url = served.kubernetes.cluster.prometheus_url
    if url is None:
        pytest.skip("FASTGEN_PROMETHEUS_URL does not name a Prometheus")

    def is_known() -> Any:
        table = people["viewer"].top("--prometheus-url", url)
        assert f"Figures of the last minute, by {url}." in table
        return "–" not in cells(table, "chat")[-2:]

    ask_for_tokens(served)
    wait_until("Prometheus has scraped the replica", is_known, seconds=60, pause=2)
    table = people["viewer"].top("--prometheus-url", "http://127.0.0.1:9")
    assert "Status only. No Prometheus answers at http://127.0.0.1:9" in table


def test_all_namespaces_need_the_right_to_them(people: dict[str, Person]) -> None:
    text = people["viewer"].fastgen("top", "--once", "-A", code=2)
    assert "name one with -n" in text
    assert len(text.strip().splitlines()) == 1


@pytest.fixture
def terminal(people: dict[str, Person]) -> Iterator[Terminal]:
    """`fastgen top`, in a window."""
    environment = {k: v for k, v in people["editor"].environment.items() if k != "COLUMNS"}
    with on_terminal(("fastgen", "top"), environment) as found:
        yield found


@pytest.mark.parametrize("end", ["q", "Ctrl-C"])
def test_a_window_shows_the_table_until_a_key_and_is_left_as_it_was(
    terminal: Terminal, end: str
) -> None:
    before = termios.tcgetattr(terminal.other_end)
    wait_until("the table", lambda: terminal.sees("q quits"), seconds=30)
    wait_until("a second look", lambda: terminal.frames() > 1, seconds=30)
    assert termios.tcgetattr(terminal.other_end) != before
    if end == "q":
        os.write(terminal.controller, b"q")
    else:
        terminal.process.send_signal(signal.SIGINT)
    wait_until("the end", lambda: terminal.frames() and terminal.process.poll() is not None, 20)
    assert terminal.process.returncode == 0
    assert termios.tcgetattr(terminal.other_end) == before
    assert terminal.sees("\x1b[?1049l")
    assert "Traceback" not in terminal.seen
