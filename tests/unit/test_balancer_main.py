"""What the program's arguments mean, and what it says of those that cannot be."""

import json
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastgen_balancer.endpoint_files import write_endpoints, write_reach
from fastgen_balancer.endpoints import parse_static
from fastgen_balancer.envoy_routes import Reach
from fastgen_balancer.main import app
from fastgen_balancer.residence import pod_name

STATIC = ("--static", "127.0.0.1:8000:9000")
IN_CLUSTER = ("--balancer", "chat", "--namespace", "ns")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, arguments)
    return result.exit_code, result.output


def test_bootstrap_writes_what_envoy_needs(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    ports = ("--port", "1", "--picker-port", "2", "--admin-port", "3")
    assert run("bootstrap", f"--directory={directory}", "--host=127.0.0.1", *ports)[0] == 0
    config = json.loads((directory / "envoy.yaml").read_text())
    listener = config["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert listener == {"address": "127.0.0.1", "port_value": 1}
    text = json.dumps(config)
    assert f'"path": "{directory}/routes.json"' in text
    assert f'"path": "{directory}/clusters.json"' in text
    for path in directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o644, "Envoy may be another user"


def test_bootstrap_again_hides_no_endpoints(tmp_path: Path) -> None:
    write_endpoints(tmp_path, "chat", (parse_static("10.0.0.1:1:2"),))
    write_reach(tmp_path, Reach(("chat",), "chat"))
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert run("bootstrap", f"--directory={tmp_path}")[0] == 0
    after = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert after == before | {"envoy.yaml": after["envoy.yaml"]}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "--balancer"),
        (("--balancer", "chat"), "--namespace"),
        ((*STATIC, *IN_CLUSTER), "no meaning beside --static"),
        ((*STATIC, "--prometheus-url", "http://p"), "--prometheus-url"),
        ((*STATIC, "--peers-port", "9092"), "--peers-port"),
        ((*IN_CLUSTER, "--max-queued-requests", "1"), "the FastGenDeployment says it"),
        ((*IN_CLUSTER, "--drain-seconds", "1"), "--drain-seconds"),
        (("--static", "nonsense"), "HOST:HTTP_PORT:GRPC_PORT"),
        (("--static", "a=nonsense"), "HOST:HTTP_PORT:GRPC_PORT"),
        (("--static", "=127.0.0.1:1:2"), "names no model"),
        ((*STATIC, "--static", "a=127.0.0.1:1:2"), "for each replica or for none"),
        ((*STATIC, "--max-wait-seconds", "1000"), "max-wait-seconds"),
        ((*STATIC, "--endpoint-picker-tls", "/a"), "--endpoint-picker-port"),
    ],
)
def test_arguments_that_cannot_be(
    tmp_path: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    code, output = run("picker", f"--directory={tmp_path}", *arguments)
    assert code == 2
    assert complaint in output


def test_keys_and_certificate_come_by_files(tmp_path: Path) -> None:
    secret, directory = tmp_path / "secret", tmp_path / "run"
    secret.mkdir()
    (secret / "alice").write_text("sk-alice")
    guarded = (f"--api-keys={secret}", f"--tls={secret}")
    assert run("bootstrap", f"--directory={directory}", *guarded)[0] == 0
    assert "sk-alice" in (directory / "api-keys.json").read_text()
    assert stat.S_IMODE((directory / "api-keys.json").stat().st_mode) == 0o600
    assert f"{secret}/tls.crt" in (directory / "tls.json").read_text()
    configuration = (directory / "envoy.yaml").read_text()
    assert "sk-alice" not in configuration
    assert "TLSv1_2" in configuration


def test_without_its_secret_a_guarded_balancer_does_not_begin(tmp_path: Path) -> None:
    """It would be open, or refuse everybody without a word."""
    code, output = run("bootstrap", f"--directory={tmp_path}", f"--api-keys={tmp_path}/none")
    assert code == 2
    assert "--api-keys" in output


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    assert run("bootstrap", f"--directory={tmp_path}")[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, output = run("picker", f"--directory={tmp_path}", *STATIC, "--picker-port", port)
    assert code == 1
    assert port in output
    assert "--picker-port" in output


def test_the_picker_needs_the_bootstrap(tmp_path: Path) -> None:
    code, output = run("picker", f"--directory={tmp_path}", *STATIC)
    assert code == 1
    assert "envoy.yaml" in output


def test_the_lease_names_the_pod() -> None:
    assert pod_name({"POD_NAME": "chat-balancer-0"}) == "chat-balancer-0"
    assert pod_name({"POD_NAME": ""}) == pod_name({}) == socket.gethostname()
