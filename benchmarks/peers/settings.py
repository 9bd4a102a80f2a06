"""The configurations that are compared, as in the table that the design rests on."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

from peers.workloads import Name

OURS: Final = "fastgen"
OPENVINO: Final = "openvino"
VLLM: Final = "vllm"
LLAMACPP: Final = "llamacpp_server"
LLAMACPP_BATCHED: Final = "llamacpp_batched"

CHUNKS: Final = (64, 128, 256, 512)
"""Tokens of a step that the peers are swept over where a long prompt meets streams."""
TPOT_MS: Final = (15, 20, 30, 40, 60, 80, 120)
"""Targets that this engine is swept over there."""
_USUAL: Final = (Name.DECODE, Name.MIXTURE, Name.SINGLE)
_ALL: Final = (*_USUAL, Name.STALL)


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way to run an engine. engine: its adapter's name. form: of the weights.

    arguments: the adapter's own settings. dtype: `auto`, what this engine chooses by default;
    `bfloat16` or `float32`; llama.cpp's is its form. is_other_precision: int8 and the like, which
    is compared with this engine only.
    """

    engine: str
    label: str
    workloads: tuple[Name, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    form: str = "hf"
    dtype: str = "bfloat16"
    is_other_precision: bool = False

    @property
    def name(self) -> str:
        """What tables and `--only` call it."""
        return f"{self.engine} {self.label}"


def ours() -> list[Configuration]:
    """SplitFuse's constant, whole prompts, and Auto by target; and in float32 throughout."""
    fixed = [
        Configuration(OURS, "fixed512", _ALL, {"budget_tokens": 512}, dtype="auto"),
        Configuration(OURS, "fixed256", (Name.STALL,), {"budget_tokens": 256}, dtype="auto"),
        Configuration(OURS, "whole", (Name.STALL,), {"budget_tokens": 8192}, dtype="auto"),
        Configuration(
            OURS, "f32", _USUAL, {"budget_tokens": 512}, dtype="float32", is_other_precision=True
        ),
    ]
    auto = [
        Configuration(
            OURS, f"auto{target}ms", (Name.STALL,),
            {"budget_mode": "Auto", "budget_tokens": 2048, "tpot_ms": target}, dtype="auto",
        )
        for target in TPOT_MS
    ]  # fmt: skip
    return fixed + auto


def openvino(dtype: str) -> list[Configuration]:
    """Whole prompts and chunks; the cache in its own type and, chunked, in the computing one."""

    def one(label: str, workloads: tuple[Name, ...], **arguments: Any) -> Configuration:
        return Configuration(OPENVINO, label, workloads, arguments, "openvino", dtype)

    wide = {"bfloat16": "bf16", "float32": "f32"}[dtype]
    return [
        one("nosplit", _ALL),
        *(one(f"split{chunk}", _ALL if chunk >= 256 else (Name.STALL,), chunk=chunk)
          for chunk in CHUNKS),
        *(one(f"split{chunk}-kv{wide}", _ALL, chunk=chunk, kv_precision=wide)
          for chunk in (256, 512)),
    ]  # fmt: skip


def vllm(dtype: str) -> list[Configuration]:
    """Compiled, whole prompts and chunks; and not compiled."""
    suffix = "" if dtype == "bfloat16" else "-f32"
    return [
        Configuration(VLLM, f"nochunk{suffix}", _ALL, {}, dtype=dtype),
        Configuration(VLLM, f"eager{suffix}", _USUAL, {"eager": True}, dtype=dtype),
        *(
            Configuration(
                VLLM, f"chunk{chunk}{suffix}", _ALL if chunk >= 256 else (Name.STALL,),
                {"chunk": chunk}, dtype=dtype,
            )
            for chunk in CHUNKS
        ),
    ]  # fmt: skip


def llamacpp() -> list[Configuration]:
    """The server with batches of 512 and 2,048 tokens, and the bench without a server.

    A server's slots share its cache evenly, so the long prompt needs fewer of them.
    """

    def one(
        label: str, engine: str, workloads: tuple[Name, ...], **arguments: int
    ) -> Configuration:
        form = label.partition("-")[0].upper()
        return Configuration(engine, label, workloads, dict(arguments), form, form)

    return [
        *(one(f"bf16-b{batch}", LLAMACPP, _USUAL, batch=batch, slots=16) for batch in (512, 2048)),
        one("f16-b2048", LLAMACPP, _USUAL, batch=2048, slots=16),
        *(one(f"bf16-b{batch}-9slots", LLAMACPP, (Name.STALL,), batch=batch,
              micro_batch=min(batch, 512), slots=9) for batch in (256, 512, 2048)),
        *(one(label, LLAMACPP_BATCHED, (Name.DECODE, Name.SINGLE), batch=2048)
          for label in ("bf16", "f16")),
    ]  # fmt: skip


def configurations(has_bfloat16: bool) -> list[Configuration]:
    """All of them; where the CPU has no bfloat16 instructions OpenVINO computes in float32, and
    vLLM is tried in both types."""
    dtype = "bfloat16" if has_bfloat16 else "float32"
    narrow = (each for each in vllm("bfloat16") if each.label in ("nochunk", "chunk256"))
    also = [] if has_bfloat16 else [replace(each, workloads=_USUAL) for each in narrow]
    return ours() + openvino(dtype) + vllm(dtype) + also + llamacpp()
