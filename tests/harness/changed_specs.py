"""A spec that uses every field, and another value for each."""

import copy
import re
from typing import Any

TERM = {"key": "zone", "operator": "Exists"}
RULES = {
    "stabilizationWindowSeconds": 30,
    "selectPolicy": "Max",
    "policies": [{"type": "Pods", "value": 2, "periodSeconds": 30}],
    "tolerance": "0.1",
}
EXAMPLE: dict[str, Any] = {
    "model": {"source": "file:///models/a.gguf", "servedName": "a"},
    "engine": {
        "dtype": "Float32",
        "quantization": "None",
        "tensorParallelSize": 1,
        "maxModelLength": 512,
        "maxConcurrentRequests": 8,
        "kvBlockSize": 32,
        "tokenBudget": {"mode": "Auto", "maxTokens": 256},
        "prefixCaching": True,
        "speculation": "None",
        "memoryPercent": 80,
    },
    "slo": {
        "targetPercent": "99",
        "timeToFirstToken": {"milliseconds": 1000, "perPromptTokenMicroseconds": 100},
        "timePerOutputToken": {"milliseconds": 100},
        "tokenGap": {"maxMilliseconds": 500},
    },
    # Above the most: only who scales by it cuts it down.
    "replicas": 4,
    "scaling": {
        "mode": "Auto",
        "minReplicas": 0,
        "maxReplicas": 3,
        "scaleToZero": {"idleSeconds": 900, "holdSeconds": 600},
        "prometheus": {"url": "http://prometheus:9090"},
        "behavior": {"scaleUp": RULES, "scaleDown": RULES},
    },
    "balancer": {
        "replicas": 2,
        "routing": "Prefix",
        "maxQueuedRequests": 100,
        "apiKeys": {"secretName": "keys"},
        "tls": {"secretName": "tls"},
        "endpointPicker": False,
        "name": "models",
        "routes": [
            {"match": {"header": {"name": "x-class", "value": "batch"}, "minPromptTokens": 1000},
             "deployment": "batch"},
        ],
    },
    "rollout": {
        "strategy": "Auto",
        "maxSurge": 1,
        "maxUnavailable": 0,
        "progressDeadlineSeconds": 900,
        "drainSeconds": 60,
    },
    "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "1"}},
    "image": "runtime:2",
    "imagePullSecrets": [{"name": "pull"}],
    "nodeSelector": {"disk": "fast"},
    "tolerations": [
        {"key": "gpu", "operator": "Equal", "value": "a", "effect": "NoExecute",
         "tolerationSeconds": 60},
    ],
    "affinity": {
        "nodeAffinity": {"required": [TERM]},
        "podAffinity": {"required": [TERM]},
        "podAntiAffinity": {"required": [TERM]},
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule",
         "minDomains": 2, "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["a"],
         "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Honor"},
    ],
    "runtimeClassName": "nvidia",
    "priorityClassName": "high",
    "sharedMemory": "1Gi",
    "podTemplate": {
        "metadata": {"labels": {"team": "a"}},
        "spec": {"hostNetwork": False},
    },
}  # fmt: skip

CACHE = {
    "type": "PersistentVolumeClaim",
    "size": "60Gi",
    "storageClassName": "fast",
    "accessModes": ["ReadWriteMany"],
    "retentionPolicy": "Retain",
}
HUB_MODEL: dict[str, Any] = {
    "source": "hf://owner/name",
    "revision": "main",
    "tokenSecretRef": {"name": "hf", "key": "token"},
    "cache": CACHE,
}
OWN_CLAIM = {"type": "PersistentVolumeClaim", "claimName": "mine"}
OTHER_MODELS = {
    "spec.model.cache.claimName": HUB_MODEL | {"cache": OWN_CLAIM},
    "spec.model.revision": HUB_MODEL,
    "spec.model.tokenSecretRef": HUB_MODEL,
    "spec.model.cache": HUB_MODEL,
}
"""The example's model for fields that go with others, by the beginning of their paths."""

