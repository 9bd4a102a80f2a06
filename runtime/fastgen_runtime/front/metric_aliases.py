"""A replica's load under the names of other engines, for dashboards and pickers that know these.

The gauges are those that the model server protocol of the Gateway API Inference Extension (proposal
003) asks for: requests in the queue, requests that run, share of the KV cache in use, adapters.
"""

import time
from collections.abc import Callable
from typing import Final

from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.replica_load import ReplicaLoad

NO_ADAPTERS: Final = {
    "max_lora": "0",
    "running_lora_adapters": "",
    "waiting_lora_adapters": "",
}


def add_vllm_aliases(metrics: Metrics, model_name: str, load: Callable[[], ReplicaLoad]) -> None:
    """vLLM's names; the KV cache has had two of them. The adapters' value is the time of asking."""
    gauge, model = metrics.gauge, {"model_name": model_name}
    gauge("vllm:num_requests_running", "Requests that hold blocks.",
          lambda: load().num_running, model)  # fmt: skip
    gauge("vllm:num_requests_waiting", "Requests that wait for a place.",
          lambda: load().num_waiting, model)  # fmt: skip
    for name in ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"):
        gauge(name, "Share of the KV blocks in use, 1 for all.", lambda: load().kv_usage, model)
    gauge("vllm:lora_requests_info", "Adapters: this engine has none.", time.time,
          NO_ADAPTERS)  # fmt: skip
