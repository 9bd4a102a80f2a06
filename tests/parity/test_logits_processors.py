"""Sampling against transformers' logits processors, which define its order."""

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw, distribution


@pytest.mark.parametrize("seed", range(20))
def test_supports_and_probabilities_are_those_of_transformers(seed: int) -> None:
    dice = np.random.default_rng(seed)
    logits = dice.normal(0, 3, 500).astype(np.float32)
    draw = Draw(
        temperature=float(dice.uniform(0.3, 2)),
        top_k=int(dice.integers(1, 200)),
        top_p=float(dice.uniform(0.3, 0.99)),
        min_p=float(dice.choice([0.001, 0.02, 0.2])),
    )
    warpers = LogitsProcessorList(
        [
            TemperatureLogitsWarper(draw.temperature),
            TopKLogitsWarper(draw.top_k),
            TopPLogitsWarper(draw.top_p),
            MinPLogitsWarper(draw.min_p),
        ]
    )
    theirs = warpers(torch.zeros((1, 0)).long(), torch.from_numpy(logits)[None]).softmax(-1)[0]
    tokens, weights = distribution(logits, draw)
    assert tokens is not None
    assert tokens.tolist() == theirs.nonzero()[:, 0].tolist()
    ours = weights / weights.sum(dtype=np.float64)
    np.testing.assert_allclose(ours, theirs[tokens].numpy(), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_bias_and_repetition_penalty_are_those_of_transformers(seed: int) -> None:
    """Their order too: a biased logit is penalised as it then is."""
    logits = np.random.default_rng(seed).normal(0, 3, 100).astype(np.float32)
    prompt, output, bias = [3, 5, 5, 70], [5, 9, 12], {5: 4.0, 9: -6.0, 50: 1.5}
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[token], value] for token, value in bias.items()]),
            RepetitionPenaltyLogitsProcessor(1.3),
        ]
    )
    theirs = processors(torch.tensor([prompt + output]), torch.from_numpy(logits.copy())[None])[0]
    ours = Adjustment(bias, 1.3, prompt_token_ids=prompt, output_token_ids=output).apply(logits)
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
