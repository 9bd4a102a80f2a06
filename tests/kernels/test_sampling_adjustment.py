"""Penalties, biases, bans and masks, and the log probabilities that know nothing of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastgen_kernels.torch_twins.adjustment import Adjustment
from fastgen_kernels.torch_twins.sampling import Draw, sample
from fastgen_kernels.torch_twins.token_logprobs import logprobs

SIZE = 100
TOKENS = st.lists(st.integers(0, SIZE - 1), max_size=30)


def mask_of(allowed: list[int], size: int = SIZE) -> NDArray[np.int32]:
    bits = np.zeros(-(-size // 32) * 32, np.uint8)
    bits[allowed] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)


def logits_of(seed: int, size: int = SIZE) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 3, size).astype(np.float32)


def reference(logits: NDArray[np.float32], adjustment: Adjustment) -> NDArray[np.float64]:
    """Token by token, in float64."""
    result = logits.astype(np.float64)
    output = list(adjustment.output_token_ids)
    for token in range(len(result)):
        value = result[token] + adjustment.bias.get(token, 0)
        if token in output or token in adjustment.prompt_token_ids:
            penalty = adjustment.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        value -= adjustment.frequency_penalty * output.count(token)
        value -= adjustment.presence_penalty * (token in output)
        result[token] = -np.inf if token in adjustment.banned_token_ids else value
    return result


@given(
    st.integers(0, 2**32),
    st.builds(
        Adjustment,
        bias=st.dictionaries(st.integers(0, SIZE - 1), st.floats(-100, 100), max_size=5),
        repetition_penalty=st.floats(0.5, 2),
        frequency_penalty=st.floats(-2, 2),
        presence_penalty=st.floats(-2, 2),
        banned_token_ids=TOKENS,
        prompt_token_ids=TOKENS,
        output_token_ids=TOKENS,
    ),
)
@settings(max_examples=80)
def test_adjustments_against_float64(seed: int, adjustment: Adjustment) -> None:
    logits = logits_of(seed)
    kept = logits.copy()
    adjusted = adjustment.apply(logits)
    np.testing.assert_allclose(adjusted, reference(logits, adjustment), rtol=1e-5, atol=1e-5)
    assert adjusted.dtype == np.float32
    assert (logits == kept).all()


@given(
    seed=st.integers(0, 2**32),
    allowed=st.lists(st.integers(0, SIZE - 1), min_size=1, max_size=SIZE),
    banned=TOKENS,
    temperature=st.sampled_from([0.0, 1.0, 5.0]),
    draw_seed=st.integers(0, 2**64 - 1),
)
@settings(max_examples=150)
def test_only_what_the_mask_allows_is_drawn(
    seed: int, allowed: list[int], banned: list[int], temperature: float, draw_seed: int
) -> None:
    """And nothing that is banned, unless bans leave nothing: then the mask alone counts."""
    adjustment = Adjustment(mask=mask_of(allowed), banned_token_ids=banned)
    draw = Draw(temperature, top_p=0.99, seed=draw_seed, adjustment=adjustment)
    token = sample(torch.from_numpy(logits_of(seed))[None], [draw])[0]
    assert token in (set(allowed) - set(banned) or set(allowed))


def test_a_ban_of_every_token_has_no_effect() -> None:
    logits = logits_of(1)
    adjusted = Adjustment(banned_token_ids=range(-5, SIZE + 5)).apply(logits)
    assert (adjusted == logits).all()


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 100])
def test_masks_of_vocabularies_of_any_size(size: int) -> None:
    """Also of a mask shorter than the vocabulary, whose last tokens the grammar does not know."""
    logits = np.zeros(size, np.float32)
    assert (Adjustment(mask=mask_of([size - 1], size)).apply(logits)[: size - 1] == -np.inf).all()
    adjusted = Adjustment(mask=mask_of([0], 1)).apply(np.zeros(size + 32, np.float32))
    assert adjusted[0] == 0
    assert (adjusted[1:] == -np.inf).all()


def test_an_empty_mask_is_an_error() -> None:
    with pytest.raises(ValueError, match="no token"):
        sample(torch.zeros((1, SIZE)), [Draw(adjustment=Adjustment(mask=mask_of([])))])


def test_ids_that_are_no_tokens_have_no_effect() -> None:
    adjustment = Adjustment(
        {-1: 5.0, 100: 5.0, 2: 1.0}, 1.5, 0.5, 0.5, [-1, 100], None, [100], [-3]
    )
    expected = np.zeros(SIZE, np.float32)
    expected[2] = 1
    assert (adjustment.apply(np.zeros(SIZE, np.float32)) == expected).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [None, 4000])
def test_logprobs(dtype: torch.dtype, vocabulary: int | None) -> None:
    logits = (torch.randn((5, 5000), generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    tokens = [int(logits[0, :vocabulary].argmax()), 7, 3999, 0, 1234]
    wide = logits.double()[:, :vocabulary]
    expected = wide.log_softmax(-1)
    for row, told in enumerate(logprobs(logits, tokens, 6, vocabulary)):
        assert told.logprob == pytest.approx(float(expected[row, tokens[row]]), abs=1e-5)
        order = np.lexsort((np.arange(wide.shape[1]), -wide[row].numpy()))
        assert told.rank == order.tolist().index(tokens[row]) + 1
        assert [token for token, _ in told.top] == order[:6].tolist()
        values = [float(expected[row, token]) for token, _ in told.top]
        assert [value for _, value in told.top] == pytest.approx(values, abs=1e-5)


def test_logprobs_of_more_tokens_than_there_are_and_of_padding() -> None:
    told = logprobs(torch.tensor([[0.0, 1.0, 9.0]]), [2], 50, vocabulary=2)[0]
    assert (told.logprob, told.rank) == (-np.inf, 3)
    assert [token for token, _ in told.top] == [1, 0]
    assert logprobs(torch.zeros((1, 3)), [1], 0)[0].top == ()
