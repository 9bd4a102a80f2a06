"""The one form of every program's log lines."""

import json
import logging
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from fastgen_api.logs import JsonFormatter, last_line


def line_of(message: str, *arguments: object, **extra: object) -> dict[str, object]:
    record = logging.LogRecord("any", logging.WARNING, "", 0, message, arguments, None)
    record.created = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC).timestamp()
    vars(record).update(extra)
    found: dict[str, object] = json.loads(JsonFormatter("fastgen-x").format(record))
    return found


def test_a_line_has_time_level_process_message_and_extras() -> None:
    assert line_of("lost %d of %d", 1, 2, replica="a-1", seconds=0.5) == {
        "time": "2026-01-02T03:04:05.678Z",
        "level": "warning",
        "process": "fastgen-x",
        "message": "lost 1 of 2",
        "replica": "a-1",
        "seconds": 0.5,
    }


def test_an_extra_replaces_no_field_that_every_line_has() -> None:
    assert line_of("m", process="other", level="none") == line_of("m")


def test_what_libraries_add_for_terminals_is_left_out() -> None:
    assert line_of("m", color_message="\u001b[1mm") == line_of("m")


def test_what_json_does_not_know_is_told_as_text() -> None:
    assert line_of("m", value={"é"})["value"] == "{'é'}"


PROGRAM = """
import logging, warnings
from fastgen_api.logs import log_to_stderr
log_to_stderr("fastgen-x", "info")
logging.getLogger("any").debug("not told")
logging.getLogger("httpx2").info("not told")
logging.getLogger("httpx2").warning("told")
logging.getLogger("any").info("two\\nlines", extra={"count": 2})
warnings.warn("old")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("any").exception("failed")
raise LookupError("no such thing")
"""


def test_a_process_writes_nothing_but_lines() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert {line["process"] for line in lines} == {"fastgen-x"}
    told, event, warned, failed, uncaught = lines
    assert told["message"] == "told"
    assert (event["message"], event["count"]) == ("two\nlines", 2)
    assert "UserWarning: old" in warned["message"]
    assert "ZeroDivisionError" in failed["exception"]
    assert uncaught["message"] == "the process ends by an uncaught LookupError"
    assert "no such thing" in uncaught["exception"]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("\n \n", ""),
        ("a\nb\n\n", "b"),
        (json.dumps({"level": "error", "message": "no weights"}), "no weights"),
        (json.dumps({"message": "it ends", "exception": "Traceback\n  x\nValueError: y"}),
         "it ends: ValueError: y"),
        ('{"message": "cannot load", "error": "no file"}\n', "cannot load: no file"),
        ('{"level": "info"}', '{"level": "info"}'),
        ('vel": "error", "message": "cut"}', 'vel": "error", "message": "cut"}'),
        ("[1]", "[1]"),
        ("[" * 100_000, "[" * 100_000),
    ],
)  # fmt: skip
def test_the_last_line_of_a_log_says_what_happened(log: str, line: str) -> None:
    assert last_line(log) == line
