"""A FastGen endpoint over gRPC: `fastgen.v1.InferenceService`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc
from fastgen_cli.bench import failures
from fastgen_cli.bench.endpoint import Call, Now, Sampling
from fastgen_cli.bench.record import Answer, Failure, NoAnswerError
from fastgen_cli.errors import UserError

LOAD_SECONDS = 10.0
CHANNELS = 4
"""Connections that the streams share: HTTP/2 servers commonly take 100 on one."""


def make_message(call: Call, model: str, sampling: Sampling) -> inference_pb2.GenerateRequest:
    """The message of a request."""
    message = inference_pb2.GenerateRequest(model=model)
    if isinstance(call.prompt, str):
        message.text = call.prompt
    else:
        message.token_ids.ids.extend(call.prompt)
    message.stopping.max_tokens = call.output_tokens
    message.stopping.ignore_eos = sampling.ignore_eos
    if sampling.temperature is not None:
        message.sampling.temperature = sampling.temperature
    return message


@dataclass(slots=True)
class GrpcEndpoint:
    """The endpoint and its channels, which take the requests in turn."""

    target: str
    model: str | None
    sampling: Sampling
    timeout_seconds: float
    channels: tuple[grpc.aio.Channel, ...]
    turn: int = 0

    @classmethod
    def open(
        cls,
        target: str,
        model: str | None,
        sampling: Sampling,
        timeout_seconds: float,
        is_tls: bool,
        ca_file: Path | None,
    ) -> "GrpcEndpoint":
        # A pool of its own for each channel: else they would share one connection.
        options = (("grpc.use_local_subchannel_pool", 1),)
        if is_tls or ca_file:
            credentials = grpc.ssl_channel_credentials(ca_file.read_bytes() if ca_file else None)
            channels = [
                grpc.aio.secure_channel(target, credentials, options) for _ in range(CHANNELS)
            ]
        else:
            channels = [grpc.aio.insecure_channel(target, options) for _ in range(CHANNELS)]
        return cls(target, model, sampling, timeout_seconds, tuple(channels))

    @property
    def address(self) -> str:
        return self.target

    async def find_model(self, key: str | None) -> str:
        """The named one, else that of the replica; behind a balancer it must be named."""
        if self.model is not None:
            return self.model
        stub = inference_pb2_grpc.InferenceServiceStub(self.channels[0])
        request = inference_pb2.GetLoadRequest()
        try:
            load = await stub.GetLoad(request, timeout=LOAD_SECONDS, metadata=_metadata(key))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UserError(
                    f"{self.target} does not say which model it serves; name it with --model."
                ) from error
            raise UserError(_advice(error, self.target)) from error
        self.model = str(load.model)
        return self.model

    async def ask(self, call: Call, now: Now, on_token: Callable[[], None]) -> Answer:
        self.turn += 1
        stub = inference_pb2_grpc.InferenceServiceStub(self.channels[self.turn % CHANNELS])
        message = make_message(call, self.model or "", self.sampling)
        times: list[float] = []
        usage: inference_pb2.Usage | None = None
        try:
            async for response in stub.Generate(
                message, timeout=self.timeout_seconds, metadata=_metadata(call.key)
            ):
                times.extend([now()] * len(response.token_ids))
                if response.token_ids:
                    on_token()
                if response.HasField("usage"):
                    usage = response.usage
        except grpc.aio.AioRpcError as error:
            failed = failures.of_code(error.code(), error.details() or "", bool(times))
            raise NoAnswerError(failed) from error
        if usage is None:
            raise NoAnswerError(Failure(failures.BROKE_OFF, 0, "the stream ended without usage"))
        return Answer(tuple(times), now(), usage.prompt_tokens, usage.output_tokens)

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


def _metadata(key: str | None) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),) if key else ()


def _advice(error: grpc.aio.AioRpcError, target: str) -> str:
    failure = failures.of_code(error.code(), error.details() or "", False)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        failure = Failure(failures.NOT_REACHED, 0, failure.message)
    return failures.advice(failure, target, "")
