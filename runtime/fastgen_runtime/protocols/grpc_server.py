"""gRPC: `fastgen.v1.InferenceService`, health and reflection."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final, NoReturn

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from fastgen_api.names import Header
from fastgen_api.request_id import MAX_REQUEST_ID_CHARACTERS, is_request_id
from fastgen_api.v1 import inference_pb2
from fastgen_runtime.front.answer import Delta
from fastgen_runtime.front.front import Front
from fastgen_runtime.front.generation import (
    TRACEPARENT,
    ChatPrompt,
    ErrorKind,
    Generation,
    RequestError,
    invalid,
    waited_seconds,
)
from fastgen_runtime.front.stream import Stream
from fastgen_runtime.protocols.grpc_generation import generation_of, response_of
from fastgen_runtime.protocols.grpc_messages import (
    UNOPENED,
    Opener,
    Unreadable,
    first_message,
    reader,
)
from fastgen_runtime.protocols.untaken import TAKE_SECONDS

SERVICE: Final = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
_HEALTH_POLL_SECONDS: Final = 0.2
_QUICK_LOGPROBS: Final = 64
"""Of tokens, that take some milliseconds to write."""
MAX_METADATA_BYTES: Final = 256 * 1024
"""Above the 60 KiB of headers that the balancer's Envoy lets through, each header's overhead
included: what passes there must not look like a full replica here."""
MAX_PROXIED_BYTES: Final = 8 * 1024 * 1024
"""Longest body that the balancer's Envoy lets through."""

_STATUS: Final = {
    ErrorKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.UNKNOWN_MODEL: grpc.StatusCode.NOT_FOUND,
    ErrorKind.TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    ErrorKind.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    ErrorKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    ErrorKind.DEADLINE: grpc.StatusCode.DEADLINE_EXCEEDED,
    ErrorKind.FAILED: grpc.StatusCode.INTERNAL,
}

Context = grpc.aio.ServicerContext[Any, Any]


