"""What Pod Security thinks of every pod that is made."""

import json
from typing import Any

import pytest
from cluster_access import RESTRICTED
from commands import Commands

from fastgen_api.spec import parse
from fastgen_operator.children import make_children
from fastgen_operator.delivery import Delivered, Delivery, JobStep
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Images, Settings

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

MODELS = [
    {"source": "file:///models/a.gguf"},
    {"source": "pvc://claim/a"},
    {"source": "hf://owner/name", "tokenSecretRef": {"name": "s", "key": "k"}},
    {"source": "hf://owner/name", "cache": {"type": "PersistentVolumeClaim"}},
    {"source": "https://host/a.gguf", "cache": {"type": "PersistentVolumeClaim"}},
]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: "-".join(model))
def test_the_restricted_standard_admits_every_pod(
    cluster: Commands, namespace: str, model: dict[str, Any]
) -> None:
    """Init containers and the download's Job too; the API server is only asked."""
    cluster.kubectl("label", "--overwrite", "namespace", namespace, RESTRICTED)
    spec = parse({"model": model})
    owner = Owner("chat", namespace, "u")
    settings = Settings(Images("runtime:1", "control:1"))
    at_first = make_children(owner, spec, settings)
    then = Delivery(Delivered(key="k", path="m"), job=JobStep.MAKE)
    made = {
        (child["kind"], child["metadata"]["name"]): child["spec"]["template"]
        for child in (*at_first, *make_children(owner, spec, settings, then))
        if child["kind"] in ("Deployment", "Job")
    }
    downloads = not model["source"].startswith(("file", "pvc"))
    assert len(made) == (3 if downloads else 2)
    for number, template in enumerate(made.values()):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": template["metadata"] | {"name": f"tried-{number}"},
            "spec": {
                field: value
                for field, value in template["spec"].items()
                if field != "serviceAccountName"  # It would have to be there.
            },
        }
        words = ("create", "-n", namespace, "--dry-run=server", "-f", "-")
        cluster.kubectl(*words, stdin=json.dumps(pod))
