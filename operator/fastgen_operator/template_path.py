"""Finds in `spec.podTemplate` the place that an API server complains about in the merged pod."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from fastgen_api.spec import KubernetesObject
from fastgen_operator.merge import KEY_DEFAULTS, MERGE_KEYS, identity

MERGED_PATH: Final = re.compile(
    r'\.?\bspec\.template((?:\.\w+|\[(?:"(?:[^"\\]|\\.)*"|[^\]"])*\])+)'
)
"""A path into a Deployment's pod template, in the forms of validation and of server-side apply."""
STEP: Final = re.compile(r'\.(\w+)|\[((?:"(?:[^"\\]|\\.)*"|[^\]"])*)\]')
KEY: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^,\]]+)')

Step: TypeAlias = str | int | dict[str, str]
"""A field, a position in a list, or the keys of an item of it."""


def in_their_words(message: str, merged: KubernetesObject, theirs: KubernetesObject) -> str:
    """The message with the paths into the merged template that came from `theirs` as the user
    wrote them. `merged` and `theirs` are pod templates: objects with `metadata` and `spec`."""

    def replace(match: re.Match[str]) -> str:
        path = their_path(match[1], merged, theirs)
        return match[0] if path is None else f"spec.podTemplate{path}"

    return MERGED_PATH.sub(replace, message)


def their_path(path: str, merged: KubernetesObject, theirs: KubernetesObject) -> str | None:
    """The path below spec.podTemplate of a path below the merged template; None: not theirs.

    What is complained about may be missing in theirs, so the last steps need not be there.
    """
    written, depth = "", 0
    place: Any = theirs
    of_merged: Any = merged
    field = ""
    for step in _steps(path):
        if isinstance(step, str):
            field, found = step, _field(place, step)
            written += f".{step}"
            of_merged = _field(of_merged, step)
        else:
            item = _item(of_merged, step)
            position = _position(place, field, item, step)
            if position is None and place is not None:
                return None  # An item of ours in a list that the user adds to.
            if position is None:
                break
            written += f"[{position}]"
            found = place[position]
            of_merged = item
        depth += found is not None
        place = found
    # `metadata` and `spec` themselves are no one's in particular.
    return written if depth > 1 else None


def _steps(path: str) -> Iterator[Step]:
    for field, bracket in STEP.findall(path):
        if field:
            yield field
        elif bracket.isdecimal():
            yield int(bracket)
        else:
            yield {name: value.strip('"') for name, value in KEY.findall(bracket)}


def _field(place: Any, name: str) -> Any:
    return place.get(name) if isinstance(place, dict) else None


def _item(items: Any, step: int | Mapping[str, str]) -> Any:
    """The item of a merged list that a step means."""
    if not isinstance(items, list):
        return None
    if isinstance(step, int):
        return items[step] if step < len(items) else None
    for item in items:
        if isinstance(item, dict) and all(
            str(item.get(name, KEY_DEFAULTS.get(name))) == value for name, value in step.items()
        ):
            return item
    return None


def _position(place: Any, field: str, item: Any, step: int | Mapping[str, str]) -> int | None:
    """Where the user's list has the item that the merged one has."""
    if not isinstance(place, list):
        return None
    keys = MERGE_KEYS.get(field)
    if keys is None:
        return step if isinstance(step, int) and step < len(place) else None
    if not isinstance(item, dict):
        return None
    wanted = identity(item, keys)
    for position, each in enumerate(place):
        if isinstance(each, dict) and identity(each, keys) == wanted:
            return position
    return None
