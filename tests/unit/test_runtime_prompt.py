"""Long prompts cost others nothing, and those that cannot fit cost nothing at all."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from fastgen_runtime.front.admission import check_size
from fastgen_runtime.front.generation import (
    ChatMessage,
    ChatPrompt,
    ErrorKind,
    Prompt,
    RequestError,
    TextPrompt,
)
from fastgen_runtime.front.prompt import PromptEncoder
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint
from fastgen_runtime.text.text_bound import text_bound

BIG = "word 42, naïve 👩‍👩‍👧 \n" * 16_000
"""Some 500 kB, which take the tokenizer a good part of a second."""


@pytest.fixture(scope="session")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


async def test_other_work_goes_on_while_a_big_prompt_is_encoded(checkpoint: Checkpoint) -> None:
    """A second thread ticks all the while: `encode` would hold the interpreter's lock."""
    encoder = PromptEncoder(checkpoint)
    encoding = asyncio.create_task(encoder.encode(TextPrompt(BIG)))
    begun, longest, ticks = time.perf_counter(), 0.0, 0
    while not encoding.done():
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        longest, ticks = max(longest, time.perf_counter() - before), ticks + 1
    took = time.perf_counter() - begun
    encoder.close()
    assert ticks > 10
    assert longest < took / 2
    assert await encoding == checkpoint.tokenizer.encode(BIG).ids


async def test_big_prompts_wait_for_one_another_and_short_ones_for_none(
    checkpoint: Checkpoint,
) -> None:
    encoder = PromptEncoder(checkpoint)
    big = [asyncio.create_task(encoder.encode(TextPrompt(BIG))) for _ in range(4)]
    await asyncio.sleep(0)
    for text in ("Hi", "some words " * 1000):
        assert await encoder.encode(TextPrompt(text)) == checkpoint.tokenizer.encode(text).ids
    assert not any(task.done() for task in big[1:])
    names = [thread.name for thread in threading.enumerate() if "big-tokenizer" in thread.name]
    assert len(names) == 1
    for task in big:
        task.cancel()
    encoder.close()


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        (TextPrompt("x" * 8101), "prompt"),
        (
            ChatPrompt([ChatMessage("user", "é" * 2025), ChatMessage("user", "é" * 2026)]),
            "messages",
        ),
    ],
)
def test_what_has_too_many_bytes_for_its_tokens_is_refused_unread(
    checkpoint: Checkpoint, prompt: Prompt, field: str
) -> None:
    bound = text_bound(checkpoint.tokenizer)
    assert bound is not None
    assert bound.longest_token_bytes == 81
    with pytest.raises(RequestError) as refused:
        check_size(prompt, 100, bound)
    assert (refused.value.kind, refused.value.field) == (ErrorKind.INVALID, field)
    assert refused.value.message.startswith(f"{field} has 810")
    assert "the 100 tokens that are taken hold at most 8100" in refused.value.message
    check_size(TextPrompt("x" * 8100), 100, bound)
    check_size(prompt, 100, None)


@given(st.text(st.characters(exclude_categories=["Cs"])) | st.text("# -=\n\x04\x06\U00050000"))
def test_no_text_has_fewer_tokens_than_its_bound(checkpoint: Checkpoint, text: str) -> None:
    tokenizer = checkpoint.tokenizer
    bound = text_bound(tokenizer)
    assert bound is not None
    num_tokens = len(tokenizer.encode(text * 50).ids)
    assert bound.count_bytes([text * 50]) <= num_tokens * bound.longest_token_bytes


def test_tokenizers_that_may_leave_out_text_have_no_bound(checkpoint: Checkpoint) -> None:
    def changed() -> Tokenizer:
        return Tokenizer.from_str(checkpoint.tokenizer.to_str())

    shrinking = changed()
    shrinking.normalizer = normalizers.Strip()
    dropping = changed()
    dropping.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()]
    )
    swallowing = changed()
    swallowing.add_special_tokens([AddedToken("<eat>", lstrip=True)])
    assert text_bound(changed()) is not None
    assert [text_bound(one) for one in (shrinking, dropping, swallowing)] == [None] * 3
