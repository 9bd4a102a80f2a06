"""The balancer's edge: its Service, and API keys, TLS and the endpoint picker in its pods."""

from typing import Final

from fastgen_api import names
from fastgen_api.names import Component, Port
from fastgen_api.spec import Balancer, KubernetesObject
from fastgen_operator.owner import selector_labels
from fastgen_operator.party import Party

API_KEYS: Final = "api-keys"
API_KEYS_DIRECTORY: Final = "/etc/fastgen/api-keys"
TLS: Final = "tls"
TLS_DIRECTORY: Final = "/etc/fastgen/tls"
TLS_FILES: Final = ("tls.crt", "tls.key")
ENDPOINT_PICKER: Final = "endpoint-picker"
GROUP_READS: Final = 0o440
"""The pod's group, which is our user's, reads what is mounted."""


def listener_name(balancer: Balancer) -> str:
    """Name of the listener's port, in the pod and in the Service.

    Another protocol has another name, so that a Service in the middle of a change sends nobody to
    pods that speak the one before.
    """
    return "https" if balancer.tls else "http"


def client_service(party: Party) -> KubernetesObject:
    """The Service that clients, and gateways, use."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": party.metadata(names.service_name(party.name)),
        "spec": {
            "type": "ClusterIP",
            "selector": selector_labels(party.identity, Component.BALANCER),
            "ports": _service_ports(party.edge),
        },
    }


def _service_ports(balancer: Balancer) -> list[KubernetesObject]:
    name = listener_name(balancer)
    # Envoy speaks HTTP/1.1 here as well; a gateway must be told that it may speak HTTP/2, without
    # which gRPC does not pass. With TLS both sides tell each other.
    port = _service_port(
        name,
        Port.SERVICE_TLS if balancer.tls else Port.SERVICE,
        "https" if balancer.tls else "kubernetes.io/h2c",
    )
    if not balancer.endpoint_picker:
        return [port]
    protocol = "https" if balancer.tls else "kubernetes.io/h2c"
    return [port, _service_port(ENDPOINT_PICKER, Port.ENDPOINT_PICKER, protocol)]


def _service_port(name: str, port: int, protocol: str) -> KubernetesObject:
    return {
        "name": name,
        "port": port,
        "targetPort": name,
        "protocol": "TCP",
        "appProtocol": protocol,
    }


def picker_ports(balancer: Balancer) -> list[KubernetesObject]:
    """Ports of the picker's container that the edge adds."""
    if not balancer.endpoint_picker:
        return []
    port = Port.ENDPOINT_PICKER
    return [{"name": ENDPOINT_PICKER, "containerPort": port, "protocol": "TCP"}]


def listener_probe(balancer: Balancer) -> KubernetesObject:
    """How the kubelet asks the listener, in a probe's httpGet."""
    scheme = {"scheme": "HTTPS"} if balancer.tls else {}
    return {"port": listener_name(balancer)} | scheme


def bootstrap_arguments(balancer: Balancer) -> list[str]:
    """What `fastgen-balancer bootstrap` is told of the edge."""
    tls = [f"--tls={TLS_DIRECTORY}"] if balancer.tls else []
    return [*_keys_argument(balancer), *tls]


def picker_arguments(balancer: Balancer) -> list[str]:
    """What `fastgen-balancer picker` is told of the edge."""
    arguments = _keys_argument(balancer)
    if balancer.endpoint_picker:
        arguments += [f"--endpoint-picker-port={Port.ENDPOINT_PICKER}"]
        arguments += [f"--endpoint-picker-tls={TLS_DIRECTORY}"] if balancer.tls else []
    return arguments


def _keys_argument(balancer: Balancer) -> list[str]:
    return [f"--api-keys={API_KEYS_DIRECTORY}"] if balancer.api_keys else []


def bootstrap_mounts(balancer: Balancer) -> list[KubernetesObject]:
    """Volumes of the bootstrap container: the keys, from which it writes Envoy's first file."""
    return _keys_mount(balancer)


def envoy_mounts(balancer: Balancer) -> list[KubernetesObject]:
    """Volumes of the Envoy container: the certificate, which it reads itself."""
    return _tls_mount(balancer)


def picker_mounts(balancer: Balancer) -> list[KubernetesObject]:
    """Volumes of the picker container: the keys that it follows, and its own certificate."""
    return _keys_mount(balancer) + (_tls_mount(balancer) if balancer.endpoint_picker else [])


def _keys_mount(balancer: Balancer) -> list[KubernetesObject]:
    return _mount(API_KEYS, API_KEYS_DIRECTORY) if balancer.api_keys else []


def _tls_mount(balancer: Balancer) -> list[KubernetesObject]:
    return _mount(TLS, TLS_DIRECTORY) if balancer.tls else []


def _mount(name: str, path: str) -> list[KubernetesObject]:
    return [{"name": name, "mountPath": path, "readOnly": True}]


def shared_directory(balancer: Balancer) -> KubernetesObject:
    """Source of the volume of the files that the containers leave for one another.

    With API keys it lies in memory: a Secret's content belongs on no node's disk.
    """
    if balancer.api_keys:
        return {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}
    return {"emptyDir": {}}


def secret_volumes(balancer: Balancer) -> list[KubernetesObject]:
    """The Secrets, by name: a pod waits for one that is missing, and serves nobody unguarded."""
    volumes = []
    if balancer.api_keys:
        secret = {"secretName": balancer.api_keys.secret_name, "defaultMode": GROUP_READS}
        volumes.append({"name": API_KEYS, "secret": secret})
    if balancer.tls:
        items = [{"key": name, "path": name} for name in TLS_FILES]
        secret = {
            "secretName": balancer.tls.secret_name,
            "defaultMode": GROUP_READS,
            "items": items,
        }
        volumes.append({"name": TLS, "secret": secret})
    return volumes


def declared_edge(balancer: Balancer) -> tuple[str, ...]:
    """What of the edge changes the balancer's pods, for their fingerprint; nothing by default."""
    declared = []
    if balancer.api_keys:
        declared.append(f"{API_KEYS}={balancer.api_keys.secret_name}")
    if balancer.tls:
        declared.append(f"{TLS}={balancer.tls.secret_name}")
    if balancer.endpoint_picker:
        declared.append(ENDPOINT_PICKER)
    return tuple(declared)
