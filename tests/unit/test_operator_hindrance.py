"""What keeps a change from being applied is told, although it is tried again."""

from typing import Any

import pytest
from observed_objects import NOW, OWNER, deployment, observed

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator import reconcile as reconcile_module
from fastgen_operator.applying import SAME_NOTICE_AFTER, Memory
from fastgen_operator.bonds import Bond, bond_of
from fastgen_operator.cluster_error import ClusterError
from fastgen_operator.internal_error import INTERNAL_ERROR
from fastgen_operator.observed import Observed
from fastgen_operator.owner import owner_reference
from fastgen_operator.reconcile import ERRORS_TO_TELL, Reconciler
from fastgen_operator.settings import Images, Settings
from fastgen_operator.status import Notice
from fastgen_operator.unsettled import UnsettledError

KEY = (OWNER.namespace, OWNER.name)
RESOURCE = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {
        "name": OWNER.name, "namespace": OWNER.namespace, "uid": OWNER.uid, "generation": 1,
    },
    "spec": {"model": {"source": "file:///m.gguf"}},
}  # fmt: skip


class OneResource:
    """Stands in for the API server: one resource, and an answer for whatever is applied."""

    def __init__(self, found: Observed, error: ClusterError | None = None) -> None:
        self.found = found
        self.error = error
        self.told: list[KubernetesObject] = []

    def resource(self, _: object) -> KubernetesObject:
        return RESOURCE

    def observe(self, _: object) -> Observed:
        return self.found

    def neighbours(self, _: object) -> tuple[KubernetesObject, ...]:
        return ()

    def bonds(self, _: object) -> dict[str, Bond]:
        return {"chat": bond_of(RESOURCE)}

    async def get(self, *_: object) -> None:
        return None

    async def apply(self, manifest: KubernetesObject) -> KubernetesObject:
        if self.error:
            raise self.error
        return manifest | {"metadata": manifest["metadata"] | {"generation": 1}}

    async def apply_status(self, _: object, status: KubernetesObject) -> None:
        self.told.append(status)

    async def tell(self, *_: object) -> None:
        return None


def reconciler(cluster: Any) -> Reconciler:
    return Reconciler(cluster, Settings(Images("runtime:1", "control:1")), lambda: NOW)


def ready_of(status: KubernetesObject) -> tuple[str, str]:
    (ready,) = [each for each in status["conditions"] if each["type"] == "Ready"]
    return ready["status"], ready["reason"]


def reconciling(status: KubernetesObject) -> str:
    (found,) = [each for each in status["conditions"] if each["type"] == "Reconciling"]
    return str(found["status"])


async def test_a_child_that_is_being_deleted_is_told() -> None:
    leaving = deployment("chat-replica", 1)
    leaving["kind"] = "Deployment"
    leaving["metadata"] |= {
        "deletionTimestamp": "2025-01-01T00:00:00Z",
        "ownerReferences": [owner_reference(OWNER)],
    }
    cluster = OneResource(observed(leaving))
    with pytest.raises(UnsettledError, match="still being deleted"):
        await reconciler(cluster).reconcile(KEY)
    assert ready_of(cluster.told[-1]) == ("False", "WaitingForDeletion")
    assert reconciling(cluster.told[-1]) == "True"


async def test_an_api_server_that_goes_on_failing_is_told() -> None:
    webhook = ClusterError(500, 'failed calling webhook "policy.example.com"')
    cluster = OneResource(Observed(), webhook)
    ours = reconciler(cluster)
    for _ in range(ERRORS_TO_TELL):
        assert cluster.told == []
        with pytest.raises(ClusterError, match="policy"):
            await ours.reconcile(KEY)
    (status,) = cluster.told
    assert ready_of(status) == ("False", "APIServerError")
    assert reconciling(status) == "True"
    cluster.error = None
    await ours.reconcile(KEY)
    assert ready_of(cluster.told[-1])[1] != "APIServerError"


class Tripping(OneResource):
    """What is observed trips the operator."""

    def observe(self, _: object) -> Observed:
        raise ZeroDivisionError("of a secret")


@pytest.mark.parametrize("is_observed", [True, False])
async def test_an_error_of_the_operators_own_is_told_the_second_time(
    monkeypatch: pytest.MonkeyPatch, is_observed: bool
) -> None:
    cluster = OneResource(Observed()) if is_observed else Tripping(Observed())
    ours = reconciler(cluster)

    def trip(*_: object) -> None:
        raise ZeroDivisionError("of a secret")

    with monkeypatch.context() as patch:
        patch.setattr(reconcile_module, "make_children", trip)
        for told in (0, 1):
            with pytest.raises(ZeroDivisionError):
                await ours.reconcile(KEY)
            assert len(cluster.told) == told
    (status,) = cluster.told
    assert ready_of(status) == ("False", INTERNAL_ERROR)
    assert status["observedGeneration"] == 1
    (stalled,) = [each for each in status["conditions"] if each["type"] == "Stalled"]
    assert (stalled["status"], stalled["reason"]) == ("True", INTERNAL_ERROR)
    assert "ZeroDivisionError" in stalled["message"]
    assert "secret" not in str(status)
    if is_observed:
        await ours.reconcile(KEY)
        assert ready_of(cluster.told[-1])[1] != INTERNAL_ERROR


class AskedFor(OneResource):
    """Notes what is asked for by name; holds a resource that an earlier definition let in."""

    def __init__(self) -> None:
        super().__init__(Observed())
        self.names: list[str] = []

    def resource(self, _: object) -> KubernetesObject:
        cache = {"type": "PersistentVolumeClaim", "claimName": "../../b/persistentvolumeclaims/c"}
        return RESOURCE | {"spec": {"model": {"source": "hf://owner/name", "cache": cache}}}

    async def get(self, *words: object) -> None:
        self.names.append(str(words[-1]))

    async def check(self, _: object) -> None:
        return None


async def test_a_claim_whose_name_leads_elsewhere_is_not_asked_for() -> None:
    cluster = AskedFor()
    await reconciler(cluster).reconcile(KEY)
    assert not [each for each in cluster.names if "/" in each]
    assert cluster.names
    assert ready_of(cluster.told[-1]) == ("False", "Downloading")


def test_one_reason_is_one_event_of_a_generation() -> None:
    memory = Memory()
    first = Notice("Warning", "ChecksumMismatch", "model.gguf is damaged")
    closer = Notice("Warning", "ChecksumMismatch", "model.gguf is damaged. The download is tried")
    assert memory.may_tell(first, 1, NOW)
    assert not memory.may_tell(closer, 1, NOW)
    assert memory.may_tell(closer, 2, NOW)
    assert memory.may_tell(closer, 1, NOW + SAME_NOTICE_AFTER)
