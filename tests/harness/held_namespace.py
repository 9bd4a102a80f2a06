"""A namespace `team` as an API server would hold it, for reconciles without one."""

import asyncio
import itertools
from typing import Any

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import id_of
from fastgen_operator.cluster import Cluster
from fastgen_operator.observed import Observed
from fastgen_operator.owner import Owner
from fastgen_operator.store import Store


class Namespace(Cluster):
    """Holds what is applied, as an API server with a watch that tells at once."""

    def __init__(self) -> None:
        self._versions = itertools.count(1)
        self.store = self._store = Store()
        self.objects: dict[tuple[str, str], KubernetesObject] = {}
        self.writes: list[tuple[str, str, str]] = []
        self.held: dict[tuple[str, str], asyncio.Event] = {}
        """Writes of these objects wait for the event."""

    def declare(self, resource: KubernetesObject) -> None:
        self._put(names.KIND, resource)

    def take_away(self, name: str) -> None:
        """A FastGenDeployment is deleted, and the garbage collector has done its work."""
        gone = self.objects.pop((names.KIND, name))
        self._tell_gone(names.KIND, gone)
        for (kind, _), found in list(self.objects.items()):
            references = found["metadata"].get("ownerReferences") or []
            left = [each for each in references if each["uid"] != gone["metadata"]["uid"]]
            if references and not left:
                del self.objects[id_of(found)]
                self._tell_gone(kind, found)
            elif left != references:
                self._put(kind, found | {"metadata": found["metadata"] | {"ownerReferences": left}})

    def observe(self, owner: Owner) -> Observed:
        return self.store.observe((owner.namespace, owner.name))

    async def get(self, kind: str, namespace: str, name: str) -> KubernetesObject | None:
        return self.objects.get((kind, name))

    async def apply(self, manifest: KubernetesObject) -> KubernetesObject:
        identity = id_of(manifest)
        if held := self.held.get(identity):
            await held.wait()
        await asyncio.sleep(0)
        self.writes.append(("apply", *identity))
        return self._put(manifest["kind"], manifest)

    async def delete(self, child: KubernetesObject) -> None:
        self.writes.append(("delete", *id_of(child)))
        self._tell_gone(child["kind"], self.objects.pop(id_of(child)))

    async def apply_status(self, owner: Owner, status: KubernetesObject) -> None:
        found = self.objects[names.KIND, owner.name]
        self._put(names.KIND, found | {"status": status})

    async def tell(self, *_: Any) -> None:
        return None

    async def warnings_about(self, pod: KubernetesObject) -> tuple[KubernetesObject, ...]:
        return ()

    def condition(self, name: str, kind: str) -> tuple[str, str]:
        conditions = self.objects[names.KIND, name]["status"]["conditions"]
        (found,) = [each for each in conditions if each["type"] == kind]
        return found["status"], found["reason"]

    def owners(self, kind: str, name: str) -> list[str]:
        found = self.objects[kind, name]["metadata"]["ownerReferences"]
        return [each["name"] for each in found]

    def shared(self, balancer: str = "models") -> set[tuple[str, str]]:
        return {each for each in self.objects if each[1] in (balancer, f"{balancer}-balancer")}

    def _put(self, kind: str, found: KubernetesObject) -> KubernetesObject:
        before = self.objects.get((kind, found["metadata"]["name"]), {"metadata": {}})
        metadata = {"generation": 1} | before["metadata"] | found["metadata"]
        metadata["resourceVersion"] = str(next(self._versions))
        stored = found | {"kind": kind, "metadata": metadata}
        self.objects[id_of(stored)] = stored
        shelf = self.store.shelf(kind, "team")
        assert shelf is not None
        shelf.put(stored)
        return stored

    def _tell_gone(self, kind: str, found: KubernetesObject) -> None:
        shelf = self.store.shelf(kind, "team")
        assert shelf is not None
        metadata = found["metadata"] | {"resourceVersion": str(next(self._versions))}
        shelf.remove(found | {"metadata": metadata})
