"""An OpenAI endpoint: completions or chats as event streams."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from fastgen_cli.bench import failures
from fastgen_cli.bench.api import Api
from fastgen_cli.bench.endpoint import Call, Now, Sampling
from fastgen_cli.bench.record import Answer, Failure, NoAnswerError
from fastgen_cli.bench.stream import EventStream
from fastgen_cli.errors import UserError
from fastgen_cli.url import base_url, is_local

CONNECT_SECONDS = 10.0


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model] = []


def make_body(call: Call, api: Api, model: str, sampling: Sampling) -> dict[str, Any]:
    """The body of a request. `ignore_eos` is FastGen's, vLLM's and SGLang's own field."""
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": call.output_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if sampling.ignore_eos:
        body["ignore_eos"] = True
    if sampling.temperature is not None:
        body["temperature"] = sampling.temperature
    if api is Api.CHAT:
        return body | {"messages": [{"role": "user", "content": call.prompt}]}
    prompt = call.prompt if isinstance(call.prompt, str) else list(call.prompt)
    return body | {"prompt": prompt}


@dataclass(slots=True)
class HttpEndpoint:
    """The endpoint and its connections; one per request in flight."""

    url: str
    api: Api
    model: str | None
    sampling: Sampling
    timeout_seconds: float
    client: httpx2.AsyncClient

    @classmethod
    def open(
        cls,
        url: str,
        api: Api,
        model: str | None,
        sampling: Sampling,
        timeout_seconds: float,
        ca_file: Path | None,
    ) -> "HttpEndpoint":
        base = base_url(url)
        verify = tls_context(ca_file) if ca_file else True
        client = httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx2.Timeout(timeout_seconds, connect=CONNECT_SECONDS, pool=None),
            # A proxy of the shell must not stand between us and this very machine.
            trust_env=not is_local(base),
            verify=verify,
        )
        return cls(base, api, model, sampling, timeout_seconds, client)

    @property
    def address(self) -> str:
        return self.url

    async def find_model(self, key: str | None) -> str:
        """The first that is served, unless one is named; a named one must be served.

        An endpoint without `/models` is believed to serve what is named.
        """
        try:
            response = await self.client.get(f"{self.url}/models", headers=_headers(key))
        except httpx2.InvalidURL as error:
            raise UserError(f"{self.url} is no URL: {error}") from error
        except httpx2.HTTPError as error:
            failure = failures.of_http(error, False)
            raise UserError(failures.advice(failure, self.url, self.model or "")) from error
        if response.status_code != 200:
            if self.model is not None and response.status_code in (404, 405, 501):
                return self.model
            failure = failures.of_status(response.status_code, response.content)
            raise UserError(failures.advice(failure, self.url, self.model or ""))
        return self._choose(response.content)

    def _choose(self, body: bytes) -> str:
        try:
            served = [model.id for model in msgspec.json.decode(body, type=_Models).data]
        except msgspec.DecodeError as error:
            raise UserError(f"{self.url}/models is no OpenAI list of models: {error}") from error
        if self.model is None:
            if not served:
                raise UserError(f"{self.url} serves no model; name one with --model.")
            self.model = served[0]
        elif self.model not in served:
            names = ", ".join(served) or "none"
            raise UserError(f"{self.url} does not serve {self.model!r}; it serves {names}.")
        return self.model

    async def ask(self, call: Call, now: Now, on_token: Callable[[], None]) -> Answer:
        stream = EventStream()
        path = "chat/completions" if self.api is Api.CHAT else "completions"
        body = make_body(call, self.api, self.model or "", self.sampling)
        has_begun = False
        try:
            async with (
                asyncio.timeout(self.timeout_seconds),
                self.client.stream(
                    "POST", f"{self.url}/{path}", json=body, headers=_headers(call.key)
                ) as response,
            ):
                has_begun = True
                if response.status_code != 200:
                    failed = failures.of_status(response.status_code, await response.aread())
                    raise NoAnswerError(failed)
                # Decoded, unlike raw: an endpoint may compress.
                async for data in response.aiter_bytes():
                    before = len(stream.times)
                    stream.feed(data, now())
                    for _ in range(len(stream.times) - before):
                        on_token()
        except httpx2.HTTPError as error:
            raise NoAnswerError(failures.of_http(error, has_begun)) from error
        except TimeoutError as error:
            raise NoAnswerError(Failure(failures.TIMED_OUT)) from error
        return answer_of(stream, now())

    async def close(self) -> None:
        await self.client.aclose()


def tls_context(ca_file: Path) -> ssl.SSLContext:
    """Trusts whom the file names, and nobody else; raises UserError."""
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:
        raise UserError(f"--ca-file {ca_file}: {error}") from error


def answer_of(stream: EventStream, ended: float) -> Answer:
    """The answer of a stream that has ended; raises NoAnswerError for one that is not whole."""
    if not stream.done:
        raise NoAnswerError(Failure(failures.BROKE_OFF, 0, "the stream ended without [DONE]"))
    prompt_tokens, output_tokens = stream.usage or (None, None)
    text = "".join(stream.texts)
    return Answer(tuple(stream.times), ended, prompt_tokens, output_tokens, text)


def _headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
