"""Asks an API server whether it takes a FastGenDeployment."""

import copy
from typing import Any

from lightkube import Client
from lightkube.generic_resource import create_namespaced_resource

from fastgen_api import names

Resource = create_namespaced_resource(names.GROUP, names.VERSION, names.KIND, names.PLURAL)
MODEL = {"source": "file:///models/m.gguf"}
HUB = {"source": "hf://owner/name"}
CLAIM = {"type": "PersistentVolumeClaim", "size": "60Gi"}
OWN_CLAIM = {"type": "PersistentVolumeClaim", "claimName": "mine"}
SHARED = {"storageClassName": "fast", "accessModes": ["ReadWriteMany"], "retentionPolicy": "Delete"}
LONG = {"minPromptTokens": 5}


def with_field(path: str, value: Any) -> dict[str, Any]:
    """The smallest valid spec with one field set; the path's parts are parted by /."""
    spec: dict[str, Any] = {"model": dict(MODEL)}
    place = spec
    *parents, last = path.split("/")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return spec


def create(client: Client, spec: dict[str, Any], name: str = "m") -> None:
    """Asks the API server to check a resource as for a creation; raises ApiError."""
    client.create(Resource.from_dict({"metadata": {"name": name}, "spec": copy.deepcopy(spec)}))


def route(match: dict[str, Any], deployment: str = "b") -> dict[str, Any]:
    return {"match": match, "deployment": deployment}


def header(name: str, value: str = "batch") -> dict[str, Any]:
    return route({"header": {"name": name, "value": value}})
