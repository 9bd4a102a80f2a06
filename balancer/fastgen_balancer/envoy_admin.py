"""Envoy's admin interface, as far as a drain needs it."""

import json
from pathlib import Path
from typing import Any, Final

import httpx2

from fastgen_balancer.endpoint_files import ENVOY_FILE

ACTIVE_REQUESTS: Final = "http.in.downstream_rq_active"


class EnvoyAdmin:
    """Raises httpx2.HTTPError where Envoy does not answer."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx2.AsyncClient(base_url=base_url, timeout=2.0, trust_env=False)

    async def fail_health(self) -> None:
        await self._post("/healthcheck/fail")

    async def close_listeners(self) -> None:
        """Asks clients to go elsewhere; the listeners close when the drain time is over."""
        await self._post("/drain_listeners?graceful")

    async def quit(self) -> None:
        await self._post("/quitquitquit")

    async def active_requests(self) -> int:
        """Requests that Envoy has open now."""
        response = await self._client.get("/stats", params={"filter": f"^{ACTIVE_REQUESTS}$"})
        response.raise_for_status()
        _, _, number = response.text.partition(":")
        return int(number) if number.strip() else 0

    async def answers(self) -> bool:
        """Whether Envoy runs at all."""
        return await self._state() is not None

    async def is_ready(self) -> bool:
        """Whether Envoy takes requests, and its health was not failed."""
        return await self._state() == "LIVE"

    async def is_draining(self) -> bool:
        return await self._state() == "DRAINING"

    async def close(self) -> None:
        await self._client.aclose()

    async def _state(self) -> str | None:
        try:
            return (await self._client.get("/ready")).text.strip()
        except httpx2.HTTPError:
            return None

    async def _post(self, path: str) -> None:
        (await self._client.post(path)).raise_for_status()


def admin_port_of(directory: Path) -> int:
    """The port in the configuration that bootstrap wrote; raises OSError where it has not run."""
    path = directory / ENVOY_FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; `fastgen-balancer bootstrap` writes it")
    config: dict[str, Any] = json.loads(path.read_bytes())
    return int(config["admin"]["address"]["socket_address"]["port_value"])
