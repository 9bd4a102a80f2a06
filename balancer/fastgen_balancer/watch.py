"""Follows a set of Kubernetes objects, through whatever happens to the API server."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from lightkube import AsyncClient

SERVER_SECONDS: Final = 240
"""After this the API server ends a watch; the next one begins where it ended."""
QUIET_SECONDS: Final = 300.0
"""A watch that is silent for longer is begun anew: its connection may be half dead."""
FIRST_PAUSE_SECONDS: Final = 0.2
LONGEST_PAUSE_SECONDS: Final = 5.0

log = logging.getLogger(__name__)


async def follow(
    client: AsyncClient,
    resource: Any,
    namespace: str,
    changed: Callable[[Mapping[str, Any]], None],
    *,
    labels: dict[str, Any] | None = None,
    fields: dict[str, Any] | None = None,
) -> None:
    """Calls `changed` with all objects by name, after the list and after each event; never ends.

    While the API server is away `changed` is not called: what was known stays.
    """
    pause = FIRST_PAUSE_SECONDS
    where: dict[str, Any] = {"namespace": namespace, "labels": labels, "fields": fields}
    while True:
        try:
            listing = client.list(resource, **where)
            known = {item.metadata.name: item async for item in listing}
            changed(known)
            pause = FIRST_PAUSE_SECONDS
            await _watch(client, resource, where, listing.resourceVersion, known, changed)
        except TimeoutError:
            continue
        # The client, the TLS below it and the decoder above it each raise their own: whatever it
        # was, a fresh list is the answer.
        except Exception as error:
            log.warning(
                "watch ended", extra={"resource": resource.__name__, "error": repr(error)[:300]}
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


async def _watch(
    client: AsyncClient,
    resource: Any,
    where: dict[str, Any],
    version: str,
    known: dict[str, Any],
    changed: Callable[[Mapping[str, Any]], None],
) -> None:
    events = client.watch(
        resource, resource_version=version, server_timeout=SERVER_SECONDS, **where
    ).__aiter__()
    while True:
        async with asyncio.timeout(QUIET_SECONDS):
            kind, item = await anext(events)
        if kind == "DELETED":
            known.pop(item.metadata.name, None)
        elif kind in ("ADDED", "MODIFIED"):
            known[item.metadata.name] = item
        changed(known)
