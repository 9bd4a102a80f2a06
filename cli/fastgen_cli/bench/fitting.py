"""Fits prompts to an endpoint: whatever its tokenizer is, they get the asked number of tokens."""

import re
from typing import Final

from fastgen_cli.bench.endpoint import Call, Endpoint
from fastgen_cli.bench.failures import NO_USAGE, advice
from fastgen_cli.bench.prompts import WORDS, IdPrompts, Prompts, calibrate, text_of
from fastgen_cli.bench.record import Failure, NoAnswerError
from fastgen_cli.bench.run import CountText
from fastgen_cli.errors import UserError

GRPC_IDS: Final = "1000-4000"
"""Token ids that are ordinary words or parts of words in every larger vocabulary."""


def parse_ids(text: str) -> IdPrompts:
    """Reads `1000-4000`; raises UserError."""
    found = re.fullmatch(r"(\d+)-(\d+)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise UserError(f"--token-ids: {text!r} is no range such as {GRPC_IDS}")
    return IdPrompts(int(found[1]), int(found[2]))


async def fit(
    endpoint: Endpoint, model: str, key: str | None, count_text: CountText | None
) -> Prompts:
    """Prompts as texts: by the endpoint's own counts, else by the tokenizer that is given.

    With a tokenizer the endpoint is asked once, for what its chat template adds. Raises UserError
    where nobody counts, or the endpoint gives no answer.
    """

    async def served(text: str) -> int | None:
        try:
            answer = await endpoint.ask(Call(text, 1, key), lambda: 0.0, lambda: None)
        except NoAnswerError as error:
            raise UserError(advice(error.failure, endpoint.address, model)) from error
        return answer.prompt_tokens

    async def served_count(text: str) -> int:
        tokens = await served(text)
        if tokens is None:
            raise UserError(advice(Failure(NO_USAGE), endpoint.address, model))
        return tokens

    if count_text is None:
        return await calibrate(served_count)
    text = text_of(WORDS)
    tokens = await served(text)
    added = 0 if tokens is None else tokens - count_text(text)

    async def local_count(text: str) -> int:
        return count_text(text) + added

    return await calibrate(local_count)