CHANGED: dict[str, Any] = {
    "spec.model.source": "file:///models/b.gguf",
    "spec.model.servedName": "b",
    "spec.model.revision": "v2",
    "spec.model.tokenSecretRef.name": "other",
    "spec.model.tokenSecretRef.key": "other",
    "spec.model.cache.type": "EmptyDir",
    "spec.model.cache.size": "80Gi",
    "spec.model.cache.storageClassName": "slow",
    "spec.model.cache.accessModes": ["ReadWriteOnce"],
    "spec.model.cache.retentionPolicy": "Delete",
    "spec.model.cache.claimName": "other",
    "spec.engine.dtype": "BFloat16",
    "spec.engine.quantization": "Int8",
    "spec.engine.tensorParallelSize": 2,
    "spec.engine.maxModelLength": 256,
    "spec.engine.maxConcurrentRequests": 4,
    "spec.engine.kvBlockSize": 64,
    "spec.engine.tokenBudget.mode": "Fixed",
    "spec.engine.tokenBudget.maxTokens": 128,
    "spec.engine.prefixCaching": False,
    "spec.engine.speculation": "PromptLookup",
    "spec.engine.memoryPercent": 70,
    "spec.slo.targetPercent": "95",
    "spec.slo.timeToFirstToken.milliseconds": 900,
    "spec.slo.timeToFirstToken.perPromptTokenMicroseconds": 50,
    "spec.slo.timePerOutputToken.milliseconds": 50,
    "spec.slo.tokenGap.maxMilliseconds": 400,
    "spec.replicas": 2,
    "spec.scaling.mode": "Disabled",
    "spec.scaling.minReplicas": 2,
    "spec.scaling.maxReplicas": 2,
    "spec.scaling.scaleToZero.idleSeconds": 60,
    "spec.scaling.scaleToZero.holdSeconds": 60,
    "spec.scaling.prometheus.url": "http://other:9090",
    **{
        f"spec.scaling.behavior.{direction}.{name}": value
        for direction in ("scaleUp", "scaleDown")
        for name, value in {
            "stabilizationWindowSeconds": 60,
            "selectPolicy": "Min",
            "tolerance": "50m",
            "policies[].type": "Percent",
            "policies[].value": 3,
            "policies[].periodSeconds": 15,
        }.items()
    },
    "spec.balancer.replicas": 3,
    "spec.balancer.routing": "LeastTokens",
    "spec.balancer.maxQueuedRequests": 200,
    "spec.balancer.apiKeys.secretName": "other",
    "spec.balancer.tls.secretName": "other",
    "spec.balancer.endpointPicker": True,
    "spec.balancer.name": "others",
    "spec.balancer.routes[].match.header.name": "x-kind",
    "spec.balancer.routes[].match.header.value": "bulk",
    "spec.balancer.routes[].match.minPromptTokens": 2000,
    "spec.balancer.routes[].deployment": "bulk",
    "spec.rollout.strategy": "InPlace",
    "spec.rollout.maxSurge": 2,
    "spec.rollout.maxUnavailable": 1,
    "spec.rollout.progressDeadlineSeconds": 300,
    "spec.rollout.drainSeconds": 30,
    "spec.resources.limits": {"memory": "3Gi"},
    "spec.resources.requests": {"cpu": "2"},
    "spec.image": "runtime:3",
    "spec.imagePullSecrets[].name": "other",
    "spec.nodeSelector": {"disk": "slow"},
    "spec.tolerations[].key": "other",
    "spec.tolerations[].operator": "Exists",
    "spec.tolerations[].value": "b",
    "spec.tolerations[].effect": "NoSchedule",
    "spec.tolerations[].tolerationSeconds": 30,
    "spec.affinity.nodeAffinity": {"required": []},
    "spec.affinity.podAffinity": {"required": []},
    "spec.affinity.podAntiAffinity": {"required": []},
    "spec.topologySpreadConstraints[].maxSkew": 2,
    "spec.topologySpreadConstraints[].topologyKey": "host",
    "spec.topologySpreadConstraints[].whenUnsatisfiable": "ScheduleAnyway",
    "spec.topologySpreadConstraints[].minDomains": 3,
    "spec.topologySpreadConstraints[].labelSelector": {"matchLabels": {"a": "c"}},
    "spec.topologySpreadConstraints[].matchLabelKeys": ["b"],
    "spec.topologySpreadConstraints[].nodeAffinityPolicy": "Ignore",
    "spec.topologySpreadConstraints[].nodeTaintsPolicy": "Ignore",
    "spec.runtimeClassName": "kata",
    "spec.priorityClassName": "low",
    "spec.sharedMemory": "2Gi",
    "spec.podTemplate.metadata": {"labels": {"team": "b"}},
    "spec.podTemplate.spec": {"hostNetwork": True},
}
"""Each field that this version heeds, and another value for it."""


def example_for(path: str) -> dict[str, Any]:
    """The example's spec; its model is one that may have the field."""
    models = (each for beginning, each in OTHER_MODELS.items() if path.startswith(beginning))
    return EXAMPLE | {"model": next(models, EXAMPLE["model"])}


def with_value(path: str, value: Any) -> dict[str, Any]:
    """The example's spec with another value at a path; `[]` means the first of a list."""
    changed = copy.deepcopy(example_for(path))
    *parents, last = re.findall(r"[A-Za-z]+|\[\]", path.removeprefix("spec."))
    place: Any = changed
    for step in parents:
        place = place[0 if step == "[]" else step]
    assert place[last] != value, f"{path}: the example has this value already"
    place[last] = value
    return changed
