"""The driver's side of an adapter: a real process, its answers, its failures, its memory."""

import json
import os
import sys
from pathlib import Path

import pytest
from peers.adapters.llamacpp_batched import equal_lengths, times_of
from peers.figures import Spread
from peers.install import LLAMACPP, LOCKS, lock_of
from peers.memory import (
    parse_busy,
    parse_children,
    parse_pss,
    parse_stat,
    peak_of_tree,
    pss_of_tree,
    seconds_of_tree,
)
from peers.process import EngineError, EngineProcess, ending
from peers.protocol import Answer, Request
from peers.report import as_json, cell, markdown, number, rows
from peers.session import Findings
from peers.settings import OPENVINO, Configuration
from peers.verdicts import verdicts
from peers.workloads import Name

ADAPTER = """
import os, sys
from peers.protocol import Answer, serve

def load(settings):
    print("this is no answer")
    if settings.get("cannot"):
        raise RuntimeError("this CPU has no wings")
    if settings.get("hangs"):
        sys.stdin.read()
    if settings.get("dies"):
        os.kill(os.getpid(), 4)
    def answer(requests):
        return [Answer([7] * each.output, [each.at + n for n in range(each.output - short)])
                for each in requests]
    short = settings.get("short", 0)
    return answer, {"version": "1"}

serve(load)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose `peers.adapters.fake` is an adapter."""
    adapters = tmp_path / "fakes" / "peers" / "adapters"
    adapters.mkdir(parents=True)
    (adapters / "fake.py").write_text(ADAPTER)
    source = Path(sys.modules["peers.protocol"].__file__ or "")
    (adapters.parent / "protocol.py").write_text(source.read_text())
    return tmp_path


def start(folder: Path, patience: float = 300.0, **settings: object) -> EngineProcess:
    environment = {"PYTHONPATH": str(folder / "fakes")}
    python = Path(sys.executable)
    return EngineProcess(python, "fake", settings, folder / "log", environment, patience)


def test_an_adapter_answers_and_what_it_prints_is_kept_apart(folder: Path) -> None:
    with start(folder) as process:
        assert process.facts() == {"version": "1"}
        run = process.run([Request([1, 2], 3, at=1.0), Request([1], 2)])
    assert run.answers == [Answer([7] * 3, [1.0, 2.0, 3.0]), Answer([7] * 2, [0.0, 1.0])]
    assert run.foreign_share >= 0
    assert "this is no answer" in (folder / "log").read_text()


def test_an_engine_that_cannot_load_says_why(folder: Path) -> None:
    with start(folder, cannot=True) as process, pytest.raises(EngineError, match="no wings"):
        process.facts()


def test_an_engine_that_dies_is_told_by_its_signal(folder: Path) -> None:
    with start(folder, dies=True) as process, pytest.raises(EngineError, match="SIGILL"):
        process.facts()
    assert ending(3) == "ended with 3"


def test_an_engine_that_hangs_is_ended(folder: Path) -> None:
    words = r"no answer in 0.5 s, killed by SIGKILL"
    with start(folder, 0.5, hangs=True) as process, pytest.raises(EngineError, match=words):
        process.facts()


def test_an_answer_of_another_length_is_an_error(folder: Path) -> None:
    with start(folder, short=1) as process:
        process.facts()
        with pytest.raises(EngineError, match="2 tokens came, not 3"):
            process.run([Request([1], 3)])


def test_the_end_leaves_no_process(folder: Path) -> None:
    with start(folder) as process:
        process.facts()
        with peak_of_tree(process.pid) as peak:
            pass
        assert peak.bytes > 1 << 20
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_tree_is_a_process_and_all_below_it() -> None:
    parents = {1: 0, 2: 1, 3: 2, 4: 1, 5: 3, 6: 9}
    assert parse_children(parents, 2) == {2, 3, 5}
    assert parse_children(parents, 6) == {6}
    assert pss_of_tree(os.getpid()) > 1 << 20
    assert seconds_of_tree(os.getpid()) > 0


