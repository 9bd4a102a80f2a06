"""Which specs a real API server accepts and refuses, and that it says why."""

from typing import Any

import pytest
from checked_specs import (
    CLAIM,
    HUB,
    LONG,
    MODEL,
    OWN_CLAIM,
    create,
    header,
    route,
    with_field,
)
from lightkube import Client
from lightkube.core.exceptions import ApiError

from fastgen_api import names

pytestmark = pytest.mark.cluster


WRONG: list[tuple[str, Any, str]] = [
    # Rules across fields.
    ("scaling", {"minReplicas": 3, "maxReplicas": 2}, "spec.scaling.minReplicas"),
    ("scaling/minReplicas", 2, "maxReplicas (1 when left out)"),
    ("scaling/scaleToZero", {}, "spec.scaling.scaleToZero needs spec.scaling.minReplicas 0"),
    ("scaling", {"minReplicas": 1, "scaleToZero": {"idleSeconds": 60}}, "minReplicas 0"),
    ("scaling", {"minReplicas": 0, "scaleToZero": {"idleSeconds": 0}}, "idleSeconds"),
    ("scaling", {"minReplicas": 0, "scaleToZero": {"holdSeconds": 0}}, "holdSeconds"),
    ("scaling", {"minReplicas": 0, "scaleToZero": {"holdSeconds": 601}}, "holdSeconds"),
    ("engine/maxConcurrentRequests", 2049, "spec.engine.maxConcurrentRequests"),
    (
        "engine",
        {"maxConcurrentRequests": 513, "tokenBudget": {"mode": "Fixed"}},
        "spec.engine.maxConcurrentRequests",
    ),
    (
        "engine",
        {"maxConcurrentRequests": 33, "tokenBudget": {"maxTokens": 32}},
        "spec.engine.tokenBudget.maxTokens",
    ),
    ("rollout", {"maxSurge": 0}, "spec.rollout.maxUnavailable"),
    ("rollout", {"maxSurge": "0%", "maxUnavailable": 0}, "spec.rollout.maxUnavailable"),
    ("resources", {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}, "spec.resources.requests"),
    (
        "resources",
        {"requests": {"memory": "1Gi"}, "limits": {"memory": "1000M"}},
        "spec.resources.requests",
    ),
    ("resources/limits", {"nvidia.com/gpu": 2}, "spec.engine.tensorParallelSize"),
    ("resources/requests", {"nvidia.com/gpu": 1}, 'spec.resources.requests["nvidia.com/gpu"]'),
    ("engine/tensorParallelSize", 0, "spec.engine.tensorParallelSize"),
    ("engine/tensorParallelSize", 65, "spec.engine.tensorParallelSize"),
    ("sharedMemory", 0, "spec.sharedMemory must be at least 1Mi"),
    ("sharedMemory", "64k", "spec.sharedMemory must be at least 1Mi"),
    ("sharedMemory", "1 Gi", "spec.sharedMemory"),
    ("podTemplate/spec", [], "spec.podTemplate.spec"),
    # Rules of one field.
    ("model/source", "", "spec.model.source"),
    ("model/source", "/models/m.gguf", "spec.model.source must be file:///path"),
    ("model/source", "file://models/m.gguf", "three slashes"),
    ("model/source", "file:///", "spec.model.source"),
    ("model/source", "file:///my model.gguf", "without spaces"),
    ("model/source", "ftp://host/m", "spec.model.source"),
    ("model/source", "hf://name", "spec.model.source must be hf://owner/name"),
    ("model/source", "hf://owner/name/a.bin", "spec.model.source must be hf://owner/name"),
    ("model/source", "pvc://claim", "spec.model.source must be pvc://claim/path"),
    ("model/source", "pvc://Claim/m.gguf", "spec.model.source must be pvc://claim/path"),
    ("model/source", "pvc://claim/../m.gguf", "a path inside it without .."),
    ("model/source", "https://host/m.bin", "spec.model.source must be https://host/path/FILE"),
    ("model/source", "https://user:word@host/m.gguf", "without user or password"),
    ("model/source", "https://host/m.gguf#sha256=1", "#sha256= and 64 hex digits"),
    ("model/source", "pvc://a..b/m.gguf", "spec.model.source must be pvc://claim/path"),
    ("model/source", "https://$(HF_TOKEN)/m.gguf", "spec.model.source must not hold $("),
    ("model/source", "hf://$(HF_TOKEN)/name", "spec.model.source must not hold $("),
    ("model", HUB | {"revision": "$(HF_TOKEN)"}, "spec.model.revision must not hold $("),
    ("model/servedName", "a$(HF_TOKEN)a", "spec.model.servedName"),
    ("model/revision", "main", "spec.model.revision is for hf:// sources"),
    ("model", {"source": "hf://a/b@v1", "revision": "v2"}, "both name a revision"),
    ("model/tokenSecretRef", {"name": "a", "key": "b"}, "spec.model.tokenSecretRef is for"),
    ("model", HUB | {"tokenSecretRef": {"name": "a"}}, "spec.model.tokenSecretRef.key"),
    ("model/cache", CLAIM, "spec.model.cache is for hf:// and https:// sources"),
    ("model", {"source": "pvc://c/m.gguf", "cache": CLAIM}, "spec.model.cache is for hf://"),
    ("model", HUB | {"cache": {"size": "1Gi"}}, "spec.model.cache.type must be Persistent"),
    (
        "model",
        HUB | {"cache": {"type": "EmptyDir", "claimName": "c"}},
        "spec.model.cache.type must be PersistentVolumeClaim",
    ),
    (
        "model",
        HUB | {"cache": {"type": "PersistentVolumeClaim"}},
        "spec.model.cache.size is needed for a new claim",
    ),
    ("model", HUB | {"cache": CLAIM | {"claimName": "c"}}, "not both"),
    (
        "model",
        HUB | {"cache": OWN_CLAIM | {"retentionPolicy": "Delete"}},
        "spec.model.cache.claimName names a claim of yours",
    ),
    ("model", HUB | {"cache": CLAIM | {"size": "2 GB"}}, "spec.model.cache.size"),
    ("model", HUB | {"cache": CLAIM | {"size": 0}}, "spec.model.cache.size must be at least 1Mi"),
    ("model", HUB | {"cache": CLAIM | {"accessModes": ["RWX"]}}, "spec.model.cache.accessModes[0]"),
    ("model", HUB | {"cache": CLAIM | {"size": "1e19"}}, "spec.model.cache.size"),
    ("model/servedName", "my model", "spec.model.servedName"),
    ("model/servedName", "", "spec.model.servedName"),
    ("slo/targetPercent", "100", "spec.slo.targetPercent"),
    ("slo/targetPercent", "0", "spec.slo.targetPercent"),
    ("slo/targetPercent", "0.0", "spec.slo.targetPercent"),
    ("slo/targetPercent", "-1", "spec.slo.targetPercent"),
    ("slo/targetPercent", "99%", "spec.slo.targetPercent"),
    ("slo/targetPercent", "many", "spec.slo.targetPercent"),
    ("slo/targetPercent", 99, "spec.slo.targetPercent"),
    ("scaling/prometheus/url", "prometheus:9090", "spec.scaling.prometheus.url"),
    ("scaling/prometheus/url", "http://user:word@host", "must hold no user or password"),
    # Types, bounds and enums.
    ("engine/dtype", "float32", "spec.engine.dtype"),
    ("engine/kvBlockSize", 48, "spec.engine.kvBlockSize"),
    ("engine/maxModelLength", 1, "spec.engine.maxModelLength"),
    ("engine/maxConcurrentRequests", 0, "spec.engine.maxConcurrentRequests"),
    ("engine/memoryPercent", 101, "spec.engine.memoryPercent"),
    ("engine/tokenBudget/maxTokens", 8, "spec.engine.tokenBudget.maxTokens"),
    ("slo/timeToFirstToken", {}, "spec.slo.timeToFirstToken.milliseconds"),
    ("slo/timePerOutputToken", {"milliseconds": 0}, "spec.slo.timePerOutputToken.milliseconds"),
    ("slo/tokenGap", {"maxMilliseconds": "250ms"}, "spec.slo.tokenGap.maxMilliseconds"),
    ("replicas", -1, "spec.replicas"),
    ("scaling/mode", False, "spec.scaling.mode"),
    ("scaling/behavior/scaleDown/policies", [], "spec.scaling.behavior.scaleDown.policies"),
    (
        "scaling/behavior/scaleUp/policies",
        [{"type": "Pods", "value": 1}],
        "spec.scaling.behavior.scaleUp.policies[0].periodSeconds",
    ),
    (
        "scaling/behavior/scaleUp/stabilizationWindowSeconds",
        3601,
        "spec.scaling.behavior.scaleUp.stabilizationWindowSeconds",
    ),
    ("balancer/replicas", 0, "spec.balancer.replicas"),
    ("balancer/name", "Models", "spec.balancer.name names a Service"),
    ("balancer/name", "a.b", "spec.balancer.name names a Service"),
    ("balancer/name", "1a", "spec.balancer.name names a Service"),
    ("balancer/name", "chat-replica", "spec.balancer.name must not end with -replica"),
    ("balancer/name", "a" * 49, "spec.balancer.name"),
    ("balancer/routes", [{"match": LONG}], "spec.balancer.routes[0].deployment"),
    ("balancer/routes", [{"deployment": "b"}], "spec.balancer.routes[0].match"),
    ("balancer/routes", [route({})], "needs header, minPromptTokens or both"),
    ("balancer/routes", [route(LONG, "m")], "must not name the FastGenDeployment itself"),
    ("balancer/routes", [route(LONG, "B")], "must be the name of a FastGenDeployment"),
    ("balancer/routes", [route(LONG, "")], "spec.balancer.routes[0].deployment"),
    ("balancer/routes", [route(LONG), route(LONG, "c")], "holds the same match twice"),
    ("balancer/routes", [route({"minPromptTokens": 0})], "minPromptTokens"),
    ("balancer/routes", [route({"header": {"name": "a"}})], "match.header.value"),
    ("balancer/routes", [header("a", "")], "match.header.value"),
    ("balancer/routes", [header("a b")], "must be the name of a header"),
    ("balancer/routes", [header(":path")], "must be the name of a header"),
    ("balancer/routes", [header("Authorization")], "must not be authorization"),
    ("balancer/routes", [header("X-FastGen-Client")], "is a header of FastGen's own"),
    ("balancer/routes", [header("x-fastgen-model-judged")], "is a header of FastGen's own"),
    (
        "balancer/routes",
        [route({"minPromptTokens": number}) for number in range(1, 18)],
        "spec.balancer.routes",
    ),
    ("balancer/maxQueuedRequests", -1, "spec.balancer.maxQueuedRequests"),
    ("balancer/apiKeys", {}, "spec.balancer.apiKeys.secretName"),
    ("balancer/tls", {}, "spec.balancer.tls.secretName"),
    ("balancer/tls", {"secretName": ""}, "spec.balancer.tls.secretName"),
    ("rollout/maxSurge", "101%", "spec.rollout.maxSurge"),
    ("rollout/maxSurge", -1, "spec.rollout.maxSurge"),
    ("rollout/drainSeconds", 3601, "spec.rollout.drainSeconds"),
    ("rollout/progressDeadlineSeconds", 1, "spec.rollout.progressDeadlineSeconds"),
    ("resources/limits", {"memory": "2 GB"}, "spec.resources.limits.memory"),
    ("resources/limits", {"cpu": -1}, "spec.resources.limits.cpu"),
    ("resources/limits", {"cpu": 0.5}, "spec.resources.limits.cpu"),
    ("resources/limits", {"cpu": "1e99999999999999999999"}, "spec.resources.limits.cpu"),
    ("resources/requests", {"memory": "1e999999999999"}, "spec.resources.requests.memory"),
    ("sharedMemory", "1E+019", "spec.sharedMemory"),
    ("imagePullSecrets", [{"name": "a"}, {"name": "a"}], "spec.imagePullSecrets[1]"),
    ("tolerations", [{"effect": "NoRun"}], "spec.tolerations[0].effect"),
]


