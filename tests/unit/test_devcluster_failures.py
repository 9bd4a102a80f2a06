"""What a newcomer can run into is one line that says what to do, and never a traceback."""

import errno
import http.server
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from fastgen_devcluster import buildah, cli, command, lifecycle, packages, registry
from fastgen_devcluster.demo import installation
from fastgen_devcluster.demo.__main__ import run_demo
from fastgen_devcluster.demo.narration import Narrator
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.network import conflict
from fastgen_devcluster.settings import MAX_INDEX, Settings

SETTINGS = Settings(state=Path("/state"), cache=Path("/cache/fastgen"))
DEFAULT = {"dst": "default", "gateway": "192.0.2.1", "dev": "eth0"}


@pytest.fixture
def server() -> Iterator[str]:
    """A registry that wants a login."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(401)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{listener.server_port}"
    listener.shutdown()
    listener.server_close()


def test_a_registry_that_refuses_or_is_not_there(server: str) -> None:
    with pytest.raises(SetupError, match=r"401.*fastgen_devcluster up"):
        registry.has_image(f"{server}/fastgen/control:1")
    with pytest.raises(SetupError, match=r"refused.*fastgen_devcluster up"):
        registry.has_image("127.0.0.1:1/fastgen/control:1")


def test_a_push_that_the_users_registry_refuses_names_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "buildah"
    program.write_text('#!/bin/sh\necho "$@" > "$0.words"\necho unauthorized >&2\nexit 125\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SetupError, match=r"buildah login registry\.example.*unauthorized") as told:
        buildah.push_to_own("localhost/one:1", "registry.example/team/one:1")
    assert "\n" not in str(told.value)
    assert "tls-verify" not in (tmp_path / "buildah.words").read_text()


@pytest.mark.parametrize(
    ("route", "taken"),
    [
        ({"dst": "10.198.3.0/24", "dev": "docker0"}, "10.198.3.0/24"),
        ({"dst": "10.199.0.0/20", "gateway": "192.0.2.9"}, "10.199.0.0/20"),
        ({"type": "local", "dst": "10.197.0.7", "dev": "eth0"}, "10.197.0.7"),
        ({"dst": "172.16.0.0/12", "gateway": "10.197.0.254"}, "10.197.0.254"),
        ({"dst": "10.198.16.0/20", "dev": "fastgen1-host"}, None),
        ({"dst": "10.0.0.0/8", "dev": "vpn0"}, None),
        ({"dst": "172.16.0.0/12", "via": {"family": "inet6", "host": "fe80::1"}}, None),
    ],
)
def test_a_route_into_the_clusters_addresses_is_a_conflict(
    route: dict[str, object], taken: str | None
) -> None:
    assert conflict(SETTINGS, [DEFAULT, route]) == taken


def test_another_index_is_a_way_out_of_every_conflict() -> None:
    for index in range(MAX_INDEX + 1):
        settings = Settings(Path("/state"), Path("/cache"), index)
        routes = [{"dst": settings.pod_cidr}, {"dst": settings.service_cidr}]
        other = Settings(Path("/state"), Path("/cache"), (index + 1) % (MAX_INDEX + 1))
        assert conflict(settings, routes) == settings.pod_cidr
        assert conflict(other, routes) is None


def test_images_alone_need_no_cluster_tools() -> None:
    needed = {*packages.IMAGE_TOOLS.values(), *packages.IMAGE_FILES.values()}
    assert "buildah" in needed
    assert not {"containerd", "docker-registry", "runc", "iptables"} & needed


def test_a_user_without_root_learns_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(packages, "IMAGE_TOOLS", {"no-such-tool": "its-package"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SetupError, match="apt-get install its-package"):
        packages.ensure_image_packages()


def test_a_missing_program_and_one_that_hangs_are_command_errors() -> None:
    with pytest.raises(command.CommandError, match="no-such-program"):
        command.run("no-such-program")
    with pytest.raises(command.CommandError, match="took longer than"):
        command.run("sleep", "60", timeout_seconds=0.1)


def test_a_kubeconfig_that_is_not_there_stops_the_demo_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FASTGEN_KUBECONFIG", "/no/such/config")
    monkeypatch.setenv("FASTGEN_REGISTRY", "registry.example")
    assert demo() == (
        1,
        "The demo stopped: FASTGEN_KUBECONFIG names /no/such/config, and no such file is there.",
    )


def test_a_full_disk_stops_the_demo_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/cache/base.tar")
    monkeypatch.setattr(installation, "start_cluster", Mock(side_effect=full))
    code, told = demo()
    assert code == 1
    assert "No space left on device: '/cache/base.tar'" in told


@pytest.mark.parametrize(
    ("own", "way_out"), [("", "make demo-down"), ("/config", "helm uninstall fastgen")]
)
def test_an_interrupted_demo_tells_how_to_go_on(
    own: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTGEN_KUBECONFIG", own)
    monkeypatch.setattr(installation, "start_cluster", interrupt)
    code, told = demo()
    assert code == 130
    assert "`make demo` goes on from here" in told
    assert way_out in told


def test_an_interrupted_verb_tells_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fastgen_devcluster", "status"])
    monkeypatch.setattr(lifecycle, "status", interrupt)
    with pytest.raises(SystemExit, match="130"):
        cli.main()
    assert "fastgen_devcluster down` cleans up" in capsys.readouterr().err


def test_a_state_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("FASTGEN_KUBECONFIG", raising=False)
    monkeypatch.setenv("FASTGEN_STATE", "/proc/no")
    monkeypatch.setattr(sys, "argv", ["fastgen_devcluster", "up"])
    with pytest.raises(SystemExit, match="1"):
        cli.main()
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert told.count("\n") == 1


def demo() -> tuple[int, str]:
    """Runs the demo in this process: its exit code and what it said last."""
    console = Console(file=io.StringIO(), width=200)
    code = run_demo(Narrator(console, stages=5), fast=True, values=[])
    assert isinstance(console.file, io.StringIO)
    return code, console.file.getvalue().strip().splitlines()[-1]


def interrupt(*_: object) -> None:
    """What Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)
