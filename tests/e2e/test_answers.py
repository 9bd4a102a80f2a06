"""What clients get from a FastGenDeployment on the real cluster: answers, or their field's name."""

from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from greedy_reference import PROMPTS, greedy_texts
from streams import channel, chat

from fastgen_api.v1 import inference_pb2, inference_pb2_grpc

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NAME = "smollm2"
GREEDY_TOKENS = 32


def test_the_openai_client_streams_an_answer(url: str) -> None:
    chunks = list(chat(url, NAME, "Say hello.", max_tokens=16, temperature=0))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip()
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_grpc_streams_the_same_answer(url: str, address: str) -> None:
    request = inference_pb2.GenerateRequest(
        chat=inference_pb2.Chat(
            messages=[inference_pb2.ChatMessage(role="user", content="Say hello.")]
        ),
        sampling=inference_pb2.Sampling(temperature=0),
        stopping=inference_pb2.Stopping(max_tokens=16),
    )
    with channel(address) as stubs:
        replies = list(inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request))
    assert replies[-1].usage.output_tokens > 0
    over_http = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(url, NAME, "Say hello.", max_tokens=16, temperature=0)
    )
    assert "".join(reply.text for reply in replies) == over_http


def test_greedy_text_equals_transformers(url: str, smollm2_path: Path) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    served = [
        client.completions.create(
            model=NAME, prompt=prompt, max_tokens=GREEDY_TOKENS, temperature=0
        )
        .choices[0]
        .text
        for prompt in PROMPTS
    ]
    assert served == greedy_texts(smollm2_path, PROMPTS, GREEDY_TOKENS)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"temperature": 9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": "hello"}, "messages"),
        ({"temprature": 0.5}, "temprature"),
        ({"messages": [{"role": "user", "content": "word " * 5000}]}, "messages"),
    ],
)
def test_a_bad_request_is_told_its_field(url: str, body: dict[str, Any], field: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    good = {"model": NAME, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    with pytest.raises(openai.BadRequestError, match=field):
        client.post("/chat/completions", body=good | body, cast_to=object)


def test_a_bad_grpc_request_is_told_its_field(address: str) -> None:
    request = inference_pb2.GenerateRequest(
        text="Hi", sampling=inference_pb2.Sampling(temperature=9)
    )
    with channel(address) as stubs, pytest.raises(grpc.RpcError) as caught:
        list(inference_pb2_grpc.InferenceServiceStub(stubs).Generate(request))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in caught.value.details()
