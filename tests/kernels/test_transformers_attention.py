"""`attn_implementation="fastgen"`: the tokens that transformers' own attention generates."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from greedy_reference import PROMPTS, reference_model, reference_tokenizer
from transformers import (
    AutoModelForCausalLM,
    ContinuousBatchingConfig,
    Gemma2Config,
    GenerationConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3Config,
)

from fastgen_kernels.dispatch import Device, kernels_for
from fastgen_kernels.dropins import transformers as dropin
from fastgen_kernels.dropins.transformers import attention_forward, register
from fastgen_kernels.dropins.unsupported import UnsupportedAttentionError
from fastgen_kernels.heads import Heads
from fastgen_kernels.ragged import RaggedBatch
from fastgen_kernels.triton_kernels.attention_plan import make_plan
from fastgen_kernels.triton_kernels.tiling import Gpu

ANSWER = 16
WINDOW = 9
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
MODELS: dict[str, PreTrainedConfig] = {
    "grouped heads": LlamaConfig(**SHAPE),
    "one key head": Qwen3Config(**SHAPE | {"num_key_value_heads": 1}, head_dim=24),
    "sliding window": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "soft cap, some layers slide": Gemma2Config(
        **SHAPE,
        head_dim=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        attn_logit_softcapping=1.5,
        query_pre_attn_scalar=1,
        tie_word_embeddings=False,
    ),
    "as many key heads": GPTNeoXConfig.from_dict(SHAPE),
    "learned positions": OPTConfig(**SHAPE, ffn_dim=48, init_std=0.3, word_embed_proj_dim=64),
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    register()
    register()


def made(name: str) -> PreTrainedModel:
    torch.manual_seed(1)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(MODELS[name])
    return model.eval()


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask [3, 20], with 7, 1 and no tokens of padding on the left."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(3, 97, (3, 20), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, :7] = mask[1, :1] = 0
    return ids, mask


def generated(
    model: PreTrainedModel, implementation: str, num_tokens: int = ANSWER, **options: Any
) -> Any:
    model.set_attn_implementation(implementation)
    ids, mask = batch()
    return model.generate(
        ids,
        attention_mask=mask,
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
        **options,
    )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_padded_batches_get_the_tokens_of_eager(name: str, cache: str) -> None:
    model = made(name)
    expected = generated(model, "eager", cache_implementation=cache)
    result = generated(model, "fastgen", cache_implementation=cache)
    assert torch.equal(result.sequences, expected.sequences)
    for ours, theirs in zip(result.logits, expected.logits, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-3)


def test_soft_caps_and_windows_are_not_left_out() -> None:
    """What the comparison with eager rests on: without them there are other logits."""
    model = made("soft cap, some layers slide")
    ids, _ = batch()
    model.set_attn_implementation("fastgen")
    with torch.inference_mode():
        logits = model(ids).logits
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = None
        uncapped = model(ids).logits
        full = {"full_attention": None, "sliding_attention": None}
        everything = model(ids, attention_mask=full).logits
    assert (logits - uncapped).abs().max() > 0.1
    assert (everything - uncapped).abs().max() > 0.1


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_without_a_cache(side: str) -> None:
    """Padding on the right lets queries see fewer keys than they have before them."""
    model = made("sliding window")
    ids, mask = batch()
    mask = mask if side == "left" else mask.flip(1)
    logits = {}
    for implementation in ("eager", "fastgen"):
        model.set_attn_implementation(implementation)
        with torch.inference_mode():
            logits[implementation] = model(ids, attention_mask=mask, use_cache=False).logits
    seen = mask.bool()
    torch.testing.assert_close(logits["fastgen"][seen], logits["eager"][seen], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", ["grouped heads", "sliding window", "soft cap, some layers slide"])
def test_continuous_batching_gets_the_tokens_of_a_padded_batch(name: str) -> None:
    """Prompts in chunks, beside requests that decode. transformers' own leaves out soft caps."""
    model = made(name)
    expected = generated(model, "eager").sequences[:, 20:].tolist()
    model.set_attn_implementation("fastgen")
    ids, mask = batch()
    prompts = [row[seen.bool()].tolist() for row, seen in zip(ids, mask, strict=True)]
    outputs = model.generate_batch(
        inputs=prompts,
        generation_config=GenerationConfig(
            max_new_tokens=ANSWER, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            num_blocks=16,
            max_batch_tokens=24,
            allow_block_sharing=False,
            use_cuda_graph=False,
        ),
        progress_bar=False,
    )
    answers = {tuple(output.prompt_ids): output.generated_tokens for output in outputs.values()}
    assert [answers[tuple(prompt)] for prompt in prompts] == expected
    assert model.config._attn_implementation == "fastgen"


