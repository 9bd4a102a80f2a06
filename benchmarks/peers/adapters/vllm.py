"""vLLM for CPUs, its engine in this process."""

import os
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from peers.protocol import Answer, Answerer, Request, Settings, run_stepped, serve


class Vllm:
    """An engine; names are made unique, since it remembers those of earlier lists."""

    num_lists = 0

    def __init__(self, engine: Any, parameters: Any) -> None:
        Vllm.num_lists += 1
        self._engine = engine
        self._parameters = parameters

    def add(self, number: int, request: Request) -> None:
        self._engine.add_request(
            f"{Vllm.num_lists}-{number}",
            {"prompt_token_ids": request.prompt},
            self._parameters(request.output),
        )

    def step(self) -> Iterable[tuple[int, int]]:
        for output in self._engine.step():
            for token in output.outputs[0].token_ids:
                yield int(output.request_id.split("-")[1]), token


def load(settings: Settings) -> tuple[Answerer, dict[str, Any]]:
    """Own settings: chunk (tokens of a step; none: whole prompts), eager (nothing compiled)."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(settings["kv_bytes"] >> 30)
    os.environ["VLLM_NO_USAGE_STATS"] = os.environ["HF_HUB_OFFLINE"] = "1"
    vllm = import_module("vllm")
    sampling = import_module("vllm.sampling_params")
    arguments = vllm.EngineArgs(
        model=settings["model"],
        dtype=settings["dtype"],
        max_model_len=8192,
        max_num_seqs=32,
        max_num_batched_tokens=settings.get("chunk") or 16_384,
        enable_chunked_prefill=bool(settings.get("chunk")),
        enable_prefix_caching=False,
        enforce_eager=bool(settings.get("eager")),
    )
    engine = vllm.LLMEngine.from_engine_args(arguments)

    def parameters(output: int) -> Any:
        return sampling.SamplingParams(
            temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False,
            output_kind=sampling.RequestOutputKind.DELTA,
        )  # fmt: skip

    def answer(requests: list[Request]) -> list[Answer]:
        return run_stepped(Vllm(engine, parameters), requests)

    return answer, {
        "version": version("vllm-cpu"),
        "cache": f"{os.environ['VLLM_CPU_KVCACHE_SPACE']} GiB",
    }


if __name__ == "__main__":
    serve(load)