def test_the_kernels_files_are_read() -> None:
    stat = "12 (a (b) c) S 7 12 12 0 -1 4 1 2 3 4 100 20 3 4 20 0 1"
    assert parse_stat(stat) == (7, 127)
    assert parse_pss("Rss: 9 kB\nPss:     5 kB\nPss_Dirty: 1 kB\n") == 5 * 1024
    assert parse_pss("") == 0
    assert parse_busy("cpu  10 20 30 999 999 1 2 3 500 0") == 66


def test_llamacpps_bench_takes_equal_requests_alone() -> None:
    assert equal_lengths([Request([1] * 4, 2)] * 3) == (4, 2)
    for odd in ([Request([1], 2), Request([1], 3)], [Request([1], 2, at=1.0)]):
        with pytest.raises(ValueError, match="equal lengths"):
            equal_lengths(odd)
    assert times_of(1.0, 4.0, 3) == [1.0, 3.0, 5.0]


def test_every_lock_pins_by_hash() -> None:
    names = [path.stem for path in LOCKS.glob("*.txt")]
    assert LLAMACPP in names
    for name in names:
        entries = lock_of(name).read_text().replace("\\\n", " ").splitlines()
        entries = [entry for entry in entries if entry.strip() and not entry.startswith("#")]
        assert entries
        assert all("==" in entry and "--hash=sha256:" in entry for entry in entries)


def test_torch_is_the_same_in_both_locks_so_that_it_is_kept_once() -> None:
    pins = [
        {line.split()[0] for line in lock_of(name).read_text().splitlines()
         if line.startswith(("torch==", "nvidia-"))}
        for name in ("openvino-export", "vllm")
    ]  # fmt: skip
    assert pins[0] == pins[1] != set()


def test_a_report_shows_medians_with_extremes_and_who_could_not_run() -> None:
    works = Findings(Configuration(OPENVINO, "split256", (Name.SINGLE,)))
    works.measures[Name.SINGLE] = [
        {"ttft_p50_seconds": value, "tpot_p50_seconds": 0.01, "output_tokens_per_second": 80.0,
         "total_tokens_per_second": 800.0}
        for value in (0.2, 0.1, 0.4)
    ]  # fmt: skip
    works.equal, works.disturbed = (9, 10), {Name.SINGLE: 1}
    broken = Findings(Configuration("vllm", "nochunk", (Name.SINGLE,)))
    broken.error = "ended with 1; its last line: AVX512 | is missing"
    text = markdown([works, broken], verdicts(rows([works, broken])), "here")
    assert "200.0 ms (100.0 ms – 400.0 ms)" in text
    assert "3, 1 disturbed" in text
    assert "9 of 10" in text
    assert r"AVX512 \| is missing" in text
    assert "W3: " not in text


def test_what_an_interrupted_run_found_is_restored() -> None:
    configuration = Configuration(OPENVINO, "split256", (Name.SINGLE,))
    before = Findings(
        configuration, {Name.SINGLE: [{"wall_seconds": 1.5}]}, {Name.SINGLE: 7}, {"version": "1"},
        [[1], None], (1, 2), None, {Name.SINGLE: 1},
    )  # fmt: skip
    kept = json.loads(json.dumps(as_json([before], [], {})))["findings"][0]
    after = Findings(configuration)
    after.restore(kept)
    assert after == before


@pytest.mark.parametrize(
    ("value", "measure", "expected"),
    [
        (1234.4, "output_tokens_per_second", "1,234"), (0.0123, "tpot_p50_seconds", "12.3 ms"),
        (2.345, "long_ttft_seconds", "2.35 s"),
    ],
)  # fmt: skip
def test_numbers_have_units(value: float, measure: str, expected: str) -> None:
    assert number(value, measure) == expected
    assert cell(Spread(value, value, value, 1), measure) == expected
