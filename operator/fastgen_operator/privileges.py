"""Refuses pod templates that ask for more than the operator's settings allow.

What is unprivileged is said by the restricted Pod Security Standard, and by some rules of our own:
a replica stays where the scheduler puts it and talks to no API server.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, Final

from fastgen_api.spec import KubernetesObject
from fastgen_operator.merge import TemplateError
from fastgen_operator.template_path import their_path

CONTAINERS: Final = ("initContainers", "containers")
HOST_FIELDS: Final = ("hostNetwork", "hostPID", "hostIPC")
VOLUME_TYPES: Final = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
     "projected", "secret"}
)  # fmt: skip
SECCOMP_TYPES: Final = ("RuntimeDefault", "Localhost")
SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t",
                        "container_engine_t")  # fmt: skip
SYSCTLS: Final = frozenset(
    {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range",
     "net.ipv4.ip_local_reserved_ports", "net.ipv4.ip_unprivileged_port_start",
     "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
     "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_rmem",
     "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem"}
)  # fmt: skip
APPARMOR_ANNOTATION: Final = "container.apparmor.security.beta.kubernetes.io/"
PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")


class Allowed(StrEnum):
    """Which pod templates are taken."""

    ANY = "Any"
    """Whatever the API server takes."""
    UNPRIVILEGED = "Unprivileged"
    NONE = "None"


class PrivilegeError(TemplateError):
    """`spec.podTemplate` asks for more than is allowed; the message names the field."""

    reason = "PodTemplateForbidden"


def check_privileges(
    allowed: Allowed, merged: KubernetesObject, theirs: KubernetesObject, service_account: str
) -> None:
    """Raises PrivilegeError at the first field of `theirs` that is not allowed.

    `merged`: the pod template with theirs in it. `service_account`: the one of the replicas.
    """
    if not theirs or allowed is Allowed.ANY:
        return
    because = f"the administrator of this operator has set podTemplate.allow to {allowed}"
    if allowed is Allowed.NONE:
        raise PrivilegeError(f"spec.podTemplate is not allowed: {because}; remove it")
    for path in privileges(merged, service_account):
        where = their_path(path, merged, theirs)
        raise PrivilegeError(
            f"spec.podTemplate{path if where is None else where} is not allowed: {because}; keep "
            "to the restricted Pod Security Standard and the replicas' own ServiceAccount"
        )


def privileges(template: KubernetesObject, service_account: str) -> Iterator[str]:
    """Paths below the pod template of what asks for more, the field itself last.

    `service_account`: the one that the replicas have anyway. A path may name a field that is not
    there and would have to be.
    """
    pod = template["spec"]
    yield from _of_annotations(template["metadata"])
    yield from _of_identity(pod, service_account)
    for field in HOST_FIELDS:
        if pod.get(field):
            yield f".spec.{field}"
    pod_context = _map(pod, "securityContext")
    yield from _of_context(pod_context, ".spec.securityContext")
    for position, sysctl in _items(pod_context, "sysctls"):
        if str(sysctl.get("name")) not in SYSCTLS:
            yield f".spec.securityContext.sysctls[{position}]"
    for position, volume in _items(pod, "volumes"):
        path = f".spec.volumes[{position}]"
        yield from (f"{path}.{kind}" for kind in volume if kind not in {"name", *VOLUME_TYPES})
        for number, source in _items(_map(volume, "projected"), "sources"):
            if "serviceAccountToken" in source:
                yield f"{path}.projected.sources[{number}].serviceAccountToken"
    for field in CONTAINERS:
        for position, container in _items(pod, field):
            yield from _of_container(container, pod_context, f".spec.{field}[{position}]")


def _of_annotations(metadata: Mapping[str, Any]) -> Iterator[str]:
    for name, value in _map(metadata, "annotations").items():
        allowed = value == "runtime/default" or str(value).startswith("localhost/")
        if name.startswith(APPARMOR_ANNOTATION) and not allowed:
            yield f'.metadata.annotations["{name}"]'


def _of_identity(pod: Mapping[str, Any], service_account: str) -> Iterator[str]:
    for field in ("serviceAccountName", "serviceAccount"):
        if pod.get(field, service_account) != service_account:
            yield f".spec.{field}"
    if pod.get("automountServiceAccountToken") is not False:
        yield ".spec.automountServiceAccountToken"
    if pod.get("nodeName"):
        yield ".spec.nodeName"


def _of_container(
    container: Mapping[str, Any], pod_context: Mapping[str, Any], path: str
) -> Iterator[str]:
    context = _map(container, "securityContext")
    where = f"{path}.securityContext"
    yield from _of_context(context, where)
    if context.get("privileged"):
        yield f"{where}.privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{where}.allowPrivilegeEscalation"
    if context.get("procMount", "Default") != "Default":
        yield f"{where}.procMount"
    if not context.get("runAsNonRoot", pod_context.get("runAsNonRoot")):
        yield f"{where}.runAsNonRoot"
    if "seccompProfile" not in context and "seccompProfile" not in pod_context:
        yield f"{where}.seccompProfile"
    capabilities = _map(context, "capabilities")
    if "ALL" not in _list(capabilities, "drop"):
        yield f"{where}.capabilities.drop"
    if any(each != "NET_BIND_SERVICE" for each in _list(capabilities, "add")):
        yield f"{where}.capabilities.add"
    for position, port in _items(container, "ports"):
        if port.get("hostPort"):
            yield f"{path}.ports[{position}].hostPort"
    yield from _of_handlers(container, path)


def _of_context(context: Mapping[str, Any], path: str) -> Iterator[str]:
    """What the security contexts of pods and of containers have in common."""
    if context.get("runAsNonRoot") is False:
        yield f"{path}.runAsNonRoot"
    if context.get("runAsUser") == 0:
        yield f"{path}.runAsUser"
    profiles = (("seccompProfile", SECCOMP_TYPES), ("appArmorProfile", SECCOMP_TYPES))
    for field, allowed in profiles:
        if field in context and _map(context, field).get("type") not in allowed:
            yield f"{path}.{field}.type"
    if _map(context, "windowsOptions").get("hostProcess"):
        yield f"{path}.windowsOptions.hostProcess"
    selinux = _map(context, "seLinuxOptions")
    if selinux.get("type", "") not in SELINUX_TYPES:
        yield f"{path}.seLinuxOptions.type"
    for field in ("user", "role"):
        if selinux.get(field):
            yield f"{path}.seLinuxOptions.{field}"


def _of_handlers(container: Mapping[str, Any], path: str) -> Iterator[str]:
    """Probes and hooks that make the kubelet call another host."""
    handlers = [(f"{path}.{probe}", _map(container, probe)) for probe in PROBES]
    lifecycle = _map(container, "lifecycle")
    handlers += [(f"{path}.lifecycle.{hook}", _map(lifecycle, hook)) for hook in lifecycle]
    for where, handler in handlers:
        for action in ("httpGet", "tcpSocket"):
            if _map(handler, action).get("host"):
                yield f"{where}.{action}.host"


def _map(place: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = place.get(field)
    return found if isinstance(found, dict) else {}


def _list(place: Mapping[str, Any], field: str) -> list[Any]:
    found = place.get(field)
    return found if isinstance(found, list) else []


def _items(place: Mapping[str, Any], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, item in enumerate(_list(place, field)):
        if isinstance(item, dict):
            yield position, item
