"""Logs: one JSON line per event on stderr, never with a prompt or an answer in it."""

import json
import logging
import sys
import time
from types import TracebackType
from typing import Any, Final

_logger: Final = logging.getLogger("fastgen")


class _JsonLines(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._process,
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def start_logging(process: str) -> None:
    """Sends this process' log lines, and those of its libraries, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(process))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    _logger.setLevel(logging.INFO)


def log_event(event: str, **fields: Any) -> None:
    """Something a person who operates replicas wants to know."""
    _logger.info(event, extra={"fields": fields})


def log_problem(event: str, error: BaseException | None = None, **fields: Any) -> None:
    """Something that a person should look at; with the traceback of `error`."""
    _logger.error(event, exc_info=error, extra={"fields": fields})


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    log_problem(f"the process ends by an uncaught {kind.__name__}", error)
