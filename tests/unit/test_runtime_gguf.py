"""Checkpoints that are GGUF files, whole and damaged."""

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import TOKENS, failure, read_all, write_gguf
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fastgen_api.names import StartupFailure
from fastgen_runtime.models.checkpoint import open_checkpoint
from fastgen_runtime.models.model_config import RopeKind, RopeScaling
from fastgen_runtime.startup_error import ModelError


def test_gguf_configuration(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    config = checkpoint.config
    assert (config.num_layers, config.hidden_size, config.intermediate_size) == (1, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert (config.vocab_size, config.max_positions, config.rope_theta) == (8, 128, 10000.0)
    assert config.rope_scaling == RopeScaling()
    assert config.tied_embeddings
    assert checkpoint.eos_token_ids == {1}
    assert checkpoint.special_tokens == {"bos_token": TOKENS[0], "eos_token": TOKENS[1]}
    assert checkpoint.chat_template is None


def test_gguf_tensors(tmp_path: Path) -> None:
    query = write_gguf(tmp_path / "m.gguf")
    tensors = open_checkpoint(tmp_path / "m.gguf").tensors()
    assert set(tensors) == {
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    }
    assert np.array_equal(tensors["model.layers.0.self_attn.q_proj.weight"].read(), query)
    quantized = tensors["model.layers.0.mlp.down_proj.weight"].read()
    np.testing.assert_allclose(quantized, query, atol=0.02)


def test_gguf_rope_factors(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, 8, dtype=np.float32)
    write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.config.rope_scaling.kind is RopeKind.FACTORS
    assert checkpoint.config.rope_scaling.factors == tuple(factors.tolist())
    assert "rope_freqs.weight" not in checkpoint.tensors()


def test_gguf_tokenizer(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    tokenizer = open_checkpoint(tmp_path / "m.gguf").tokenizer
    ids = tokenizer.encode("ab 11<think><|im_end|>").ids
    assert ids == [6, 5, 7, 7, 2, 1]
    assert tokenizer.decode(ids) == "ab 11<think>"


def test_gguf_that_wants_a_first_token(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", add_bos=True)
    tokenizer = open_checkpoint(tmp_path / "m.gguf").tokenizer
    assert tokenizer.encode("a").ids == [0, 3]
    assert tokenizer.encode("a", add_special_tokens=False).ids == [3]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "mamba"}, "architecture mamba is not supported; supported: llama"),
        (
            {"split": "tekken"},
            "tekken .* supported: gpt2 with gpt-2, llama-bpe, qwen2, smollm",
        ),
        ({"tensors": {"blk.0.ssm_a": np.ones(4, np.float32)}}, "ssm_a belongs to no Llama"),
    ],
)
def test_gguf_that_is_not_supported(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    write_gguf(tmp_path / "m.gguf", **changes)
    error = failure(tmp_path / "m.gguf")
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert re.search(words, str(error))


def test_every_truncation_is_told(tmp_path: Path) -> None:
    """At each length, header or data: ModelInvalid, nothing else."""
    write_gguf(tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    for length in [*range(0, 1200, 7), *range(1200, len(whole), 997), len(whole) - 1]:
        (tmp_path / "cut.gguf").write_bytes(whole[:length])
        assert failure(tmp_path / "cut.gguf").reason is StartupFailure.MODEL_INVALID, length


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_never_crash(tmp_path: Path, data: st.DataObject) -> None:
    """A damaged header is a model error or reads as something else; never another exception."""
    path = tmp_path / "m.gguf"
    if not path.exists():
        write_gguf(path)
    damaged = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, 1300))] = data.draw(st.integers(0, 255))
    (tmp_path / "bad.gguf").write_bytes(damaged)
    with contextlib.suppress(ModelError):
        read_all(tmp_path / "bad.gguf")


def test_something_else(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"\x80\x02pickle")
    error = failure(tmp_path / "m.bin")
    assert error.reason is StartupFailure.MODEL_UNSUPPORTED
    assert "neither a GGUF file nor" in str(error)
