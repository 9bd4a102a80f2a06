"""What a spec names and what a status holds, within the limits of a real API server."""

from collections.abc import Callable
from typing import Any

import pytest
from checked_specs import (
    CLAIM,
    HUB,
    MODEL,
    OWN_CLAIM,
    Resource,
    create,
    with_field,
)
from commands import Commands
from lightkube import Client, KubeConfig
from lightkube.core.exceptions import ApiError
from lightkube.types import PatchType

from fastgen_api import names

pytestmark = pytest.mark.cluster


NAMES: list[tuple[str, Callable[[str], Any], str]] = [
    (
        "model",
        lambda name: HUB | {"cache": OWN_CLAIM | {"claimName": name}},
        "spec.model.cache.claimName",
    ),
    (
        "model",
        lambda name: HUB | {"cache": CLAIM | {"storageClassName": name}},
        "spec.model.cache.storageClassName",
    ),
    (
        "model",
        lambda name: HUB | {"tokenSecretRef": {"name": name, "key": "k"}},
        "spec.model.tokenSecretRef.name",
    ),
    (
        "model",
        lambda name: HUB | {"tokenSecretRef": {"name": "a", "key": f"/{name}"}},
        "spec.model.tokenSecretRef.key",
    ),
    ("balancer/apiKeys/secretName", str, "spec.balancer.apiKeys.secretName"),
    ("balancer/tls/secretName", str, "spec.balancer.tls.secretName"),
    ("imagePullSecrets", lambda name: [{"name": name}], "spec.imagePullSecrets[].name"),
    ("runtimeClassName", str, "spec.runtimeClassName"),
    ("priorityClassName", str, "spec.priorityClassName"),
]


@pytest.mark.parametrize("name", ["../b/pods/p", "../pods?watch=true", "..", "a..b", "A", "a%2fb"])
@pytest.mark.parametrize(("path", "value", "field"), NAMES, ids=[field for *_, field in NAMES])
def test_what_names_an_object_is_a_name(
    client: Client, path: str, value: Callable[[str], Any], field: str, name: str
) -> None:
    with pytest.raises(ApiError) as refusal:
        create(client, with_field(path, value(name)))
    assert f"{field} must " in str(refusal.value)


def test_conditions_of_others_leave_room_for_ours(cluster: Commands, namespace: str) -> None:
    client = Client(KubeConfig.from_file(cluster.kubeconfig), namespace=namespace)
    client.create(Resource(metadata={"name": "full"}, spec={"model": MODEL}))
    for manager, count in (("stranger", 40), (names.OPERATOR_MANAGER, 16)):
        condition = {
            "status": "True",
            "reason": "Any",
            "message": "",
            "lastTransitionTime": "2025-01-01T00:00:00Z",
        }
        conditions = [condition | {"type": f"{manager}-{number}"} for number in range(count)]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "status": {"conditions": conditions},
        }
        client.patch(
            Resource.Status, "full", body, patch_type=PatchType.APPLY, field_manager=manager
        )
    found = client.get(Resource, "full")
    assert len(found["status"]["conditions"]) == 56
    client.delete(Resource, "full")
