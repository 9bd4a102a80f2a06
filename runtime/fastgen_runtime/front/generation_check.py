"""How much a client may ask for: ranges, and fields that contradict one another."""

import math
from collections.abc import Sequence
from typing import Final

from fastgen_runtime.front.generation import ChatMessage, ChatPrompt, Generation, Tool, invalid

MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARACTERS: Final = 256
"""Each token of an answer is compared with every beginning of its stop strings."""
MAX_STOP_TOKEN_IDS: Final = 128
MAX_CHOICES: Final = 128
MAX_LOGPROBS: Final = 20
MAX_LOGIT_BIASES: Final = 1024
MAX_LOGIT_BIAS: Final = 100
MAX_REPETITION_PENALTY: Final = 100
MAX_TOOL_NAME_CHARACTERS: Final = 64
CHAT_ROLES: Final = ("system", "user", "assistant", "tool")
_RANGES: Final = (
    # field, attribute, least, most; None: no bound
    ("n", "num_choices", 1, MAX_CHOICES),
    ("min_tokens", "min_tokens", 0, None),
    ("temperature", "temperature", 0, 2),
    ("top_k", "top_k", 0, 2**31 - 1),
    ("min_p", "min_p", 0, 1),
    ("frequency_penalty", "frequency_penalty", -2, 2),
    ("presence_penalty", "presence_penalty", -2, 2),
    ("logprobs", "num_logprobs", 0, MAX_LOGPROBS),
    ("prompt_logprobs", "num_prompt_logprobs", 0, MAX_LOGPROBS),
    ("priority", "priority", -(2**31), 2**31 - 1),
)


def check(generation: Generation, vocabulary_size: int | None = None) -> None:
    """Raises RequestError naming the first field that is out of range, or contradicts another."""
    for field_name, attribute, least, most in _RANGES:
        value = getattr(generation, attribute)
        if value is not None:
            _check_range(field_name, value, least, most)
    top_p, penalty = generation.top_p, generation.repetition_penalty
    if top_p is not None and not 0 < top_p <= 1:  # false for NaN, too
        raise invalid("top_p", f"must be above 0 and at most 1, not {show_number(top_p)}")
    if penalty is not None and not 0 < penalty <= MAX_REPETITION_PENALTY:
        most = MAX_REPETITION_PENALTY
        raise invalid(
            "repetition_penalty", f"must be above 0 and at most {most}, not {show_number(penalty)}"
        )
    if generation.seed is not None and not -(2**63) <= generation.seed < 2**64:
        raise invalid("seed", "must fit in 64 bits")
    _check_lengths(generation)
    _check_stops(generation.stop)
    _check_token_ids(generation, vocabulary_size)
    if generation.grammar is not None:
        _check_end_of_grammar(generation)
    if isinstance(generation.prompt, ChatPrompt):
        _check_messages(generation.prompt.messages)
        _check_tools(generation.prompt.tools)


def _check_range(name: str, value: float, least: float, most: float | None) -> None:
    if most is None:
        if not value >= least:
            raise invalid(name, f"must be {least} or more, not {show_number(value)}")
    elif not least <= value <= most:
        raise invalid(name, f"must be between {least} and {most}, not {show_number(value)}")


def _check_lengths(generation: Generation) -> None:
    max_tokens, min_tokens = generation.max_tokens, generation.min_tokens
    if max_tokens is None:
        return
    if max_tokens == 0 and not generation.echo:
        raise invalid("max_tokens", "must be 1 or more, not 0, which is for echo only")
    if max_tokens < 0:
        raise invalid("max_tokens", f"must be 1 or more, not {show_number(max_tokens)}")
    if min_tokens > max_tokens:
        least, most = show_number(min_tokens), show_number(max_tokens)
        raise invalid("min_tokens", f"is {least}, more than max_tokens, {most}")


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise invalid("stop", f"may hold at most {MAX_STOP_STRINGS} strings")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARACTERS:
            raise invalid(
                "stop",
                f"strings must have 1 to {MAX_STOP_CHARACTERS} characters, not {len(stop)}",
            )


def _check_token_ids(generation: Generation, vocabulary_size: int | None) -> None:
    """vocabulary_size: None where ids are not known to be outside it."""
    if len(generation.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise invalid("stop_token_ids", f"may hold at most {MAX_STOP_TOKEN_IDS} token ids")
    if len(generation.logit_bias) > MAX_LOGIT_BIASES:
        raise invalid("logit_bias", f"may hold at most {MAX_LOGIT_BIASES} token ids")
    for token_id, bias in generation.logit_bias.items():
        _check_range(f"logit_bias[{show_number(token_id)}]", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    end = 2**31 if vocabulary_size is None else vocabulary_size
    for name, ids in (
        ("stop_token_ids", generation.stop_token_ids),
        ("logit_bias", generation.logit_bias),
    ):
        for token_id in ids:
            if not 0 <= token_id < end:
                raise invalid(
                    name, f"holds token id {show_number(token_id)}, outside 0 to {end - 1}"
                )


def _check_end_of_grammar(generation: Generation) -> None:
    """The output ends where the grammar does: nothing else could be chosen there."""
    if generation.ignore_eos:
        raise invalid("ignore_eos", "contradicts a grammar, at whose end the answer ends")
    if generation.min_tokens:
        raise invalid("min_tokens", "contradicts a grammar, at whose end the answer ends")


def _check_messages(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise invalid("messages", "must hold at least one message")
    for number, message in enumerate(messages):
        if message.role not in CHAT_ROLES:
            raise invalid(
                f"messages[{number}].role",
                f"must be one of {', '.join(CHAT_ROLES)}, not {message.role[:32]!r}",
            )
        if message.tool_calls and message.role != "assistant":
            raise invalid(f"messages[{number}].tool_calls", "is for the role assistant only")
        if (message.tool_call_id is None) == (message.role == "tool"):
            why = "is missing" if message.role == "tool" else "is for the role tool only"
            raise invalid(f"messages[{number}].tool_call_id", why)


def _check_tools(tools: Sequence[Tool]) -> None:
    names = [tool.name for tool in tools]
    if len(set(names)) < len(names):
        raise invalid("tools", "holds two of the same name")
    for number, name in enumerate(names):
        if not 1 <= len(name) <= MAX_TOOL_NAME_CHARACTERS:
            raise invalid(
                f"tools[{number}].name", f"must have 1 to {MAX_TOOL_NAME_CHARACTERS} characters"
            )


def show_number(value: float) -> str:
    """JSON's numbers have as many digits as the client likes."""
    if isinstance(value, int):
        return str(value) if abs(value) < 2**64 else "a number of more than 64 bits"
    return f"{value:g}" if math.isfinite(value) else "a number that is not finite"
