"""OpenVINO GenAI's ContinuousBatchingPipeline: paged cache and dynamic SplitFuse, in process."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version
from typing import Any

from peers.protocol import Answer, Answerer, Request, Settings, run_stepped, serve


class OpenVino:
    """A pipeline and the handles of its open requests."""

    def __init__(self, pipeline: Any, genai: Any, tensor: Any) -> None:
        self._pipeline = pipeline
        self._genai = genai
        self._tensor = tensor
        self._handles: dict[int, Any] = {}

    def add(self, number: int, request: Request) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens = request.output
        config.ignore_eos = True
        config.do_sample = False
        self._handles[number] = self._pipeline.add_request(
            number, self._tensor([request.prompt]), config
        )

    def step(self) -> Iterable[tuple[int, int]]:
        self._pipeline.step()
        for number, handle in self._handles.items():
            while handle.can_read():
                for output in handle.read().values():
                    for token in output.generated_ids:
                        yield number, token


def load(settings: Settings) -> tuple[Answerer, dict[str, Any]]:
    """Own settings: chunk (tokens of a step; none: whole prompts), kv_precision (none: its own)."""
    numpy, openvino = import_module("numpy"), import_module("openvino")
    genai = import_module("openvino_genai")
    chunk = settings.get("chunk")
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = settings["kv_bytes"] >> 30
    scheduler.dynamic_split_fuse = chunk is not None
    scheduler.max_num_batched_tokens = chunk or 8192
    scheduler.max_num_seqs = 32
    scheduler.enable_prefix_caching = False
    precisions = {"bfloat16": "bf16", "float32": "f32"}
    properties = {
        "INFERENCE_PRECISION_HINT": precisions[settings["dtype"]],
        "INFERENCE_NUM_THREADS": settings["threads"],
    }
    if settings.get("kv_precision"):
        properties["KV_CACHE_PRECISION"] = settings["kv_precision"]
    pipeline = genai.ContinuousBatchingPipeline(
        settings["model"], scheduler_config=scheduler, device="CPU", properties=properties
    )

    def tensor(ids: list[list[int]]) -> Any:
        return openvino.Tensor(numpy.array(ids, dtype=numpy.int64))

    def answer(requests: list[Request]) -> list[Answer]:
        return run_stepped(OpenVino(pipeline, genai, tensor), requests)

    return answer, {"version": version("openvino-genai"), "cache": f"{scheduler.cache_size} GiB"}


if __name__ == "__main__":
    serve(load)
