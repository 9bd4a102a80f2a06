"""FastGenDeployments of a namespace `team` that have to do with one another, for pure functions."""

from typing import Any

from fastgen_api.spec import KubernetesObject


def deployment(
    name: str,
    balancer: str = "",
    /,
    *targets: str,
    created: int = 0,
    generation: int = 1,
    edge: dict[str, Any] | None = None,
    **spec: Any,
) -> KubernetesObject:
    """As the API server holds it: created at this second, with a route to each of the targets.

    `edge`: more of spec.balancer; `spec`: more of the spec.
    """
    routes = [
        {"match": {"minPromptTokens": number}, "deployment": target}
        for number, target in enumerate(targets, start=1)
    ]
    return {
        "apiVersion": "fastgen.dev/v1alpha1",
        "kind": "FastGenDeployment",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "generation": generation,
            "creationTimestamp": f"2026-01-01T00:00:{created:02}Z",
        },
        "spec": {
            "model": {"source": "file:///models/a.gguf"},
            "balancer": {"name": balancer, "routes": routes} | (edge or {}),
        }
        | spec,
    }
