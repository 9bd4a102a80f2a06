"""What the runtime logs: events, never with a prompt or an answer in them."""

import logging
from typing import Any, Final

from fastgen_api.logs import log_to_stderr

_logger: Final = logging.getLogger("fastgen")


def start_logging(process: str) -> None:
    """Sends this process' log lines, and the warnings of its libraries, to stderr."""
    log_to_stderr(process, "WARNING")
    _logger.setLevel(logging.INFO)


def log_event(event: str, **fields: Any) -> None:
    """Something a person who operates replicas wants to know."""
    _logger.info(event, extra=fields)


def log_warning(event: str, **fields: Any) -> None:
    """Something that stops nothing, and that a person may not expect."""
    _logger.warning(event, extra=fields)


def log_problem(event: str, error: BaseException | None = None, **fields: Any) -> None:
    """Something that a person should look at; with the traceback of `error`."""
    _logger.error(event, exc_info=error, extra=fields)
