"""The two ways to ask an OpenAI endpoint for a text."""

from enum import StrEnum


class Api(StrEnum):
    """The last part of the path."""

    CHAT = "chat"
    COMPLETIONS = "completions"
