"""The ConfigMap that a download tells of itself in, written with the pod's service account."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2

from fastgen_api.delivery import DOWNLOAD_MANAGER, DeliveryField
from fastgen_runtime.sources.delivery_fields import Fields
from fastgen_runtime.sources.trouble import without_secrets

ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_REQUEST_SECONDS: Final = 10.0
_CONFLICT: Final = 409
_TRIES: Final = 5
"""At conflicts with whoever else writes the object, its metadata say."""


class SupersededError(Exception):
    """The ConfigMap speaks of another model by now."""


class UnreportedError(Exception):
    """The API server did not take it."""


def api_server(environment: Mapping[str, str] = os.environ) -> str:
    """The API server's URL, as every pod is told it."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class ConfigMap:
    """One ConfigMap, written only while it speaks of the same model.

    Each write names the version that was read or written last: a download that another one has
    replaced meanwhile finds out, and overwrites nothing.
    """

    def __init__(
        self,
        name: str,
        key: str,
        namespace: str | None = None,
        server: str | None = None,
        account: Path = ACCOUNT_FOLDER,
    ) -> None:
        """account: folder of token, ca.crt and namespace. Raises OSError."""
        self._account = account
        own = namespace or (account / "namespace").read_text(encoding="utf-8").strip()
        self._url = f"{server or api_server()}/api/v1/namespaces/{own}/configmaps/{name}"
        self._key = key
        self._version: str | None = None
        context = ssl.create_default_context(cafile=str(account / "ca.crt"))
        # A proxy is for what lies outside the cluster.
        self._client = httpx2.Client(verify=context, timeout=_REQUEST_SECONDS, trust_env=False)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def told(self) -> Mapping[str, str]:
        """What it says of this model, by an earlier run; raises UnreportedError."""
        found = self._ask("GET")
        self._note_version(found)
        data: dict[str, str] = (found or {}).get("data") or {}
        return data if data.get(DeliveryField.KEY) == self._key else {}

    def merge(self, fields: Fields) -> None:
        """Writes the fields; raises UnreportedError and SupersededError."""
        if self._version is None:
            self._note_version(self._ask("GET"))
        for _ in range(_TRIES):
            metadata = {"resourceVersion": self._version}
            data = {DeliveryField.KEY: self._key, **fields}
            answer = self._ask("PATCH", {"metadata": metadata, "data": data})
            if answer is not None:
                self._note_version(answer)
                return
            found = self._ask("GET")
            # One that was deleted, and made anew by the operator, speaks of no model yet.
            if found is None or _key_of(found, self._key) != self._key:
                raise SupersededError
            self._note_version(found)
        raise UnreportedError("others write it all the time")

    def _note_version(self, found: Mapping[str, Any] | None) -> None:
        self._version = found["metadata"]["resourceVersion"] if found else None

    def _ask(self, method: str, body: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """The object as it is by now; None: it was written by somebody else meanwhile."""
        token = ""
        try:
            # The kubelet replaces the token before it runs out.
            token = (self._account / "token").read_text(encoding="ascii").strip()
            headers = {
                "Authorization": f"Bearer {token}",
                "Content-Type": "application/merge-patch+json",
            }
            manager = {"fieldManager": DOWNLOAD_MANAGER} if body else None
            answer = self._client.request(
                method, self._url, params=manager, json=body, headers=headers
            )
            if answer.status_code == _CONFLICT:
                return None
            found: dict[str, Any] = answer.json()
        except (httpx2.RequestError, OSError, ValueError) as error:
            words = without_secrets(str(error), token)
            raise UnreportedError(f"{type(error).__name__}: {words}") from None
        if answer.status_code >= 400:
            raise UnreportedError(f"{answer.status_code}: {found.get('message', '')}")
        return found


def _key_of(found: Mapping[str, Any], default: str) -> str:
    return str((found.get("data") or {}).get(DeliveryField.KEY, default))