def test_other_implementations_are_still_refused_by_continuous_batching() -> None:
    model = made("grouped heads")
    model.set_attn_implementation("flex_attention")
    with pytest.raises(ValueError, match="not supported for continuous batching"):
        model.init_continuous_batching()


def test_smollm2_in_a_padded_batch(smollm2_path: Path) -> None:
    model = reference_model(smollm2_path)
    tokenizer = reference_tokenizer(smollm2_path)
    prompts = [tokenizer.encode(prompt) for prompt in PROMPTS[:3]]
    longest = max(map(len, prompts))
    ids = torch.tensor([[2] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    before = model.config._attn_implementation
    answers = {}
    try:
        for implementation in ("sdpa", "fastgen"):
            model.set_attn_implementation(implementation)
            layer = model.model.layers[0].self_attn
            assert layer.config._attn_implementation == implementation
            answers[implementation] = model.generate(
                ids, attention_mask=mask, max_new_tokens=ANSWER, do_sample=False, pad_token_id=2
            )
    finally:
        model.set_attn_implementation(before)
    assert torch.equal(answers["fastgen"], answers["sdpa"])


def test_one_plan_serves_the_layers_of_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    make: Callable[..., Any] = dropin._make_plan

    def make_and_keep(*given: Any) -> Any:
        plans.append(make(*given))
        return plans[-1]

    monkeypatch.setattr(dropin, "_make_plan", make_and_keep)
    for name, kinds in (("grouped heads", 1), ("soft cap, some layers slide", 2)):
        model = made(name)
        plans.clear()
        generated(model, "fastgen")
        assert len(plans) == ANSWER * kinds


def test_the_kernels_of_gpus_get_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreted: what blocks, tables and plans they are handed."""

    def plan_attention(
        batch: RaggedBatch, heads: Heads, dtype: Any, device: torch.device, window: Any = None
    ) -> Any:
        return make_plan(batch, heads, device, Gpu(90, 2), window)

    kernels = replace(kernels_for(Device("cuda", (9, 0))), plan_attention=plan_attention)
    model = made("sliding window")
    expected = generated(model, "eager", 3)
    monkeypatch.setattr(dropin, "kernels_on", lambda _: kernels)
    assert torch.equal(generated(model, "fastgen", 3).sequences, expected.sequences)


MODULE: Any = SimpleNamespace(is_causal=True, layer_idx=0)


def parts(value_size: int = 8, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [
        torch.ones(1, 2, 4, 8),
        torch.ones(1, 2, 4, 8, dtype=dtype),
        torch.ones(1, 2, 4, value_size, dtype=dtype),
    ]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "not causal"),
        ({"s_aux": torch.ones(2)}, "sinks"),
        ({"position_bias": torch.ones(1)}, "position biases"),
        ({"output_attentions": True}, "output_attentions"),
        ({"block_table": torch.ones(1)}, "block tables"),
    ],
)
def test_what_the_kernels_do_not_compute_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedAttentionError, match=named) as refusal:
        attention_forward(MODULE, *parts(), None, **options)
    assert "use attn_implementation=" in str(refusal.value)


def test_a_module_with_sinks_is_refused() -> None:
    module: Any = SimpleNamespace(is_causal=True, layer_idx=0, sinks=torch.ones(2))
    with pytest.raises(UnsupportedAttentionError, match="sinks"):
        attention_forward(module, *parts(), None)


@pytest.mark.parametrize(
    ("given", "named"),
    [(parts(value_size=4), "sizes 8, 8 and 4"), (parts(dtype=torch.float64), "torch.float64")],
)
def test_sizes_and_dtypes_that_differ_are_refused(given: list[torch.Tensor], named: str) -> None:
    with pytest.raises(UnsupportedAttentionError, match=named):
        attention_forward(MODULE, *given, None)


def test_gradients_are_refused() -> None:
    query, key, value = parts()
    query.requires_grad_()
    with pytest.raises(UnsupportedAttentionError, match="inference_mode"):
        attention_forward(MODULE, query, key, value, None)
    with torch.no_grad():
        attention_forward(MODULE, query, key, value, None)
