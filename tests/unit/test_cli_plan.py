"""What `fastgen serve` starts, and how it refuses."""

import socket
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from checkpoint_files import CONFIG, write_folder, write_gguf
from rich.console import Console
from typer.testing import CliRunner

from fastgen_cli import plan, serve
from fastgen_cli.main import app
from fastgen_cli.plan import BalancerPorts, Options, PortTakenError
from fastgen_cli.source import Source, UnusableModelError, find_source

OPTIONS = Options(
    source=Source(Path("/models/m.gguf"), "m"),
    replicas=2,
    host="0.0.0.0",
    port=8000,
    grpc_port=9000,
    engine=("--token-budget", "64"),
)


def test_one_replica_listens_where_it_was_asked_to() -> None:
    options = Options(OPTIONS.source, 1, "0.0.0.0", 8000, 9000)
    (replica,) = plan.make_replicas(options, [])
    assert (replica.host, replica.http_port, replica.grpc_port) == ("0.0.0.0", 8000, 9000)
    assert replica.http_url == "http://127.0.0.1:8000"


def test_several_replicas_listen_on_loopback_behind_the_balancer() -> None:
    replicas = plan.make_replicas(OPTIONS, [1, 2, 3, 4])
    assert [(one.host, one.http_port, one.grpc_port) for one in replicas] == [
        ("127.0.0.1", 1, 2),
        ("127.0.0.1", 3, 4),
    ]
    ports = BalancerPorts(listener=8000, picker=10, picker_http=11, admin=12)
    commands = plan.balancer_commands("b", Path("/d"), "0.0.0.0", ports, replicas)
    text = {name: " ".join(words) for name, words in commands.items()}
    assert "--host 0.0.0.0 --port 8000" in text["bootstrap"]
    assert "127.0.0.1:1:2" in text["picker"]
    assert "127.0.0.1:3:4" in text["picker"]
    assert text["envoy"] == "b envoy --directory /d"


def test_a_replica_gets_the_model_and_the_engine_settings() -> None:
    replica = plan.make_replicas(OPTIONS, [1, 2, 3, 4])[1]
    text = " ".join(plan.runtime_command("r", OPTIONS, replica))
    assert text.startswith("r --model /models/m.gguf --served-name m --host 127.0.0.1")
    assert "--http-port 3 --grpc-port 4" in text
    assert "--memory-percent 45" in text
    assert text.endswith("--token-budget 64")


@pytest.mark.parametrize(
    ("replicas", "cpus", "given", "threads"),
    [(1, 8, "", "8"), (2, 8, "", "4"), (3, 8, "", "2"), (4, 2, "", "1"), (4, 2, "6", "6")],
)
def test_replicas_share_the_cpus(replicas: int, cpus: int, given: str, threads: str) -> None:
    replica = plan.make_replicas(OPTIONS, [1, 2, 3, 4])[0]
    environment = plan.replica_environment(replica, replicas, cpus, given)
    assert environment["OMP_NUM_THREADS"] == threads


def test_free_ports_differ_and_can_be_bound() -> None:
    ports = plan.free_ports(6)
    assert len(set(ports)) == 6
    for port in ports:
        plan.check_port("127.0.0.1", port, "--port")


def test_a_taken_port_is_told_with_its_option() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"{port}.*choose another with --port"):
            plan.check_port("127.0.0.1", port, "--port")


def test_a_model_is_found_by_its_path_and_keeps_its_name(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    folder = write_folder(tmp_path / "llama-3.2", CONFIG)
    assert find_source(str(tmp_path / "tiny.gguf")) == Source(tmp_path / "tiny.gguf", "tiny")
    assert find_source(f"file://{folder}") == Source(folder, "llama-3.2")
    assert find_source(f"file://{folder}", "other").name == "other"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nowhere.gguf", "nowhere.gguf: the path does not exist"),
        ("s3://bucket/model", "s3:// are not supported"),
        ("file://models/m.gguf", "three slashes"),
        ("{folder}", "config.json"),
        ("{folder}/notes.txt", "neither a GGUF file nor"),
        ("{folder}/broken.gguf", "GGUF version 0 is not supported"),
    ],
)
def test_a_model_that_is_none_is_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "notes.txt").touch()
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(UnusableModelError, match=says) as raised:
        find_source(text.replace("{folder}", str(tmp_path)))
    assert "or `smollm2`" in str(raised.value)


def test_help_names_the_commands_and_the_version_is_printed() -> None:
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "serve" in shown
    assert "chat" in shown
    done = subprocess.run(
        [sys.executable, "-m", "fastgen_cli.main", "--version"], capture_output=True, text=True
    )
    assert done.stdout.startswith("fastgen ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serve", "nowhere.gguf"], "nowhere.gguf: the path does not exist"),
        (["serve", "smollm2", "--replicas", "2", "--grpc-port", "9000"], "--grpc-port"),
        (["serve", "smollm2", "--dtype", "int3"], "--dtype"),
        (["serve", "smollm2", "--slo-file", "nowhere.json"], "--slo-file"),
    ],
)
def test_bad_arguments_are_told(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, words)
    assert done.exit_code != 0
    assert says in done.output


def test_the_next_step_is_called_as_this_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "fastgen"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert plan.own_command(".venv/bin/fastgen") == ".venv/bin/fastgen"
    assert plan.own_command("/my venv/fastgen") == "'/my venv/fastgen'"
    assert plan.own_command("/somewhere/fastgen_cli/main.py") == "fastgen"
    monkeypatch.setenv("PATH", str(program.parent))
    assert plan.own_command(str(program)) == "fastgen"
    assert plan.own_command(".venv/bin/fastgen") == ".venv/bin/fastgen"


def test_serve_prints_the_next_step_as_it_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["./[v]/bin/fastgen", "serve", "m.gguf"])
    output = StringIO()
    serve._announce(OPTIONS, Console(file=output, width=200))
    assert "  './[v]/bin/fastgen' chat\n" in output.getvalue()


@pytest.mark.parametrize(
    ("host", "port", "chat"),
    [
        ("127.0.0.1", 8000, "fastgen chat"),
        ("0.0.0.0", 8000, "fastgen chat"),
        ("127.0.0.1", 8001, "fastgen chat --url http://127.0.0.1:8001"),
        ("10.1.2.3", 8000, "fastgen chat --url http://10.1.2.3:8000"),
        ("localhost", 8000, "fastgen chat --url http://localhost:8000"),
        ("fd00::1", 8000, "fastgen chat --url 'http://[fd00::1]:8000'"),
    ],
)
def test_the_next_step_reaches_where_it_listens(
    monkeypatch: pytest.MonkeyPatch, host: str, port: int, chat: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/main.py"])
    output = StringIO()
    serve._announce(replace(OPTIONS, host=host, port=port), Console(file=output, width=200))
    assert f"  {chat}\n  curl -N " in output.getvalue()
