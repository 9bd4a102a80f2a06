"""Ids of requests, which clients may choose."""

from typing import Final

MAX_REQUEST_ID_CHARACTERS: Final = 128


def is_request_id(text: str) -> bool:
    """Whether a client's request id may become the request's: short and safe in a header."""
    return 1 <= len(text) <= MAX_REQUEST_ID_CHARACTERS and text.isascii() and text.isprintable()
