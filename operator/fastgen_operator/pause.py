"""What is told of a FastGenDeployment while nothing of it is reconciled."""

from collections.abc import Iterable
from typing import Final

from fastgen_api import names
from fastgen_api.spec import KubernetesObject
from fastgen_operator.children import Id, id_of
from fastgen_operator.observed import Observed, Problem

PAUSED: Final = "Paused"
PAUSED_MESSAGE: Final = f"nothing is reconciled: remove the annotation {names.PAUSED_ANNOTATION}"
AFTERWARDS: Final = "Job"
"""Kind of what does its work once and may be gone."""


def missing_children(children: Iterable[KubernetesObject], observed: Observed) -> tuple[Id, ...]:
    """Those of the declared children that somebody has taken away."""
    declared = map(id_of, children)
    return tuple(
        each for each in declared if each not in observed.children and each[0] != AFTERWARDS
    )


def paused_problem(missing: Iterable[Id] = ()) -> Problem:
    """Why a paused deployment is not as declared."""
    lost = ", ".join(" ".join(each) for each in missing)
    return Problem(PAUSED, f"missing: {lost}; {PAUSED_MESSAGE}" if lost else PAUSED_MESSAGE)
