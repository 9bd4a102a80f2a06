"""A replica's last words, which Kubernetes puts into the pod's status."""

from pathlib import Path
from typing import Final

from fastgen_api import names
from fastgen_runtime.log import log_problem

_MAX_CHARACTERS: Final = 1000
"""Kubernetes takes 4096 bytes, and a character has at most four."""


def leave_message(reason: names.StartupFailure, sentence: str) -> None:
    """Leaves `Reason: sentence` where the kubelet reads it; elsewhere there is no such file."""
    path = Path(names.TERMINATION_MESSAGE_PATH)
    if path.exists():
        try:
            path.write_text(f"{reason}: {sentence}"[:_MAX_CHARACTERS], encoding="utf-8")
        except OSError as error:
            log_problem("the termination message cannot be written", reason=str(error))
