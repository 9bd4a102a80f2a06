"""Which specs a real API server accepts."""

from typing import Any

import pytest
from checked_specs import (
    CLAIM,
    HUB,
    LONG,
    OWN_CLAIM,
    SHARED,
    create,
    header,
    route,
    with_field,
)
from lightkube import Client

pytestmark = pytest.mark.cluster


RIGHT: list[tuple[str, Any]] = [
    ("model", HUB),
    ("model", HUB | {"revision": "refs/pr/1", "tokenSecretRef": {"name": "a", "key": "b"}}),
    ("model", HUB | {"cache": {"type": "EmptyDir"}}),
    ("model", HUB | {"cache": {}}),
    ("model", {"source": "hf://owner/name@v1/a.gguf"}),
    ("model", {"source": "https://host/a$b.gguf"}),
    ("model", HUB | {"tokenSecretRef": {"name": "a.b-c", "key": "HF_token.1"}}),
    ("model", HUB | {"cache": OWN_CLAIM | {"claimName": "a-1.b"}}),
    ("model", HUB | {"cache": CLAIM | {"storageClassName": ""}}),
    ("imagePullSecrets", [{"name": "registry.example"}]),
    ("runtimeClassName", "nvidia"),
    ("priorityClassName", "system-node-critical"),
    ("resources/limits", {"cpu": "1e3", "memory": "2e+09"}),
    ("model", {"source": "pvc://claim/folder/m.gguf"}),
    ("model", {"source": f"https://host/a/m.gguf?x=1#sha256={'0' * 64}"}),
    ("model", HUB | {"cache": CLAIM | SHARED}),
    ("model", HUB | {"cache": OWN_CLAIM}),
    ("model/servedName", "meta-llama/Llama-3.1-8B"),
    ("engine/dtype", "Float16"),
    ("engine/quantization", "None"),
    ("engine/quantization", "Int8"),
    ("engine/quantization", "FP8"),
    ("engine/tensorParallelSize", 1),
    ("engine/tensorParallelSize", 4),
    ("resources/limits", {"nvidia.com/gpu": 1}),
    ("resources/limits", {"nvidia.com/gpu": "1", "amd.com/gpu": 2}),
    ("sharedMemory", "8Gi"),
    ("sharedMemory", 1 << 30),
    ("podTemplate", {}),
    ("podTemplate", {"metadata": {"labels": {"a": "b"}}, "spec": {"hostNetwork": True}}),
    ("engine/prefixCaching", True),
    ("engine/prefixCaching", False),
    ("engine/speculation", "None"),
    ("engine/speculation", "PromptLookup"),
    ("engine/maxConcurrentRequests", 2048),
    ("engine", {"maxConcurrentRequests": 2048, "tokenBudget": {"mode": "Auto"}}),
    ("engine", {"maxConcurrentRequests": 16, "tokenBudget": {"mode": "Fixed", "maxTokens": 16}}),
    ("slo/targetPercent", "99.95"),
    ("slo/targetPercent", "0.5"),
    ("replicas", 0),
    ("scaling", {"mode": "Disabled"}),
    ("scaling", {"mode": "Recommend", "minReplicas": 2, "maxReplicas": 2}),
    ("scaling", {"minReplicas": 0}),
    ("scaling", {"minReplicas": 0, "scaleToZero": {"idleSeconds": 60, "holdSeconds": 600}}),
    ("scaling/behavior/scaleDown", {"selectPolicy": "Disabled"}),
    ("balancer", {"apiKeys": {"secretName": "a.b"}, "tls": {"secretName": "c"}}),
    ("balancer/endpointPicker", True),
    ("balancer/name", "models"),
    ("balancer/name", "m"),
    ("balancer/name", "a" * 48),
    ("balancer/routes", []),
    ("balancer/routes", [route(LONG), header("x-fastgen-class"), header("x-fastgen-class", "c")]),
    ("balancer/routes", [route(LONG | {"header": {"name": "X_1.~", "value": "a b"}}, "m-1")]),
    (
        "balancer/routes",
        [
            route({"minPromptTokens": number, "header": {"name": "a" * 256, "value": "b" * 1024}})
            for number in range(1, 17)
        ],
    ),
    ("balancer", {"apiKeys": {"secretName": "a"}, "endpointPicker": True}),
    ("balancer", {"name": "", "replicas": 1, "routing": "LeastTokens", "maxQueuedRequests": 0}),
    ("rollout", {"maxSurge": 0, "maxUnavailable": "25%"}),
    ("rollout", {"maxSurge": "50%", "maxUnavailable": 0}),
    ("resources", {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": 1}}),
    ("affinity/nodeAffinity", {"preferredDuringSchedulingIgnoredDuringExecution": []}),
    ("nodeSelector", {"kubernetes.io/arch": "amd64"}),
    ("tolerations", [{"operator": "Exists"}]),
]


@pytest.mark.parametrize(("path", "value"), RIGHT)
def test_what_is_built_is_accepted(client: Client, path: str, value: Any) -> None:
    create(client, with_field(path, value))
