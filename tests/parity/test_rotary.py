"""Rotary frequencies and attention factors against those of transformers."""

from itertools import product
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from fastgen_runtime.device.rotary import attention_factor, frequencies
from fastgen_runtime.models.model_config import RopeKind, RopeScaling

MAX_POSITIONS = 4096


def assert_as_transformers(
    head_dim: int,
    theta: float,
    parameters: dict[str, Any],
    scaling: RopeScaling,
    *,
    length: int = MAX_POSITIONS,
    share: float = 1.0,
) -> None:
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={
            "rope_type": scaling.kind.value,
            "rope_theta": theta,
            "partial_rotary_factor": share,
            **parameters,
        },
    )
    theirs, factor = ROPE_INIT_FUNCTIONS[scaling.kind.value](config, seq_len=length)
    ours = frequencies(int(head_dim * share), theta, scaling, length)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, atol=0, rtol=5e-7)
    assert attention_factor(scaling) == pytest.approx(factor, rel=1e-12)


SHAPES = [(64, 10_000.0, 1.0), (96, 500_000.0, 0.75), (80, 1e6, 0.4), (128, 150_000.0, 1.0)]
"""Head size, base, and share of a head that is rotated."""


@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
def test_default_and_per_frequency_factors(head_dim: int, theta: float, share: float) -> None:
    dim = int(head_dim * share)
    plain = frequencies(dim, theta, RopeScaling(), 100)
    expected = torch.tensor([theta ** (-2 * pair / dim) for pair in range(dim // 2)])
    torch.testing.assert_close(plain, expected, atol=0, rtol=1e-5)
    factors = tuple(1.0 + pair / 7 for pair in range(dim // 2))
    stored = RopeScaling(RopeKind.FACTORS, factors=factors)
    assert torch.equal(frequencies(dim, theta, stored, 100), plain / torch.tensor(factors))
    assert attention_factor(RopeScaling()) == attention_factor(stored) == 1


@pytest.mark.parametrize("factor", [1.0, 2.5, 8.0])
@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
def test_linear(head_dim: int, theta: float, share: float, factor: float) -> None:
    scaling = RopeScaling(RopeKind.LINEAR, factor)
    assert_as_transformers(head_dim, theta, {"factor": factor}, scaling, share=share)


@pytest.mark.parametrize("length", [1, 4095, 4096, 4097, 9000, 32768])
@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
def test_dynamic(head_dim: int, theta: float, share: float, length: int) -> None:
    for factor in (1.0, 2.0, 8.5):
        scaling = RopeScaling(RopeKind.DYNAMIC, factor, original_max_positions=MAX_POSITIONS)
        assert_as_transformers(
            head_dim, theta, {"factor": factor}, scaling, length=length, share=share
        )


@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
@pytest.mark.parametrize("original", [256, 2048, 8192])
def test_llama3(head_dim: int, theta: float, share: float, original: int) -> None:
    for factor, low, high in product((2.0, 8.0, 32.0), (1.0, 2.0), (4.0, 6.0)):
        parameters = {
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }
        scaling = RopeScaling(RopeKind.LLAMA3, factor, low, high, original)
        assert_as_transformers(head_dim, theta, parameters, scaling, share=share)


YARN_SCALES: list[dict[str, float]] = [
    {},
    {"attention_factor": 1.3},
    {"mscale": 0.7},
    {"mscale_all_dim": 0.7},
    {"mscale": 1.0, "mscale_all_dim": 0.707},
    {"mscale": 0.5, "mscale_all_dim": 1.0, "attention_factor": 0.9},
]


@pytest.mark.parametrize("scales", YARN_SCALES, ids=str)
@pytest.mark.parametrize("truncate", [True, False])
@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
def test_yarn(
    head_dim: int, theta: float, share: float, truncate: bool, scales: dict[str, float]
) -> None:
    for factor, original, (fast, slow) in product(
        (1.0, 4.0, 40.0), (128, 4096, 32768), ((32.0, 1.0), (16.0, 2.0), (1.0, 1.0))
    ):
        parameters = {
            "factor": factor,
            "original_max_position_embeddings": original,
            "beta_fast": fast,
            "beta_slow": slow,
            "truncate": truncate,
            **scales,
        }
        scaling = RopeScaling(
            RopeKind.YARN,
            factor,
            original_max_positions=original,
            beta_fast=fast,
            beta_slow=slow,
            truncate=truncate,
            attention_factor=scales.get("attention_factor"),
            mscale=scales.get("mscale", 0.0),
            mscale_all_dim=scales.get("mscale_all_dim", 0.0),
        )
        assert_as_transformers(head_dim, theta, parameters, scaling, share=share)


@pytest.mark.parametrize("length", [1, 1024, 1025, 4096])
@pytest.mark.parametrize("explicit", [None, 1.19])
@pytest.mark.parametrize(("head_dim", "theta", "share"), SHAPES)
def test_longrope(
    head_dim: int, theta: float, share: float, explicit: float | None, length: int
) -> None:
    """Short factors up to the original length, long ones beyond it."""
    pairs = int(head_dim * share) // 2
    short = tuple(1.0 + pair / 100 for pair in range(pairs))
    long = tuple(1.0 + pair for pair in range(pairs))
    for original in (1024, 4096):
        parameters = {
            "short_factor": list(short),
            "long_factor": list(long),
            "original_max_position_embeddings": original,
            "attention_factor": explicit,
        }
        scaling = RopeScaling(
            RopeKind.LONGROPE,
            MAX_POSITIONS / original,
            original_max_positions=original,
            factors=short,
            long_factors=long,
            attention_factor=explicit,
        )
        assert_as_transformers(head_dim, theta, parameters, scaling, length=length, share=share)


def test_longrope_as_phi3_stores_it() -> None:
    """The original length beside the scaling: factor 32 follows from both lengths."""
    short, long = [1.0 + pair / 50 for pair in range(48)], [1.0 + pair / 2 for pair in range(48)]
    stored: dict[str, Any] = {
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long},
    }
    config = Phi3Config(**stored)
    scaling = RopeScaling(
        RopeKind.LONGROPE,
        32.0,
        original_max_positions=4096,
        factors=tuple(short),
        long_factors=tuple(long),
    )
    for length in (4096, 4097):
        theirs, factor = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
        ours = frequencies(96, config.rope_parameters["rope_theta"], scaling, length)
        torch.testing.assert_close(ours, theirs, atol=0, rtol=5e-7)
        assert attention_factor(scaling) == pytest.approx(factor, rel=1e-12)
