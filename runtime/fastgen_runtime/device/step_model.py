"""What a whole step on a CPU is told of a model, or why it cannot compute it."""

from typing import Final

from fastgen_api.spec import DType
from fastgen_kernels.cpu_step.description import (
    Arrangement,
    Element,
    NormKind,
    StepExperts,
    StepModel,
)
from fastgen_kernels.cpu_step.isa import Isa, isa_of
from fastgen_kernels.torch_twins.quantized import WeightFormat
from fastgen_runtime.models.capacity import WEIGHT_GROUP
from fastgen_runtime.models.model_config import Experts, ModelConfig

_ELEMENTS: Final = {DType.FLOAT32: Element.FP32, DType.BFLOAT16: Element.BF16}


def step_dtype(wanted: DType, stored: str | None, isa: Isa) -> DType:
    """What the step keeps weights and cache in; it computes in float32 wherever bfloat16 is slow.

    Auto is BFloat16 where the CPU multiplies it natively, and where the checkpoint stores it, so
    that nothing of the weights is lost; else Float32. stored: the checkpoint's own word.
    """
    if wanted is not DType.AUTO:
        return wanted
    is_exact = stored == "bfloat16"
    return DType.BFLOAT16 if is_exact or isa is Isa.AVX512_BF16 else DType.FLOAT32


def step_model(
    config: ModelConfig,
    wanted: DType,
    block_size: int,
    ranks: int,
    cpu_flags: frozenset[str],
    form: WeightFormat | None = None,
) -> tuple[StepModel, Isa, DType] | str:
    """The description that the step is compiled for, or in words why there is none.

    form: of the weights of layers and output layer; None: in the dtype.
    """
    isa = isa_of(cpu_flags)
    if isa is None:
        return "the CPU has no AVX2"
    if ranks > 1:
        return "the model is split among ranks"
    if config.embedding_size not in (None, config.hidden_size):
        return "the model's embedding has another width than its layers"
    if form not in (None, WeightFormat.INT8):
        return f"it does not compute with weights in {form}"
    dtype = step_dtype(wanted, config.dtype, isa)
    element = _ELEMENTS.get(dtype)
    if element is None:
        return f"it does not compute in {dtype}"
    model = StepModel(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        # Files of float32 tell 1e-5 as 9.999999747378752e-06: one library for both.
        norm_eps=float(f"{config.norm_eps:.7g}"),
        rotary_dim=config.rotated,
        block_size=block_size,
        weights=element,
        cache=element,
        int8_group=WEIGHT_GROUP if form is WeightFormat.INT8 else None,
        windows=tuple(map(config.window, range(config.num_layers))),
        norm=NormKind(config.norm.value),
        arrangement=Arrangement(config.block.value),
        activation=config.activation,
        gated=config.gated,
        query_key_norm=config.query_key_norm,
        final_norm=config.final_norm,
        experts=None if config.experts is None else _experts(config.experts),
    )
    return model.unsupported(isa) or (model, isa, dtype)


def _experts(experts: Experts) -> StepExperts:
    return StepExperts(
        experts.count, experts.per_token, experts.intermediate_size, experts.renormalise
    )
