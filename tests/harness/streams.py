"""One streamed request at a time, with the clients that users have."""

from typing import Any

import grpc
import openai


def chat(url: str, model: str, prompt: str, **options: Any) -> openai.Stream[Any]:
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    stream: openai.Stream[Any] = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], stream=True, **options
    )
    return stream


def channel(address: str) -> grpc.Channel:
    """A gRPC channel to the same address as the OpenAI API."""
    return grpc.insecure_channel(address if ":" in address else f"{address}:80")
