"""A request's way through the real Envoy and the picker."""

import grpc
import httpx

from fastgen_api.names import Metric
from fastgen_api.v1 import inference_pb2_grpc

from .conftest import Balance, prompt_of
from .replica import Replica, serving


async def test_a_streamed_answer_over_http_and_grpc(
    balance: Balance, http: httpx.AsyncClient
) -> None:
    one, two = Replica("one"), Replica("two")
    async with serving(one) as a, serving(two) as b, balance(a, b) as balancer:
        body = {"prompt": "gap=0.01", "max_tokens": 5, "stream": True}
        async with http.stream("POST", f"{balancer.url}/v1/completions", json=body) as response:
            assert response.status_code == 200
            lines = [line async for line in response.aiter_lines() if line]
        assert lines[-1] == "data: [DONE]"
        assert len(lines) == 6
        async with grpc.aio.insecure_channel(f"127.0.0.1:{balancer.port}") as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            answer = [m.text async for m in stub.Generate(prompt_of("gap=0.01", 4))]
        assert answer == ["w0 ", "w1 ", "w2 ", "w3 "]
        assert len(one.seen) + len(two.seen) == 2
        assert await balancer.metric(Metric.PICKS, result="picked") == 2
        await balancer.eventually(lambda: _idle(balancer))


async def _idle(balancer) -> bool:
    return await balancer.metric(Metric.IN_FLIGHT_REQUESTS) == 0