class Inference:
    """The front, as gRPC sees it."""

    def __init__(self, front: Front, replica: str) -> None:
        self._front = front
        self._replica = replica

    async def Generate(  # noqa: N802
        self,
        requests: AsyncIterator[inference_pb2.GenerateRequest | Unreadable],
        context: Context,
    ) -> None:
        """Streams the answer; no header leaves before the first token."""
        try:
            try:
                request = await first_message(requests)
                generation = self._generation(request, context)
            except RequestError as error:
                request_id = _request_id(_metadata(context).get(Header.REQUEST_ID, ""))
                self._front.count_invalid(error.message, request_id=request_id, protocol="grpc")
                raise
            request_id = generation.request_id
            async with self._front.submit(generation) as stream:
                is_taken = await self._send(stream, request_id, context)
            if not is_taken:
                message = f"nothing of the answer was taken for {TAKE_SECONDS:g} s"
                raise RequestError(ErrorKind.DEADLINE, message)
        except RequestError as error:
            await self._abort(context, error)

    async def GetLoad(  # noqa: N802
        self,
        requests: AsyncIterator[inference_pb2.GetLoadRequest | Unreadable],
        context: Context,
    ) -> inference_pb2.GetLoadResponse:
        """Answers at once, from what the engine last reported."""
        try:
            await first_message(requests)
        except RequestError as error:
            await self._abort(context, error)
        load = self._front.load()
        return inference_pb2.GetLoadResponse(
            model=self._front.served_name,
            running_requests=load.num_running,
            waiting_requests=load.num_waiting,
            owed_tokens=load.num_owed,
            max_concurrent_requests=load.max_running,
            total_blocks=load.num_blocks,
            free_blocks=load.num_free_blocks,
            block_size=load.block_size,
            tokens_per_second=load.tokens_per_second,
            draining=load.draining,
        )

    async def _send(self, stream: Stream, request_id: str, context: Context) -> bool:
        """Sends the answer as it comes; false where the client does not take it."""
        is_first = True
        async for delta in stream.deltas():
            response = await self._response(request_id, delta)
            try:
                async with asyncio.timeout(TAKE_SECONDS):
                    if is_first:
                        await context.send_initial_metadata(
                            (
                                (Header.REPLICA, self._replica),
                                (Header.REQUEST_ID, request_id),
                                (Header.PROMPT_TOKENS, str(stream.num_prompt_tokens)),
                            )
                        )
                        is_first = False
                    await context.write(response)
            except TimeoutError:
                return False
        return True

    async def _response(self, request_id: str, delta: Delta) -> inference_pb2.GenerateResponse:
        """A long prompt's log probabilities take long: others' tokens go on meanwhile."""
        if delta.prompt is None or len(delta.prompt.logprobs) < _QUICK_LOGPROBS:
            return response_of(request_id, delta)
        return await asyncio.to_thread(response_of, request_id, delta)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's methods, by their names in the definition."""
        max_bytes = max_message_bytes(self._front.max_body_bytes)
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Generate": grpc.stream_stream_rpc_method_handler(
                self.Generate,
                request_deserializer=reader(inference_pb2.GenerateRequest, max_bytes),
                response_serializer=inference_pb2.GenerateResponse.SerializeToString,
            ),
            "GetLoad": grpc.stream_unary_rpc_method_handler(
                self.GetLoad,
                request_deserializer=reader(inference_pb2.GetLoadRequest, max_bytes),
                response_serializer=inference_pb2.GetLoadResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _generation(self, request: inference_pb2.GenerateRequest, context: Context) -> Generation:
        """Raises RequestError naming the field."""
        if request.request_id and not is_request_id(request.request_id):
            raise invalid(
                "request_id",
                f"must be printable ASCII of at most {MAX_REQUEST_ID_CHARACTERS} characters",
            )
        metadata = _metadata(context)
        remaining = context.time_remaining()
        generation = generation_of(
            request,
            self._front.max_length,
            request_id=request.request_id or _request_id(metadata.get(Header.REQUEST_ID, "")),
            traceparent=metadata.get(TRACEPARENT),
            waited_seconds=waited_seconds(metadata.get(Header.WAITED)),
            model_judged=Header.MODEL_JUDGED in metadata,
            is_unwitnessed=Header.UNWITNESSED in metadata,
            deadline=None if remaining is None else time.monotonic() + remaining,
        )
        if isinstance(generation.prompt, ChatPrompt) and generation.prompt.tools:
            return self._with_calls(generation)
        return generation

    def _with_calls(self, generation: Generation) -> Generation:
        """Calls of tools come as the model writes them, special tokens included."""
        tools = self._front.encoder.tools
        if tools.format is None:
            raise invalid("chat.tools", f"cannot be used: {tools.problem}")
        return replace(generation, shown_token_ids=tools.shown_token_ids)

    async def _abort(self, context: Context, error: RequestError) -> NoReturn:
        metadata = ((Header.REPLICA, self._replica),)
        await context.abort(_STATUS[error.kind], error.message, metadata)


def max_message_bytes(max_body_bytes: int) -> int:
    """What gRPC itself receives, and what a compressed message may hold.

    The error for a longer message, as it was sent, is gRPC's own RESOURCE_EXHAUSTED, which a
    balancer takes for a full replica and tries elsewhere: whatever passes the balancer has to get
    our INVALID_ARGUMENT instead.
    """
    return max(MAX_PROXIED_BYTES, max_body_bytes) * 2


class GrpcServer:
    """The gRPC port."""

    def __init__(self, front: Front, replica: str) -> None:
        self._front = front
        max_bytes = max_message_bytes(front.max_body_bytes)
        self._server = grpc.aio.server(
            interceptors=(Opener(SERVICE, max_bytes),),
            options=(
                *UNOPENED,
                # Two replicas must not share a port without noticing.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", max_bytes),
                ("grpc.max_metadata_size", MAX_METADATA_BYTES),
                ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
                # Idle streams of a balancer are kept alive by pings.
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
            ),
        )
        self._health = health.aio.HealthServicer()
        self._server.add_generic_rpc_handlers((Inference(front, replica).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    def bind(self, host: str, port: int) -> int:
        """Takes the port, and returns it; raises OSError when it cannot be had."""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"{address} cannot be bound") from error

    async def start(self) -> None:
        await self.tell_health()
        await self._server.start()

    async def follow_health(self) -> None:
        """Keeps the health service true, for as long as the task runs."""
        while True:
            await self.tell_health()
            await asyncio.sleep(_HEALTH_POLL_SECONDS)

    async def tell_health(self) -> None:
        """Sets what the health service answers to what is the case now."""
        serving = self._front.why_not_serving() is None
        statuses = health_pb2.HealthCheckResponse
        status = statuses.SERVING if serving else statuses.NOT_SERVING
        for name in ("", SERVICE):
            await self._health.set(name, status)

    async def stop(self, grace_seconds: float) -> None:
        await self._server.stop(grace_seconds)


def _metadata(context: Context) -> dict[str, str]:
    pairs = context.invocation_metadata() or ()
    return {key: value for key, value in pairs if isinstance(value, str)}


def _request_id(given: str) -> str:
    """The client's, where it may be the request's; else one of our own."""
    return given if is_request_id(given) else uuid.uuid4().hex
