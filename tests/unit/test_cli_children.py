"""Children end with their parent, in time, and their deaths are told."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastgen_cli import main
from fastgen_cli.children import ChildDiedError, Children, ProgramMissingError, find_program
from fastgen_cli.errors import missing_module

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
SLEEPER = [sys.executable, "-c", SLEEP]
STUBBORN = [sys.executable, "-c", f"import signal; signal.signal(15, signal.SIG_IGN); {SLEEP}"]
PARENT = f"""
import sys, time
from pathlib import Path
from fastgen_cli.children import Children
child = Children(Path(sys.argv[1])).start("child", [sys.executable, "-c", {SLEEP!r}], {{}})
print(child.process.pid, flush=True)
time.sleep(60)
"""


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + 10
    while text not in log.read_text():
        assert time.monotonic() < deadline, f"{log} never said {text!r}"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_leaving_the_context_ends_every_child(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        pids = [children.start(f"child-{n}", SLEEPER, {}).process.pid for n in range(3)]
        assert not any(is_gone(pid) for pid in pids)
    assert all(is_gone(pid) for pid in pids)


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("stubborn", STUBBORN, {})
        wait_for(child.log, "up")
        started = time.monotonic()
        children.end([child], grace_seconds=0.3)
        assert 0.3 <= time.monotonic() - started < 3
        assert child.process.returncode == -signal.SIGKILL


def test_haste_cuts_the_grace_short(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("stubborn", STUBBORN, {})
        wait_for(child.log, "up")
        started = time.monotonic()
        children.end([child], grace_seconds=30, hurry=lambda: True)
        assert time.monotonic() - started < 3


def test_a_death_is_told_with_the_last_log_lines(tmp_path: Path) -> None:
    program = "print('loading'); raise SystemExit('the file is broken')"
    with Children(tmp_path) as children:
        child = children.start("replica-0", [sys.executable, "-c", program], {})
        child.process.wait()
        with pytest.raises(
            ChildDiedError, match=r"(?s)replica-0 ended with code 1.*file is broken"
        ):
            children.check()


def test_a_kill_is_told_by_its_signal(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("replica-0", SLEEPER, {})
        child.process.kill()
        child.process.wait()
        with pytest.raises(ChildDiedError, match="replica-0 was killed by SIGKILL"):
            children.check()


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    wait_for(tmp_path / "child.log", "up")  # before, the child may not have been told yet
    assert not is_gone(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    if not is_gone(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("the child outlived its killed parent")


def test_a_missing_program_is_told_with_the_command_that_brings_it() -> None:
    with pytest.raises(ProgramMissingError, match=r"pip install '\.\[cli,runtime,balancer\]'"):
        find_program("fastgen-nothing")


def test_a_missing_module_is_told_with_the_command_that_brings_it(tmp_path: Path) -> None:
    with Children(tmp_path) as children:
        child = children.start("replica-0", [sys.executable, "-c", "import uvloop_absent"], {})
        child.process.wait()
        with pytest.raises(ChildDiedError) as raised:
            children.check()
    assert str(raised.value).startswith("fastgen serve needs uvloop_absent: run pip install '.[cli")
    assert "Traceback" not in str(raised.value)


def test_a_missing_module_of_ours_is_a_fault() -> None:
    assert missing_module("ModuleNotFoundError: No module named 'fastgen_runtime.x'") is None


def test_a_module_that_the_model_needs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def find(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(main, "find_source", find)
    result = CliRunner().invoke(main.app, ["serve", "smollm2"])
    assert result.exit_code == 1
    assert "fastgen serve needs torch: run pip install '.[cli,runtime,balancer]'" in result.output
