"""Why a replica cannot start, in words that a termination message can carry."""

from fastgen_api.names import StartupFailure


class StartupError(Exception):
    """The replica cannot serve; `reason` is for the status, the text is for people."""

    def __init__(self, reason: StartupFailure, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class ModelError(StartupError):
    """The model's files cannot be used."""
