"""The table of architectures: how config.json is read, and what the tensors are called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from fastgen_runtime.models import hf_config
from fastgen_runtime.models.config_values import mapping
from fastgen_runtime.models.model_config import Block, ModelConfig, invalid, unsupported
from fastgen_runtime.models.tensor_names import (
    FALCON,
    GPT_NEOX,
    LLAMA,
    MIXTRAL,
    OPT,
    PHI3,
    QWEN3,
    QWEN3_MOE,
    TensorNames,
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """read: what the model's config.json says; raises ModelError. names: of its tensors."""

    read: Callable[[Mapping[str, Any]], ModelConfig]
    names: TensorNames


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """From a Hugging Face config.json; raises ModelError, for other architectures in one line."""
    architectures = raw.get("architectures") or [raw.get("model_type", "unnamed")]
    if not isinstance(architectures, list):
        raise invalid(f"the model's architectures is {architectures!r}: a list is needed")
    name = str(architectures[0])
    if name not in ARCHITECTURES:
        raise unsupported(
            f"the architecture {name} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    if quantization := mapping(raw, "quantization_config"):
        method = quantization.get("quant_method", "an unnamed method")
        raise unsupported(
            f"checkpoints quantised with {method} are not supported in safetensors form: "
            "use an unquantised checkpoint or a GGUF file"
        )
    return replace(ARCHITECTURES[name].read(raw), architecture=name)


def tensor_names(config: ModelConfig) -> TensorNames:
    """What the tensors of the model are called."""
    names = ARCHITECTURES[config.architecture].names
    if names is FALCON and config.block is Block.PARALLEL_NORMS:
        return replace(names, attention_norm="ln_attn", feed_forward_norm="ln_mlp")
    return names


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "LlamaForCausalLM": Architecture(hf_config.llama, LLAMA),
    "MistralForCausalLM": Architecture(hf_config.mistral, LLAMA),
    "Qwen2ForCausalLM": Architecture(hf_config.qwen2, LLAMA),
    "Qwen3ForCausalLM": Architecture(hf_config.qwen3, QWEN3),
    "Phi3ForCausalLM": Architecture(hf_config.phi3, PHI3),
    "MixtralForCausalLM": Architecture(hf_config.mixtral, MIXTRAL),
    "Qwen3MoeForCausalLM": Architecture(hf_config.qwen3_moe, QWEN3_MOE),
    "OPTForCausalLM": Architecture(hf_config.opt, OPT),
    "FalconForCausalLM": Architecture(hf_config.falcon, FALCON),
    "GPTNeoXForCausalLM": Architecture(hf_config.gpt_neox, GPT_NEOX),
}
"""By the first of `architectures` in config.json."""
