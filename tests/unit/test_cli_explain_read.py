"""Which cluster is asked, with what credentials, and how a failure to ask is told."""

import asyncio
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fastgen_api import names
from fastgen_cli.cluster_reads import Reader, Refusal
from fastgen_cli.explain_read import kubectl_flags
from fastgen_cli.kubeconfig import NoClusterError, Target, choose
from fastgen_cli.plugin import app

SERVICE = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def config(name: str, **user: Any) -> dict[str, Any]:
    return {
        "current-context": name,
        "clusters": [
            {"name": name, "cluster": {"server": f"https://{name}", "certificate-authority": "ca"}}
        ],
        "users": [{"name": name, "user": user}],
        "contexts": [
            {"name": name, "context": {"cluster": name, "user": name, "namespace": f"of-{name}"}}
        ],
    }


def write(folder: Path, name: str, **user: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config"
    path.write_text(yaml.safe_dump(config(name, **user)))
    return path


def test_several_files_are_one_and_each_file_s_paths_are_its_own(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    environment = {"KUBECONFIG": f"{one}:{tmp_path / 'absent'}:{two}"}
    assert choose(Target(), environment).cluster.server == "https://one"
    found = choose(Target(context="two"), environment)
    assert found.cluster.server == "https://two"
    assert found.cluster.certificate_auth == str(tmp_path / "b" / "ca")
    assert found.namespace == "of-two"
    assert choose(Target(context="two", namespace="x"), environment).namespace == "x"


def test_what_a_person_names_comes_before_the_environment(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a", "one"), write(tmp_path / "b", "two")
    found = choose(Target(kubeconfig=two), {"KUBECONFIG": str(one)})
    assert found.cluster.server == "https://two"


def test_the_home_folder_s_is_the_default(tmp_path: Path) -> None:
    write(tmp_path / ".kube", "home")
    found = choose(Target(), {"HOME": str(tmp_path)} | SERVICE)
    assert found.cluster.server == "https://home"


def test_a_credential_program_of_version_1_is_asked_without_a_terminal(tmp_path: Path) -> None:
    program = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./token"}
    path = write(tmp_path / "a", "one", exec=program)
    found = choose(Target(kubeconfig=path), {})
    assert found.user is not None
    assert found.user.exec is not None
    assert found.user.exec.command == str(tmp_path / "a" / "token")
    (told,) = found.user.exec.env or ()
    assert json.loads(told.value)["spec"] == {"interactive": False}


@pytest.mark.parametrize(
    ("text", "target", "complaint"),
    [
        (None, Target(), "is not there"),
        ("[]", Target(), "is not a kubeconfig"),
        ("a: [", Target(), "No cluster to ask"),
        ("apiVersion: v1", Target(), "No current context"),
        (yaml.safe_dump(config("one")), Target(context="two"), "Context 'two' not found"),
        (yaml.safe_dump(config("one") | {"clusters": []}), Target(), "No cluster to ask"),
    ],
)
def test_a_kubeconfig_that_leads_nowhere_is_told_with_the_way_out(
    tmp_path: Path, text: str | None, target: Target, complaint: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(NoClusterError, match=complaint) as raised:
        choose(target, {"KUBECONFIG": str(path)})
    assert "--kubeconfig or KUBECONFIG" in str(raised.value)


DEEP = '{"a":' * 1500 + "{}" + "}" * 1500
DEEP_LIST = f'{{"items": [{{"name": "deep", "spec": {DEEP}}}, {{"name": "fine"}}]}}'.encode()


class Answers(BaseHTTPRequestHandler):
    """Answers what the path asks for: `/CODE/anything`, and a list below /apis."""

    def do_GET(self) -> None:
        first = self.path.split("/")[1]
        code = 200 if first == "apis" else int(first)
        body = b'{"message": "no\\nsuch thing"}' if code == 404 else b"<html>down</html>"
        body = DEEP_LIST if first == "apis" else body
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


@pytest.fixture
def server() -> Iterator[str]:
    found = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=found.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{found.server_port}"
    found.shutdown()
    found.server_close()


def reader(tmp_path: Path, server: str) -> Reader:
    body = config("one") | {"clusters": [{"name": "one", "cluster": {"server": server}}]}
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(body))
    return Reader(choose(Target(kubeconfig=path), {}))


def test_refusals_are_values_and_silence_is_an_error(tmp_path: Path, server: str) -> None:
    async def ask() -> None:
        async with reader(tmp_path, server) as found:
            assert await found.text("/404/x") == Refusal(404, "no")
            assert await found.text("/503/x") == Refusal(503, "<html>down</html>")
            with pytest.raises(NoClusterError, match="does not know you"):
                await found.text("/401/x")
        async with reader(tmp_path, "http://127.0.0.1:9") as found:
            with pytest.raises(NoClusterError, match=r"No cluster answers at http://127.0.0.1:9"):
                await found.text("/200/x")

    asyncio.run(ask())


def test_one_resource_nested_too_deeply_hides_no_other(tmp_path: Path, server: str) -> None:
    async def ask() -> None:
        async with reader(tmp_path, server) as found:
            listed = await found.all(names.PLURAL, None)
            assert not isinstance(listed, Refusal)
            assert [each["name"] for each in listed] == ["deep", "fine"]

    asyncio.run(ask())


@pytest.mark.parametrize("words", [("explain", "chat"), ("top", "--once")])
def test_without_a_cluster_there_is_one_sentence_and_exit_2(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, [*words, "--kubeconfig", str(tmp_path / "absent")])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert "No cluster to ask" in done.stderr


def test_commands_reach_the_same_cluster() -> None:
    target = Target("a b", None, Path("/k"))
    assert kubectl_flags(target, "models") == "--kubeconfig /k --context 'a b' -n models"
