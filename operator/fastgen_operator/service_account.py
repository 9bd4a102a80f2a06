"""The rights of our pods in the cluster: their API group, and the token that proves who asks."""

from typing import Final

from fastgen_api.spec import KubernetesObject

RBAC_GROUP: Final = "rbac.authorization.k8s.io"
TOKEN_DIRECTORY: Final = "/var/run/secrets/kubernetes.io/serviceaccount"


def token_volume() -> KubernetesObject:
    """A service account token as Kubernetes mounts it, for the containers that need it alone."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {
            "configMap": {
                "name": "kube-root-ca.crt",
                "items": [{"key": "ca.crt", "path": "ca.crt"}],
            }
        },
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": "token", "projected": {"sources": sources}}
