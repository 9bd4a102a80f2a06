"""One JSON line per event on stderr."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

STANDARD_FIELDS: Final = frozenset(
    vars(logging.LogRecord("", 0, "", 0, "", None, None)) | {"message": "", "taskName": ""}
)
QUIET: Final = ("kopf", "httpx2", "httpcore2", "aiohttp")
"""Libraries that tell every request; their warnings are enough."""


class JsonFormatter(logging.Formatter):
    """Time, level, logger, message, then what was passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {
            name: value for name, value in vars(record).items() if name not in STANDARD_FIELDS
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str, ensure_ascii=False)


def configure(level: str) -> None:
    """Sends all logs to stderr as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, logging.getLevelName(level)))
