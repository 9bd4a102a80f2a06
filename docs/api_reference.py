"""Writes the tables of api-reference.md: `python docs/api_reference.py`.

Fields, types and meanings come from the CustomResourceDefinition, defaults from fastgen_api.spec,
and what is not supported yet from the rules that refuse it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec
import yaml

from fastgen_api.spec import ScalingPolicy, Spec

REPOSITORY: Final = Path(__file__).resolve().parents[1]
DEFINITION: Final = REPOSITORY / "crds" / "fastgendeployments.fastgen.dev.yaml"
PAGE: Final = REPOSITORY / "docs" / "api-reference.md"
BEGIN: Final = "<!-- From here on written by docs/api_reference.py. -->\n"

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Field:
    """One field of the resource."""

    path: str
    """Such as `spec.tolerations[].key`."""
    schema: Schema
    required: bool


def read_definition() -> Schema:
    """The schema of the one version that the definition serves."""
    definition = yaml.safe_load(DEFINITION.read_text())
    (version,) = definition["spec"]["versions"]
    return dict(version["schema"]["openAPIV3Schema"])


def rules(schema: Schema) -> list[dict[str, str]]:
    """CEL rules that sit at this schema itself."""
    return list(schema.get("x-kubernetes-validations", []))


def fields(schema: Schema, path: str) -> Iterator[Field]:
    """All fields below `schema`, parents first."""
    for name, child in schema.get("properties", {}).items():
        found = Field(
            path=f"{path}.{name}",
            schema=child,
            required=name in schema.get("required", ()),
        )
        yield found
        yield from fields(child, found.path)
        yield from fields(child.get("items", {}), f"{found.path}[]")


def default_text(value: object) -> str:
    """A default of fastgen_api.spec as descriptions write it; empty when there is none."""
    if value is None or value == {} or value == () or isinstance(value, msgspec.Struct):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(default_text(item) or _policy_text(item) for item in value)}]"
    is_plain = isinstance(value, int) or (isinstance(value, str) and value[:1].isalpha())
    return str(value) if is_plain else f'"{value}"'


def _policy_text(policy: ScalingPolicy) -> str:
    return f"{policy.type} {policy.value} per {policy.period_seconds} s"


def spec_defaults() -> dict[str, str]:
    """Path to default, for the fields of fastgen_api.spec that have one."""
    return dict(_defaults(Spec, "spec"))


def nested_struct(annotation: Any) -> type[msgspec.Struct] | None:
    """The struct that a field holds: itself, or none, or a tuple of it."""
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, msgspec.Struct):
            return candidate
    return None


def _defaults(struct: type[msgspec.Struct], path: str) -> Iterator[tuple[str, str]]:
    for field in msgspec.structs.fields(struct):
        child = f"{path}.{field.encode_name}"
        if field.default is not msgspec.NODEFAULT and (text := default_text(field.default)):
            yield child, text
        if nested := nested_struct(field.type):
            yield from _defaults(nested, child + "[]" * (get_origin(field.type) is tuple))


def meaning_and_default(schema: Schema) -> tuple[str, str]:
    """A description, parted from the sentence `Default: ….` that may end it."""
    meaning, _, default = schema.get("description", "").partition("Default: ")
    return meaning.strip(), default.removesuffix(".")


def type_text(schema: Schema) -> str:
    """The type as a reader wants it, with its bounds."""
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "number or percentage" if "%" in schema.get("pattern", "") else "quantity"
    if schema["type"] == "array":
        return f"list of {type_text(schema['items'])}"
    if isinstance(values := schema.get("additionalProperties"), dict):
        return f"map of {type_text(values)}"
    if "minimum" in schema and "maximum" in schema:
        return f"{schema['type']}, {schema['minimum']:,} to {schema['maximum']:,}"
    return str(schema["type"])


def spec_table(schema: Schema) -> str:
    """One row for each field of the spec."""
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for field in fields(schema["properties"]["spec"], "spec"):
        meaning, default = meaning_and_default(field.schema)
        default = "required" if field.required else default
        name = f"`{field.path.removeprefix('spec.')}`"
        row = (name, type_text(field.schema), default, meaning)
        rows.append(f"| {' | '.join(row)} |")
    return "\n".join(rows)


def status_table(schema: Schema) -> str:
    """One row for each field of the status."""
    rows = ["| field | type | meaning |", "|---|---|---|"]
    for field in fields(schema["properties"]["status"], "status"):
        name = f"`{field.path.removeprefix('status.')}`"
        rows.append(f"| {name} | {type_text(field.schema)} | {field.schema['description']} |")
    return "\n".join(rows)


def rule_list(schema: Schema) -> str:
    """The messages of all rules that later versions keep, as a list."""
    spec = schema["properties"]["spec"]
    schemas = [schema, spec, *(field.schema for field in fields(spec, "spec"))]
    return "\n".join(f"* {rule['message']}" for found in schemas for rule in rules(found))


def written_part() -> str:
    """All of the page below BEGIN."""
    schema = read_definition()
    return f"""
## `spec`

{spec_table(schema)}

### Rules

The API server refuses a resource that breaks one of these, with this sentence:

{rule_list(schema)}

## `status`

{status_table(schema)}
"""


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(BEGIN)[0] + BEGIN + written_part())
