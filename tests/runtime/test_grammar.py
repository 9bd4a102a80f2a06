"""Structured output with the real model: what comes out is what the grammar says."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from fastgen_api.spec import DType
from fastgen_runtime.device.runner import Runner, RunnerConfig
from fastgen_runtime.engine.engine import Engine
from fastgen_runtime.engine.grammar import GrammarCompiler
from fastgen_runtime.engine.plan import Limits
from fastgen_runtime.engine.request import FinishReason, Grammar, GrammarKind, NewRequest
from fastgen_runtime.engine.step import Sampling
from fastgen_runtime.models.checkpoint import Checkpoint, open_checkpoint

MAX_TOKENS = 100
MAX_FREE_TOKENS = 20
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
BASKET = {
    "type": "array",
    "minItems": 2,
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "fruit": {"enum": ["apple", "pear", "plum"]},
            "ripe": {"type": "boolean"},
        },
        "required": ["fruit", "ripe"],
        "additionalProperties": False,
    },
}
ADDRESS = r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}"
GRAMMARS = {
    "person": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
    "basket": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(BASKET)),
    "address": Grammar(GrammarKind.REGEX, ADDRESS),
}
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "drawn": Sampling(seed=2, top_p=0.9, repetition_penalty=1.1),
}


@pytest.fixture(scope="module")
def checkpoint(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def compiler(checkpoint: Checkpoint) -> GrammarCompiler:
    return GrammarCompiler(checkpoint.tokenizer, checkpoint.eos_token_ids)


@pytest.fixture(scope="module")
def runner(checkpoint: Checkpoint) -> Runner:
    config = RunnerConfig(dtype=DType.FLOAT32, block_size=8, num_blocks=14, threads=1)
    return Runner.load(checkpoint, config)


def generate(
    runner: Runner,
    checkpoint: Checkpoint,
    compiler: GrammarCompiler,
    names: Sequence[str],
    max_running: int,
) -> tuple[dict[str, str], int]:
    """The text of each kind and sampling, and how often one was preempted.

    Requests of one kind have one prompt, whose blocks they share, as the choices of one request.
    """
    limits = Limits(max_running, max_running, 100, 140, expected_output_tokens=1)
    engine = Engine(runner, limits, checkpoint.eos_token_ids)
    for name in names:
        kind, _, sampling = name.partition(" ")
        prompt = checkpoint.tokenizer.encode(f"An example of a {kind} in our data base: ").ids
        grammar = GRAMMARS.get(kind)
        constraint = compiler.compile(grammar, pytest.fail) if grammar else None
        most = MAX_TOKENS if grammar else MAX_FREE_TOKENS
        new = NewRequest(name, prompt, most, SAMPLINGS[sampling], group=kind)
        assert engine.add(new, constraint) is None
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for token in engine.step().committed.tokens:
            tokens.setdefault(token.request_id, []).append(token.token_id)
            if token.finish is not None and not token.request_id.startswith("free"):
                assert token.finish is FinishReason.STOP
                assert token.token_id in checkpoint.eos_token_ids
        engine.check()
    decode = checkpoint.tokenizer.decode
    return {name: decode(ids) for name, ids in tokens.items()}, engine.load().num_preemptions


def test_outputs_match_their_grammars_alone_and_preempted(
    runner: Runner, checkpoint: Checkpoint, compiler: GrammarCompiler
) -> None:
    names = [f"{kind} {name}" for kind in (*GRAMMARS, "free") for name in SAMPLINGS]
    texts, preemptions = generate(runner, checkpoint, compiler, names, max_running=12)
    assert preemptions > 0
    for name in SAMPLINGS:
        jsonschema.validate(json.loads(texts[f"person {name}"]), PERSON)
        jsonschema.validate(json.loads(texts[f"basket {name}"]), BASKET)
        assert re.fullmatch(ADDRESS, texts[f"address {name}"])
    assert texts["address greedy"] != texts["address drawn"]
    names = ["address drawn", "basket drawn"]
    alone, preemptions = generate(runner, checkpoint, compiler, names, max_running=1)
    assert preemptions == 0
    assert alone == {name: texts[name] for name in names}