@pytest.mark.parametrize(("path", "value", "complaint"), WRONG)
def test_what_cannot_be_right_is_refused_by_name(
    client: Client, path: str, value: Any, complaint: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        create(client, with_field(path, value))
    assert complaint in str(refusal.value)


def test_a_deployment_that_sleeps_must_be_able_to_hold_what_wakes_it(client: Client) -> None:
    spec = with_field("balancer", {"maxQueuedRequests": 0})
    create(client, spec | {"scaling": {"minReplicas": 1}})
    with pytest.raises(ApiError, match="maxQueuedRequests must be at least 1 with"):
        create(client, spec | {"scaling": {"minReplicas": 0}})
    create(client, spec | {"scaling": {"minReplicas": 0}, "balancer": {"maxQueuedRequests": 1}})


def test_a_read_write_once_cache_serves_one_replica_only(client: Client) -> None:
    spec = with_field("scaling/maxReplicas", 2)
    spec["model"]["cache"] = {"type": "PersistentVolumeClaim", "accessModes": ["ReadWriteOnce"]}
    complaint = "spec.model.cache.accessModes must hold ReadWriteMany"
    with pytest.raises(ApiError, match=complaint):
        create(client, spec)
    spec["model"]["cache"]["accessModes"] = ["ReadWriteMany"]
    with pytest.raises(ApiError) as refusal:
        create(client, spec)
    assert complaint not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("x" * (names.MAX_NAME_LENGTH + 1), "at most 48 characters"),
        ("1st", "must begin with a lower-case letter"),
        ("v1.2", "only lower-case letters, digits and hyphens"),
        ("chat-replica", "must not end with -replica"),
    ],
)
def test_names_that_make_no_services_are_refused(client: Client, name: str, complaint: str) -> None:
    with pytest.raises(ApiError, match=complaint):
        create(client, {"model": MODEL}, name)


def test_the_longest_name_is_accepted(client: Client) -> None:
    create(client, {"model": MODEL}, "x" * names.MAX_NAME_LENGTH)
