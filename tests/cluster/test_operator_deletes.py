"""What the operator deletes is what it has seen."""

import pytest
from commands import Commands
from lightkube import AsyncClient, KubeConfig

from fastgen_operator.cluster import Cluster

pytestmark = pytest.mark.cluster


async def test_an_object_made_anew_under_the_name_stays(cluster: Commands, namespace: str) -> None:
    client = AsyncClient(KubeConfig.from_file(cluster.kubeconfig).get())
    operator = Cluster(client, lambda: None)
    cluster.kubectl("-n", namespace, "create", "configmap", "held")
    found = await operator.get("ConfigMap", namespace, "held")
    assert found is not None
    seen = {"kind": "ConfigMap", **found}
    await operator.delete(seen | {"metadata": seen["metadata"] | {"uid": "of-an-earlier-one"}})
    assert await operator.get("ConfigMap", namespace, "held")
    for _ in range(2):
        await operator.delete(seen)
        assert await operator.get("ConfigMap", namespace, "held") is None
    await operator.close()
