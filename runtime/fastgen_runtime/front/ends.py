"""What an error means: for the count of how requests end, and for the client."""

from typing import Final

from fastgen_runtime.engine.request import RefusalKind
from fastgen_runtime.front.generation import ErrorKind
from fastgen_runtime.front.goodness import End

END_OF: Final = {
    ErrorKind.INVALID: End.INVALID,
    ErrorKind.UNKNOWN_MODEL: End.INVALID,
    ErrorKind.TOO_LARGE: End.INVALID,
    ErrorKind.FULL: End.REFUSED,
    ErrorKind.UNAVAILABLE: End.REFUSED,
    ErrorKind.DEADLINE: End.DEADLINE,
    ErrorKind.FAILED: End.FAILED,
}

ERROR_OF: Final = {
    RefusalKind.FULL: (ErrorKind.FULL, None),
    RefusalKind.TOO_LONG: (ErrorKind.INVALID, "prompt"),
    RefusalKind.EXPIRED: (ErrorKind.DEADLINE, None),
    RefusalKind.INVALID: (ErrorKind.INVALID, "grammar"),
    RefusalKind.FAILED: (ErrorKind.FAILED, None),
}
"""Of an engine's refusal: the kind, and the field that it is about."""
