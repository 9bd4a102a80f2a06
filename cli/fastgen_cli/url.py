"""The base URL of an OpenAI endpoint, from what a person types."""

from typing import Final
from urllib.parse import urlsplit

DEFAULT: Final = "http://127.0.0.1:8000"
"""Where `fastgen serve` listens, and `fastgen chat` and `bench` look, unless they are told."""
_LOCAL: Final = ("127.0.0.1", "localhost", "::1")


def base_url(url: str) -> str:
    """The API's base: `/v1` is added when it is missing."""
    bare = url.rstrip("/")
    if "://" not in bare:
        bare = f"http://{bare}"
    return bare if bare.endswith("/v1") else f"{bare}/v1"


def is_local(base: str) -> bool:
    """Whether the endpoint is on this machine, where a proxy of the shell has no place."""
    return urlsplit(base).hostname in _LOCAL
