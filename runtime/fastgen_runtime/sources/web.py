"""HTTP requests of one download: timeouts, redirects, the token, and what answers mean."""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

import httpx2

from fastgen_api.names import StartupFailure
from fastgen_runtime.sources.patience import retry_after_seconds
from fastgen_runtime.sources.trouble import (
    DownloadError,
    PassingError,
    RefusalError,
    UnreachedError,
    host_of,
)

_CONNECT_SECONDS: Final = 15.0
_PASSING: Final = (408, 425, 429)
"""Statuses below 500 that another time may not have."""


class Web:
    """Sends the token to the server that it is for, and to no other that one redirects to."""

    def __init__(self, server: str, token: str | None, stall_seconds: float) -> None:
        """server: a URL of the one that the token is for. Raises DownloadError."""
        self._token = token
        self._stall_seconds = stall_seconds
        timeout = httpx2.Timeout(stall_seconds, connect=min(_CONNECT_SECONDS, stall_seconds))
        # What is compressed on the way has no length and no ranges.
        headers = {"Accept-Encoding": "identity", "User-Agent": "fastgen"}
        try:
            self._origin = httpx2.URL(server).origin
            self._client = httpx2.Client(
                timeout=timeout,
                headers=headers,
                follow_redirects=True,
                event_hooks={"request": [self._check_request]},
            )
        except (OSError, ValueError, httpx2.InvalidURL) as error:
            raise DownloadError(
                StartupFailure.CONFIG_INVALID,
                f"no client can be made for {host_of(server)} ({error}): check the address, "
                "SSL_CERT_FILE and HTTPS_PROXY",
            ) from None

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    @contextmanager
    def get(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[httpx2.Response]:
        """A response whose body is still to be read.

        Raises PassingError, also out of the reading, RefusalError and DownloadError.
        """
        sent = dict(headers or {})
        if self._token and httpx2.URL(url).origin == self._origin:
            sent["Authorization"] = f"Bearer {self._token}"
        try:
            with self._client.stream("GET", url, headers=sent) as response:
                _check(url, response)
                yield response
        except httpx2.RequestError as error:
            raise self._explain(error, url) from None

    def _check_request(self, request: httpx2.Request) -> None:
        """Sees each request before it is sent, also those that a redirect asks for."""
        if self._origin.scheme == "https" and request.url.scheme != "https":
            raise DownloadError(
                StartupFailure.MODEL_NOT_FOUND,
                f"{self._origin.host} redirects to {host_of(str(request.url))} without TLS, which "
                "is not followed: give an address that stays with https",
            )

    def _explain(self, error: httpx2.RequestError, url: str) -> Exception:
        host = host_of(str(error.request.url))
        match error:
            case httpx2.ConnectError() if certificate := _certificate_error(error):
                return DownloadError(
                    StartupFailure.CONFIG_INVALID,
                    f"the certificate of {host} is not trusted ({certificate}): give the "
                    "authority's certificate in SSL_CERT_FILE",
                )
            case httpx2.ConnectError() | httpx2.ConnectTimeout() | httpx2.ProxyError():
                return UnreachedError(f"{host} cannot be reached ({_words(error)})")
            case httpx2.TimeoutException():
                return PassingError(f"{host} was silent for {self._stall_seconds:.0f} s")
            case httpx2.TooManyRedirects() | httpx2.UnsupportedProtocol():
                return DownloadError(
                    StartupFailure.MODEL_NOT_FOUND,
                    f"{host_of(url)} redirects to nowhere ({_words(error)}): check the address",
                )
        return PassingError(f"the connection to {host} broke off ({_words(error)})")


def _check(url: str, response: httpx2.Response) -> None:
    """Raises for what is no success."""
    asked, host = host_of(url), host_of(str(response.url))
    status = response.status_code
    if status < 400:
        return
    # What a content network forbids is a signature that has run out: the token is not its matter.
    is_signature = status in (400, 403) and host != asked
    if status in _PASSING or status >= 500 or is_signature:
        headers = {name.lower(): value for name, value in response.headers.items()}
        wish = retry_after_seconds(headers, datetime.now(UTC))
        what = f"throttled by {host}" if status == 429 else f"{host} answered {status}"
        raise PassingError(what, wish)
    raise RefusalError(status, response.headers.get("X-Error-Code", ""))


def _certificate_error(error: BaseException | None) -> str:
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return str(error.verify_message)
        error = error.__cause__ or error.__context__
    return ""


def _words(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
