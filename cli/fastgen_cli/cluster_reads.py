"""What the commands for people read of a cluster, and how a refusal is told."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx2
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from fastgen_api import names
from fastgen_api.nesting import shallow
from fastgen_api.spec import KubernetesObject
from fastgen_cli.errors import UserError
from fastgen_cli.kubeconfig import WAY_OUT, NoClusterError, Target, choose

TIMEOUT_SECONDS: Final = 10.0
FASTGEN: Final = f"/apis/{names.API_VERSION}"
CORE: Final = "/api/v1"

Answer = TypeVar("Answer")

APIS: Final = {
    names.PLURAL: FASTGEN,
    "pods": CORE,
    "events": CORE,
    "persistentvolumeclaims": CORE,
    "horizontalpodautoscalers": "/apis/autoscaling/v2",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why something could not be read."""

    code: int
    """HTTP status; 0: no answer."""
    message: str

    @property
    def is_forbidden(self) -> bool:
        """Whether a right is missing."""
        return self.code == HTTPStatus.FORBIDDEN


class Reader:
    """GETs of one cluster's API, with the credentials of a kubeconfig."""

    def __init__(self, config: SingleConfig, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Raises NoClusterError when the credentials cannot be used."""
        self.namespace = config.namespace
        """Where names are looked for when nobody named a namespace."""
        self._server = config.cluster.server
        parameters = client_adapter.ConnectionParams(timeout=httpx2.Timeout(timeout_seconds))
        try:
            self._http = client_adapter.AsyncClient(config, parameters)
        except (ConfigError, OSError, ValueError) as error:
            raise NoClusterError(f"The credentials cannot be used: {error}; {WAY_OUT}.") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.aclose()

    async def text(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> str | Refusal:
        """The body of a path, or why there is none; raises NoClusterError without any answer."""
        timeout = httpx2.USE_CLIENT_DEFAULT if timeout_seconds is None else timeout_seconds
        try:
            answer = await self._http.get(path, params=dict(query or {}), timeout=timeout)
        except httpx2.TimeoutException:
            if timeout_seconds is not None:
                return Refusal(0, f"no answer within {timeout_seconds:g} s")
            raise self._silent("it did not answer in time") from None
        except (httpx2.HTTPError, OSError) as error:
            raise self._silent(str(error) or type(error).__name__) from error
        except ConfigError as error:
            raise NoClusterError(f"The credentials cannot be had: {error}; {WAY_OUT}.") from error
        if answer.is_success:
            return answer.text
        if answer.status_code == HTTPStatus.UNAUTHORIZED:
            raise NoClusterError(
                f"{self._server} does not know you: the credentials are wrong or have expired; "
                f"{WAY_OUT}."
            )
        return Refusal(answer.status_code, _message(answer))

    async def one(self, plural: str, namespace: str, name: str) -> KubernetesObject | Refusal:
        """An object."""
        path = f"{APIS[plural]}/namespaces/{namespace}/{plural}/{name}"
        found: KubernetesObject | Refusal = _json(await self.text(path))
        return found

    async def all(
        self, plural: str, namespace: str | None, labels: str = "", fields: str = ""
    ) -> tuple[KubernetesObject, ...] | Refusal:
        """The objects of a namespace, or of all of them; selectors as kubectl takes them."""
        where = f"/namespaces/{namespace}" if namespace else ""
        query = {"labelSelector": labels, "fieldSelector": fields}
        given = {name: value for name, value in query.items() if value}
        found = _json(await self.text(f"{APIS[plural]}{where}/{plural}", given))
        return found if isinstance(found, Refusal) else tuple(found["items"])

    def _silent(self, why: str) -> NoClusterError:
        return NoClusterError(f"No cluster answers at {self._server}: {why}; {WAY_OUT}.")


def with_reader(target: Target, ask: Callable[[Reader], Coroutine[Any, Any, Answer]]) -> Answer:
    """What a question to the cluster gives; raises NoClusterError."""

    async def run() -> Answer:
        async with Reader(choose(target)) as reader:
            return await ask(reader)

    return asyncio.run(run())


class NotInstalledError(UserError):
    """The cluster does not know FastGenDeployments."""

    def __init__(self) -> None:
        super().__init__(
            "This cluster does not know FastGenDeployments: install the chart with "
            "`helm install fastgen charts/fastgen`, or choose another cluster with --context."
        )


def _json(found: str | Refusal) -> Any:
    return found if isinstance(found, Refusal) else json.loads(shallow(found.encode()))


def _message(answer: httpx2.Response) -> str:
    """What a refusal says: Kubernetes' own sentence, or the first line of another body."""
    try:
        said = answer.json().get("message")
    except (ValueError, AttributeError):
        said = None
    lines = (said or answer.text).strip().splitlines()
    return (lines[0] if lines else answer.reason_phrase)[:300]
