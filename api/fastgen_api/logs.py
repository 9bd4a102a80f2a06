"""Logs of every program: one JSON line per event on stderr, never a prompt or a secret in it."""

import json
import logging
import sys
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

STANDARD_FIELDS: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
"""Attributes of a record that are no field of the line; the last is uvicorn's, for terminals."""
TALKATIVE: Final = ("aiohttp", "httpcore", "httpcore2", "httpx", "httpx2", "kopf")
"""Libraries that tell every request; their warnings are enough."""


class JsonFormatter(logging.Formatter):
    """`time` (RFC 3339, UTC), `level`, `process`, `message`; then what was passed as `extra`."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line; an `extra` cannot replace the fields that every line has."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "message": record.getMessage(),
        }
        extras = {k: v for k, v in vars(record).items() if k not in STANDARD_FIELDS}
        line = line | extras | line
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def log_to_stderr(process: str, level: str = "INFO") -> None:
    """Sends all logs of this process, its warnings and its uncaught error to stderr as JSON lines.

    `process` names the program, `level` is one of logging's names in any case.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    least = max(logging.WARNING, logging.getLogger().level)
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(least)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("fastgen").critical(
        "the process ends by an uncaught %s", kind.__name__, exc_info=(kind, error, trace)
    )


def last_line(log: str) -> str:
    """The last line of a program's log; of one that `JsonFormatter` wrote, message and error alone.

    A traceback is told by its own last line.
    """
    line = next((each.strip() for each in reversed(log.splitlines()) if each.strip()), "")
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(fields, dict):
        return line
    trace = str(fields.get("exception") or "").strip().splitlines()
    told = [fields.get("message"), fields.get("error"), *trace[-1:]]
    return ": ".join(str(each) for each in told if each) or line
