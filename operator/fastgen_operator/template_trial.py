"""Decides when a pod template is tried before it is applied, and what a refusal means."""

from typing import Final

from fastgen_api.names import Component
from fastgen_api.spec import KubernetesObject, Spec
from fastgen_operator.children import wanted_replicas
from fastgen_operator.delivery import Delivery
from fastgen_operator.fingerprint import DECLARED_ANNOTATION
from fastgen_operator.merge import their_template
from fastgen_operator.observed import Observed, Problem, deployment_of
from fastgen_operator.owner import Owner
from fastgen_operator.settings import Settings
from fastgen_operator.template_path import in_their_words

POD_TEMPLATE_REJECTED: Final = "PodTemplateRejected"


def deployment_to_try(
    owner: Owner, spec: Spec, settings: Settings, delivery: Delivery, observed: Observed
) -> KubernetesObject | None:
    """The replicas' Deployment with the user's template in it; None: there is nothing new to try.

    It is tried also while the model is on its way, and the Deployment itself not yet to be made.
    Raises merge.TemplateError as `make_children` does.
    """
    if not their_template(spec):
        return None
    wanted = wanted_replicas(owner, spec, settings, delivery)
    found = deployment_of(observed, owner.name, Component.REPLICA)
    runs_already = found is not None and _declared(found) == _declared(wanted)
    return None if runs_already else wanted


def refusal(message: str, tried: KubernetesObject, spec: Spec) -> Problem | None:
    """What an API server's refusal of `tried` says about spec.podTemplate; None: nothing."""
    told = in_their_words(message, tried["spec"]["template"], their_template(spec))
    return Problem(POD_TEMPLATE_REJECTED, told) if told != message else None


def _declared(deployment: KubernetesObject) -> str | None:
    annotations = deployment["metadata"].get("annotations") or {}
    return annotations.get(DECLARED_ANNOTATION)
