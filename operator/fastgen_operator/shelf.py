"""What is known of the objects of one kind: from lists, watches and the answers to our writes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.bonds import Bond, bond_of
from fastgen_operator.kinds import deployments_of, version_of
from fastgen_operator.obsolete import is_our_status
from fastgen_operator.queue import Key

Ref: TypeAlias = tuple[str, str]
"""Namespace and name of an object; its kind is the shelf's."""

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class HistoryError(Exception):
    """The API server is at an earlier version than before, as after a restored backup."""


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    keys: tuple[Key, ...]
    text: bytes
    """JSON: a tenth of the memory that the same dicts take, and nobody can change it."""


class Shelf:
    """The objects of one kind in one namespace, or in all.

    What is told by a list, by a watch and by the answers to our own writes comes in any order, and
    the newest version of an object stays. `version` is how far list and watch have come: an object
    that is not here and not newer than that has been deleted.
    """

    def __init__(self, kind: str, scope: str) -> None:
        self.kind = kind
        self.scope = scope
        self.version = 0
        self.is_filled = False
        """Whether it was listed since the last `clear`."""
        self.is_served = True
        """Whether the API server knows the kind."""
        self._entries: dict[Ref, _Entry] = {}
        self._refs: dict[Key, set[Ref]] = {}
        self._bonds: dict[str, dict[str, Bond]] = {}
        """Of FastGenDeployments, by namespace and name: asked for each time, and read but once."""
        self._deleted: dict[Ref, int] | None = None
        """While a list is on its way: what was deleted since it began, and at which version."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, found: KubernetesObject) -> tuple[Key, ...]:
        """Takes an event or an answer; returns the deployments for which it is news."""
        ref, version = _ref_of(found), _version_of(found)
        entry = self._entries.get(ref)
        known = entry.version if entry else self.version
        return self._set(ref, version, found) if version > known else ()

    def remove(self, found: KubernetesObject) -> tuple[Key, ...]:
        """Takes the event of a deletion; returns the deployments for which it is news."""
        ref, version = _ref_of(found), _version_of(found)
        if self._deleted is not None:
            self._deleted[ref] = version
        entry = self._entries.get(ref)
        return self._drop(ref) if entry and entry.version <= version else ()

    def versions(self) -> dict[Key, int]:
        """Of each deployment that has something here, the newest version."""
        return {
            key: max(self._entries[ref].version for ref in refs) for key, refs in self._refs.items()
        }

    def reach(self, version: str) -> None:
        """List and watch have come as far as this version."""
        self.version = max(self.version, int(version))

    def clear(self) -> tuple[Key, ...]:
        """Forgets everything; returns the deployments that had something here."""
        keys = tuple(self._refs)
        self._entries.clear()
        self._refs.clear()
        self._bonds.clear()
        self._deleted = None
        self.version = 0
        self.is_filled = False
        return keys

    def begin_list(self) -> "Listing":
        """Begins to take a complete list."""
        self._deleted = {}
        return Listing(self)

    def of(self, key: Key) -> Iterator[KubernetesObject]:
        """The objects of a deployment, by name; each a copy of its own."""
        for ref in sorted(self._refs.get(key, ())):
            yield _decode(self._entries[ref].text)

    def bonds(self, namespace: str) -> Mapping[str, Bond]:
        """What ties the FastGenDeployments of a namespace to one another, by their names."""
        return self._bonds.get(namespace, {})

    def _set(self, ref: Ref, version: int, found: KubernetesObject) -> tuple[Key, ...]:
        bond = bond_of(found) if self.kind == names.KIND else None
        before = self._drop(ref)
        keys = tuple((ref[0], name) for name in deployments_of(self.kind, found))
        if not keys:
            return before
        self._entries[ref] = _Entry(version, keys, _encode(_kept(self.kind, found)))
        for key in keys:
            self._refs.setdefault(key, set()).add(ref)
        if bond is not None:
            self._bonds.setdefault(ref[0], {})[ref[1]] = bond
        return tuple(dict.fromkeys((*before, *keys)))

    def _drop(self, ref: Ref) -> tuple[Key, ...]:
        entry = self._entries.pop(ref, None)
        if entry is None:
            return ()
        for key in entry.keys:
            refs = self._refs[key]
            refs.discard(ref)
            if not refs:
                del self._refs[key]
        if ref[1] in (bonds := self._bonds.get(ref[0], {})):
            del bonds[ref[1]]
        return entry.keys


class Listing:
    """A complete list on its way into a shelf, page by page."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._seen: set[Ref] = set()

    def add(self, found: KubernetesObject) -> tuple[Key, ...]:
        """Takes one object; returns the deployments for which it is news."""
        shelf, ref, version = self._shelf, _ref_of(found), _version_of(found)
        self._seen.add(ref)
        entry = shelf._entries.get(ref)
        known = entry.version if entry else (shelf._deleted or {}).get(ref, 0)
        return shelf._set(ref, version, found) if version > known else ()

    def end(self, version: str) -> tuple[Key, ...]:
        """Drops what the list did not have; returns the deployments that lost something.

        Raises HistoryError when the list is older than what was known: nothing of it is taken for
        granted then, and the shelf is empty.
        """
        shelf, reached = self._shelf, int(version)
        if reached < shelf.version:
            was = shelf.version
            shelf.clear()
            raise HistoryError(f"{shelf.kind}: version {reached} after {was}")
        gone = [
            ref
            for ref, entry in shelf._entries.items()
            if ref not in self._seen and entry.version <= reached
        ]
        keys = [key for ref in gone for key in shelf._drop(ref)]
        shelf._deleted = None
        shelf.reach(version)
        shelf.is_filled = True
        return tuple(dict.fromkeys(keys))


def _ref_of(found: KubernetesObject) -> Ref:
    metadata = found["metadata"]
    return metadata["namespace"], metadata["name"]


def _version_of(found: KubernetesObject) -> int:
    # Clients may compare versions of one kind: Kubernetes promises that they are growing numbers.
    return int(found["metadata"]["resourceVersion"])


def _kept(kind: str, found: KubernetesObject) -> dict[str, Any]:
    """What is kept: who wrote which field is asked only of our own status."""
    metadata = {name: each for name, each in found["metadata"].items() if name != "managedFields"}
    if kind == names.KIND:
        managed = found["metadata"].get("managedFields") or ()
        metadata["managedFields"] = [each for each in managed if is_our_status(each)]
    # Items of a list do not tell their kind.
    return {"apiVersion": version_of(kind), "kind": kind, **found, "metadata": metadata}
