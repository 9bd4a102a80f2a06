"""Reads what an explanation rests on."""

import asyncio
import shlex
from typing import Final

from fastgen_api import names
from fastgen_api.logs import last_line
from fastgen_api.spec import KubernetesObject
from fastgen_cli.cluster_reads import NotInstalledError, Reader, Refusal
from fastgen_cli.errors import UserError
from fastgen_cli.explain_facts import Facts, Objects, balancer_of
from fastgen_cli.explain_pods import failing_container
from fastgen_cli.kubeconfig import Target

MOST_LOGS: Final = 5
"""Pods whose log is read: what they say is mostly the same."""
MOST_NAMES: Final = 20


class UnknownNameError(UserError):
    """There is no FastGenDeployment of that name; the text lists those that there are."""


async def read_facts(reader: Reader, name: str, target: Target) -> Facts:
    """Everything that a viewer of the namespace may read about the FastGenDeployment.

    What is refused becomes a sentence of `Facts.unread`. Raises UnknownNameError, NoClusterError,
    NotInstalledError and UserError when the FastGenDeployment itself may not be read.
    """
    resource = await _resource(reader, name)
    namespace, labels = reader.namespace, f"{names.DEPLOYMENT_LABEL}={name}"
    balancer = balancer_of(resource)
    about = f"involvedObject.kind={names.KIND},involvedObject.name={name}"
    questions = {
        "pods": reader.all("pods", namespace, f"{names.DEPLOYMENT_LABEL} in ({name},{balancer})"),
        "volume claims": reader.all("persistentvolumeclaims", namespace, labels),
        "HorizontalPodAutoscalers": reader.all("horizontalpodautoscalers", namespace),
        "events": reader.all("events", namespace, fields=about),
        "events of pods": reader.all("events", namespace, fields="type=Warning"),
    }
    answers = dict(zip(questions, await asyncio.gather(*questions.values()), strict=True))
    found: dict[str, Objects] = {
        what: () if isinstance(answer, Refusal) else answer for what, answer in answers.items()
    }
    # One missing right may hide several answers: it is told once.
    refusals = {
        answer.message: what for what, answer in answers.items() if isinstance(answer, Refusal)
    }
    unread = [f"{what}: {message}" for message, what in refusals.items()]
    pods = tuple(each for each in found["pods"] if _serves(each, name, balancer))
    own = {each["metadata"]["uid"] for each in found["events"]}
    warnings = (each for each in found["events of pods"] if each["metadata"]["uid"] not in own)
    last_lines, refused = await _last_lines(reader, pods)
    return Facts(
        resource=resource,
        pods=pods,
        claims=found["volume claims"],
        autoscalers=found["HorizontalPodAutoscalers"],
        events=(*found["events"], *warnings),
        last_lines=last_lines,
        unread=(*unread, *refused),
        flags=kubectl_flags(target, namespace),
    )


def _serves(pod: KubernetesObject, name: str, balancer: str) -> bool:
    """Whether a pod is one of the deployment's, or of the balancer in front of it."""
    labels = pod["metadata"]["labels"]
    is_of_balancer = labels.get(names.COMPONENT_LABEL) == names.Component.BALANCER
    return bool(labels[names.DEPLOYMENT_LABEL] == (balancer if is_of_balancer else name))


def kubectl_flags(target: Target, namespace: str) -> str:
    """What `kubectl` needs to reach the same namespace of the same cluster."""
    given = {
        "--kubeconfig": str(target.kubeconfig) if target.kubeconfig else None,
        "--context": target.context,
        "-n": namespace,
    }
    return " ".join(f"{flag} {shlex.quote(value)}" for flag, value in given.items() if value)


async def _resource(reader: Reader, name: str) -> KubernetesObject:
    namespace = reader.namespace
    found = await reader.one(names.PLURAL, namespace, name)
    if not isinstance(found, Refusal):
        return found
    if found.code != 404:
        raise UserError(
            f"FastGenDeployments of namespace {namespace} cannot be read: {found.message}. The "
            "cluster role `view` holds what is needed; ask for it, or name a namespace with -n."
        )
    here = await reader.all(names.PLURAL, namespace)
    if isinstance(here, Refusal):
        raise NotInstalledError
    everywhere = await reader.all(names.PLURAL, None)
    others = () if isinstance(everywhere, Refusal) else everywhere
    raise UnknownNameError(_unknown(name, namespace, here, others))


def _unknown(name: str, namespace: str, here: Objects, everywhere: Objects) -> str:
    """Says what there is instead."""
    said = f"No FastGenDeployment {name!r} in namespace {namespace}."
    same = [each["metadata"] for each in everywhere if each["metadata"]["name"] == name]
    if same:
        found = ", ".join(f"-n {each['namespace']}" for each in same)
        return f"{said} There is one of that name elsewhere: {found}"
    if here:
        return f"{said} There are: {_listed([each['metadata']['name'] for each in here])}"
    if everywhere:
        pairs = (each["metadata"] for each in everywhere)
        found = _listed([f"{each['name']} (-n {each['namespace']})" for each in pairs])
        return f"{said} This namespace has none; others have: {found}"
    return f"{said} There is none that you may see: `kubectl apply` one first."


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - MOST_NAMES} more" if len(found) > MOST_NAMES else ""
    return ", ".join(sorted(found)[:MOST_NAMES]) + more


async def _last_lines(reader: Reader, pods: Objects) -> tuple[dict[str, str], list[str]]:
    """The end of the logs of pods that have failed and left no message."""
    failing = [(pod, found) for pod in pods if (found := failing_container(pod))][:MOST_LOGS]
    texts = await asyncio.gather(
        *(
            reader.text(
                f"/api/v1/namespaces/{pod['metadata']['namespace']}"
                f"/pods/{pod['metadata']['name']}/log",
                {
                    "container": container.name,
                    "previous": "true" if container.ended else "false",
                    "tailLines": "5",
                },
            )
            for pod, container in failing
        )
    )
    lines: dict[str, str] = {}
    refused: list[str] = []
    for (pod, _), text in zip(failing, texts, strict=True):
        if not isinstance(text, Refusal):
            if said := last_line(text):
                lines[pod["metadata"]["name"]] = said
        elif text.is_forbidden:
            refused.append(f"logs of pods: {text.message}")
    return lines, list(dict.fromkeys(refused))
