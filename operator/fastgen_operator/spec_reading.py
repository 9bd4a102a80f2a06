"""Reads a spec as it is stored."""

from typing import Final

import msgspec

from fastgen_api import spec as api
from fastgen_api.nesting import MOST_LEVELS, is_too_deep
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.observed import Problem

INVALID_SPEC: Final = "InvalidSpec"


def read_spec(raw: KubernetesObject) -> Spec | Problem:
    """A stored spec, or what is wrong with it.

    The API server validates, but not what was stored under an older schema.
    """
    if is_too_deep(raw):
        return Problem(INVALID_SPEC, f"spec is nested deeper than {MOST_LEVELS} levels")
    try:
        return api.parse(raw)
    except msgspec.ValidationError as error:
        return Problem(INVALID_SPEC, str(error).replace("`$.", "`spec.").replace("`$`", "`spec`"))
