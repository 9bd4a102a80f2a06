"""The definition's fields against the types that read them, and what it promises about itself."""

import re
import runpy
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from fastgen_api.spec import KubernetesObject, Quantity, Spec

ROOT = Path(__file__).resolve().parents[2]
reference = runpy.run_path(str(ROOT / "docs/api_reference.py"))
schema = reference["read_definition"]()
spec_schema = schema["properties"]["spec"]
spec_fields = list(reference["fields"](spec_schema, "spec"))
status_fields = list(reference["fields"](schema["properties"]["status"], "status"))


def without_none(annotation: Any) -> Any:
    """`T` of `T | None`."""
    if get_origin(annotation) in (Union, UnionType):
        kept = [part for part in get_args(annotation) if part is not type(None)]
        return kept[0] if len(kept) == 1 else Union[tuple(kept)]  # noqa: UP007
    return annotation


def differences(annotation: Any, found: dict[str, Any], path: str) -> Iterator[str]:
    """Where a type of fastgen_api.spec and the schema of the same field part."""
    annotation = without_none(annotation)
    if annotation == KubernetesObject:
        if found.get("type") != "object":
            yield f"{path}: a Kubernetes object there, {found.get('type')} here"
    elif set(get_args(annotation)) == set(get_args(Quantity)):
        if not found.get("x-kubernetes-int-or-string"):
            yield f"{path}: int or string there, {found.get('type')} here"
    elif get_origin(annotation) is tuple:
        yield from differences(get_args(annotation)[0], found.get("items", {}), f"{path}[]")
    elif get_origin(annotation) is dict:
        yield from differences(get_args(annotation)[1], found["additionalProperties"], f"{path}.*")
    elif issubclass(annotation, msgspec.Struct):
        yield from struct_differences(annotation, found, path)
    elif issubclass(annotation, StrEnum):
        if found.get("enum") != [str(member) for member in annotation]:
            yield f"{path}: {list(annotation)} there, {found.get('enum')} here"
    elif found.get("type") != {int: "integer", str: "string", bool: "boolean"}[annotation]:
        yield f"{path}: {annotation} there, {found.get('type')} here"


def struct_differences(
    struct: type[msgspec.Struct], found: dict[str, Any], path: str
) -> Iterator[str]:
    """The same for a struct: its fields, and which of them are required."""
    known = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    properties = found.get("properties", {})
    if known.keys() != properties.keys():
        yield f"{path}: only one side has {sorted(known.keys() ^ properties.keys())}"
    required = {name for name, field in known.items() if field.required}
    if required != set(found.get("required", ())):
        yield f"{path}: {required} required there, {found.get('required')} here"
    for name in known.keys() & properties.keys():
        yield from differences(known[name].type, properties[name], f"{path}.{name}")


def test_types_and_definition_have_the_same_fields() -> None:
    assert list(differences(Spec, spec_schema, "spec")) == []


def test_differences_are_found() -> None:
    class Other(msgspec.Struct, rename="camel"):
        source: int
        served_name: str
        new_field: bool = False

    found = "\n".join(differences(Other, spec_schema["properties"]["model"], "m"))
    assert "newField" in found
    assert "m.source: <class 'int'>" in found
    assert "required there" in found


def test_descriptions_tell_the_defaults_of_the_types() -> None:
    told = {field.path: reference["meaning_and_default"](field.schema)[1] for field in spec_fields}
    for path, default in reference["spec_defaults"]().items():
        assert told[path].removesuffix(" (its own)") == default, path


def test_every_field_is_described() -> None:
    for field in (*spec_fields, *status_fields):
        description = field.schema.get("description", "")
        assert description.endswith("."), f"{field.path}: {description!r}"


def test_every_field_of_the_spec_is_bounded() -> None:
    """Without bounds nobody knows what a rule costs the API server, or a resource etcd."""
    for field in spec_fields:
        for found in (field.schema, field.schema.get("items", {})):
            if found.get("type") == "string" or found.get("x-kubernetes-int-or-string"):
                assert "enum" in found or "maxLength" in found, field.path
            if found.get("type") == "array":
                assert "maxItems" in found, field.path
                assert "x-kubernetes-list-type" in found, field.path
            if "additionalProperties" in found:
                assert "maxProperties" in found, field.path


def test_every_rule_names_the_field_and_one_line_is_enough() -> None:
    for field in spec_fields:
        for rule in reference["rules"](field.schema):
            assert field.path in rule["message"], rule
            assert len(rule["message"]) <= 300
    for rule in reference["rules"](schema):
        assert rule["message"].startswith(("metadata.name", "spec.balancer.routes"))


def test_enums_are_pascal_case() -> None:
    for field in spec_fields:
        for value in field.schema.get("enum", ()):
            assert isinstance(value, int) or re.fullmatch(r"[A-Z][A-Za-z0-9]*", value), field.path
