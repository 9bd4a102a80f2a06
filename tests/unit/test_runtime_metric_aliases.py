"""A replica's load under vLLM's names."""

import re

from prometheus_client.parser import text_string_to_metric_families

from fastgen_api.names import Metric
from fastgen_api.spec import SLO
from fastgen_runtime.front.metric_aliases import add_vllm_aliases
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.replica_load import ReplicaLoad, add_gauges

LOAD = ReplicaLoad(
    num_running=3,
    num_waiting=2,
    num_owed=100,
    max_running=8,
    num_blocks=200,
    num_free_blocks=50,
    block_size=32,
    tokens_per_second=0.0,
    draining=False,
)
ALIASES = {
    "vllm:num_requests_running": Metric.RUNNING_REQUESTS,
    "vllm:num_requests_waiting": Metric.WAITING_REQUESTS,
    "vllm:kv_cache_usage_perc": Metric.KV_USAGE,
    "vllm:gpu_cache_usage_perc": Metric.KV_USAGE,
}


def samples(text: str) -> dict[str, tuple[str, float, dict[str, str]]]:
    return {
        sample.name: (family.type, sample.value, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_aliases_are_gauges_that_say_what_ours_say() -> None:
    metrics = Metrics("chat", "team", SLO())
    add_gauges(metrics, lambda: LOAD)
    own = metrics.render().decode()
    assert "vllm:" not in own, "only where they are asked for"
    add_vllm_aliases(metrics, "llama", lambda: LOAD)
    found = samples(metrics.render().decode())
    for alias, ours in ALIASES.items():
        kind, value, labels = found[alias]
        assert (kind, value) == ("gauge", found[ours][1]), alias
        assert labels["model_name"] == "llama"
        assert labels["deployment"] == "chat"
    kind, value, labels = found["vllm:lora_requests_info"]
    assert kind == "gauge"
    assert value > 1_700_000_000
    assert labels["max_lora"] == "0"
    assert {labels[f"{which}_lora_adapters"] for which in ("running", "waiting")} == {""}
    assert all(re.fullmatch(r"(fastgen_|vllm:)\w+", name) for name in found)
