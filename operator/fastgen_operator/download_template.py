"""Takes over into a download's pod what `spec.podTemplate` says of it."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastgen_api.spec import KubernetesObject
from fastgen_operator.delivery_pod import CONTAINER
from fastgen_operator.merge import merge
from fastgen_operator.privileges import Allowed, check_privileges
from fastgen_operator.template_contract import PATH, check_contract

POD_FIELDS: Final = (
    "affinity", "dnsConfig", "dnsPolicy", "hostAliases", "imagePullSecrets", "nodeSelector",
    "priorityClassName", "schedulerName", "securityContext", "tolerations",
)  # fmt: skip
"""Fields of a pod that concern a download as much as a replica: its nodes, images, network, user.

Not the others: labels and annotations are what Services of the user's select and sidecars are
injected by, and a ServiceAccount of the user's may not tell how far a download is.
"""
LISTS: Final = ("initContainers", "volumes")


def of_download(theirs: KubernetesObject) -> KubernetesObject:
    """What of a user's pod template concerns a download; empty: nothing does.

    Of init containers that is the one named `download`, of volumes those that it mounts.
    """
    spec = _spec(theirs)
    containers = [each for each in _items(spec, "initContainers") if each.get("name") == CONTAINER]
    mounted = [mount.get("name") for each in containers for mount in _items(each, "volumeMounts")]
    volumes = [
        each
        for each in _items(spec, "volumes")
        if isinstance(each.get("name"), str) and each["name"] in mounted
    ]
    lists = {"initContainers": containers, "volumes": volumes}
    fields = {field: spec[field] for field in POD_FIELDS if field in spec}
    return fields | {field: items for field, items in lists.items() if items}


def with_template(
    ours: KubernetesObject, theirs: KubernetesObject, allowed: Allowed
) -> KubernetesObject:
    """A download's pod (its `spec`) with the user's pod template on top.

    Raises merge.TemplateError as for a replica.
    """
    concerned = of_download(theirs)
    if not concerned:
        return ours
    spec = _spec(theirs)
    taken = {field: spec[field] for field in (*POD_FIELDS, *LISTS) if field in spec}
    mounted = [each["name"] for each in concerned.get("volumes", ())]
    # In the user's template it is an init container: errors name that place. Of our volumes only
    # one that it is to mount under a name of the user's can be taken for another.
    form = ours | {
        "containers": [],
        "initContainers": ours["containers"],
        "volumes": [each for each in ours["volumes"] if each["name"] in mounted],
    }
    check_contract({"metadata": {}, "spec": form}, {"spec": taken})
    names = [each["name"] for each in ours["volumes"]]
    added = [each for each in concerned.get("volumes", ()) if each["name"] not in names]
    merged = merge(form, taken, f"{PATH}.spec")
    container = [each for each in merged["initContainers"] if each["name"] == CONTAINER]
    judged = {"metadata": {}, "spec": merged | {"initContainers": container, "volumes": added}}
    check_privileges(allowed, judged, theirs, ours["serviceAccountName"])
    del merged["initContainers"]
    return merged | {"containers": container, "volumes": [*ours["volumes"], *added]}


def without_download(template: KubernetesObject) -> KubernetesObject:
    """A replica's pod template without the container that is a Job's where there is a cache."""
    spec = template["spec"]
    kept = [each for each in spec.get("initContainers") or () if each["name"] != CONTAINER]
    rest = {field: value for field, value in spec.items() if field != "initContainers"}
    return {**template, "spec": rest | ({"initContainers": kept} if kept else {})}


def _spec(template: Mapping[str, Any]) -> Mapping[str, Any]:
    found = template.get("spec")
    return found if isinstance(found, dict) else {}


def _items(place: Mapping[str, Any], field: str) -> Iterator[Mapping[str, Any]]:
    found = place.get(field)
    yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()
