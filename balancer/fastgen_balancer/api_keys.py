"""The API keys that clients may use: from a mounted Secret into a file that Envoy follows."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fastgen_balancer.endpoint_files import write_file
from fastgen_balancer.envoy_security import API_KEYS_FILE, api_keys_resource

POLL_SECONDS: Final = 1.0
MAX_KEY_CHARACTERS: Final = 1024
SECRET_DATA: Final = "..data"
"""Link by which Kubernetes changes all files of a mounted Secret at once."""
OWNER_ONLY: Final = 0o600

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiKey:
    """Its key never shows where the value is printed."""

    client: str
    key: str

    def __repr__(self) -> str:
        return f"ApiKey(client={self.client!r})"


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """What a Secret holds."""

    keys: tuple[ApiKey, ...] = ()
    faults: tuple[str, ...] = ()
    """Sentences about what is left out; they name the client, never the key."""


def api_keys_of(contents: Mapping[str, bytes]) -> ApiKeys:
    """Reads the data of a Secret: from the name of a client to its keys, one a line.

    Several lines let a client change its key without a moment in which neither counts.
    """
    keys: dict[str, ApiKey] = {}
    faults: list[str] = []
    for client in sorted(contents):
        lines = [line.strip() for line in contents[client].splitlines()]
        found = [line for line in lines if line]
        if not found:
            faults.append(f"{client} has no key")
        for line in found:
            fault = _fault(line)
            text = line.decode("latin-1")
            if fault is None and (other := keys.get(text)) is not None:
                fault = f"has a key that is also {other.client}'s" if other.client != client else ""
            if fault:
                faults.append(f"{client} {fault}")
            if fault is None:
                keys[text] = ApiKey(client, text)
    return ApiKeys(tuple(keys.values()), tuple(faults))


def _fault(key: bytes) -> str | None:
    if len(key) > MAX_KEY_CHARACTERS:
        return f"has a key of more than {MAX_KEY_CHARACTERS} characters"
    if not all(0x21 <= byte <= 0x7E for byte in key):
        return "has a key with a character that is not printable ASCII, or a space"
    return None


def read_api_keys(directory: Path) -> ApiKeys:
    """Reads a mounted Secret; raises OSError where it is not there, or changes just now."""
    data = directory / SECRET_DATA
    # All files of one version: the link may move between two reads.
    folder = data.resolve(strict=True) if data.exists() else directory
    files = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    return api_keys_of({path.name: path.read_bytes() for path in files if path.is_file()})


def write_api_keys(directory: Path, keys: Iterable[ApiKey]) -> bool:
    """Brings Envoy's file up to date; returns whether it changed."""
    resource = api_keys_resource([(each.client, each.key) for each in keys])
    return write_file(directory / API_KEYS_FILE, msgspec.json.encode(resource), OWNER_ONLY)


class ApiKeyFile:
    """Envoy's file, kept like the Secret. Without a readable Secret the keys in force stay."""

    def __init__(self, secret: Path, directory: Path) -> None:
        self._secret = secret
        self._directory = directory
        self._faults: tuple[str, ...] = ()

    def update(self) -> None:
        """Raises OSError where the Secret is not there, or changes just now."""
        found = read_api_keys(self._secret)
        if write_api_keys(self._directory, found.keys):
            clients = sorted({each.client for each in found.keys})
            log.info("API keys changed", extra={"clients": clients, "keys": len(found.keys)})
        if found.faults != self._faults:
            for fault in found.faults:
                log.warning("an API key does not count", extra={"fault": fault})
            self._faults = found.faults

    async def follow(self) -> None:
        """Runs until it is cancelled."""
        failures = 0
        while True:
            try:
                self.update()
                failures = 0
            except OSError as error:
                failures += 1
                # Once is what a change looks like.
                if failures == 2:
                    log.warning("API keys stay as they are", extra={"error": str(error)})
            await asyncio.sleep(POLL_SECONDS)
