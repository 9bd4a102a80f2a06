"""The connection to the API server, on which no object hides another."""

from collections.abc import AsyncIterator
from typing import Final

import httpx2
from lightkube import AsyncClient, KubeConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from fastgen_api import names
from fastgen_api.nesting import shallow

OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})


def connect(namespace: str) -> AsyncClient:
    """Connects as the environment says: as a pod's ServiceAccount, or by KUBECONFIG.

    Each watch holds a connection, so there is no bound on them. No proxy variable is heeded. Raises
    lightkube.ConfigError.
    """
    config = KubeConfig.from_env().get()
    if config is None:
        raise ConfigError("no configuration: set KUBECONFIG, or run in a pod of the cluster")
    verify = verify_cluster(config.cluster, config.user or User(), config.abs_file)
    limits = httpx2.Limits(max_connections=None)
    return AsyncClient(
        config,
        namespace=namespace,
        field_manager=names.BALANCER_MANAGER,
        trust_env=False,
        transport=Shallow(httpx2.AsyncHTTPTransport(verify=verify, limits=limits, trust_env=False)),
    )


class Shallow(httpx2.AsyncBaseTransport):
    """Cuts what is nested too deeply for the client's decoder, line by line as it comes.

    A list comes in one line, and of a watch each event: one deployment that nobody can decode would
    end the watch of all.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The answer. Raises what the inner transport raises."""
        response = await self._inner.handle_async_request(request)
        response.request = request
        # The body is not compressed here.
        told = [each for each in response.headers.multi_items() if each[0] not in OF_THE_BODY]
        return httpx2.Response(response.status_code, headers=told, stream=_Lines(response))

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()


class _Lines(httpx2.AsyncByteStream):
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = bytearray()
        async for piece in self._response.aiter_bytes():
            *lines, last = piece.split(b"\n")
            for line in lines:
                rest += line
                yield shallow(bytes(rest)) + b"\n"
                rest.clear()
            rest += last
        if rest:
            yield shallow(bytes(rest))

    async def aclose(self) -> None:
        await self._response.aclose()
