"""Which cluster kubectl would talk to, and with what credentials."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

from fastgen_cli.errors import UserError

FILE_FIELDS: Final = ("certificate-authority", "client-certificate", "client-key")
LISTS: Final = ("clusters", "contexts", "users")
EXEC_V1: Final = "client.authentication.k8s.io/v1"
EXEC_V1BETA1: Final = "client.authentication.k8s.io/v1beta1"
WAY_OUT: Final = "name one with --kubeconfig or KUBECONFIG, and check it with `kubectl get ns`"


class NoClusterError(UserError):
    """No cluster can be reached; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a person said about the cluster; `None` leaves it to the kubeconfig."""

    context: str | None = None
    namespace: str | None = None
    kubeconfig: Path | None = None


def choose(target: Target, environment: Mapping[str, str] = os.environ) -> SingleConfig:
    """Server, credentials and namespace, found where kubectl finds them.

    Inside a pod without a kubeconfig its ServiceAccount's. Raises NoClusterError.
    """
    try:
        found = _load(target, environment).get(target.context)
    except (ConfigError, OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        text = str(error) or type(error).__name__
        raise NoClusterError(f"No cluster to ask: {text.rstrip('.')}; {WAY_OUT}.") from error
    assert found is not None
    # Credentials may be none at all, as behind `kubectl proxy`.
    user = found.user or User()
    context = found.context
    if target.namespace:
        context = msgspec.structs.replace(context, namespace=target.namespace)
    return found._replace(user=user, context=context)


def _load(target: Target, environment: Mapping[str, str]) -> KubeConfig:
    if target.kubeconfig is not None:
        paths = [target.kubeconfig]
    elif listed := environment.get("KUBECONFIG"):
        paths = [Path(each) for each in listed.split(os.pathsep) if each]
    else:
        paths = [Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"]
        if not paths[0].is_file() and "KUBERNETES_SERVICE_HOST" in environment:
            return KubeConfig.from_service_account()
    there = [path for path in paths if path.is_file()]
    if not there:
        raise ConfigError(f"{', '.join(map(str, paths))} is not there")
    return KubeConfig.from_dict(merge([(path, yaml.safe_load(path.read_text())) for path in there]))


def merge(files: list[tuple[Path, Any]]) -> dict[str, Any]:
    """One kubeconfig of several, as kubectl does it: what comes first wins.

    Names of files become absolute, since each was relative to the file that held it.
    """
    merged: dict[str, Any] = {name: [] for name in LISTS}
    for path, content in files:
        if not isinstance(content, dict):
            raise ConfigError(f"{path} is not a kubeconfig")
        if current := content.get("current-context"):
            merged.setdefault("current-context", current)
        for name in LISTS:
            known = {each["name"] for each in merged[name]}
            merged[name] += [
                _rooted(each, path.absolute().parent)
                for each in content.get(name) or ()
                if each["name"] not in known
            ]
    return merged


def _rooted(entry: dict[str, Any], folder: Path) -> dict[str, Any]:
    rooted: dict[str, Any] = {}
    for name, value in entry.items():
        if name in ("cluster", "user"):
            value = dict(value or {})
            value |= {key: str(folder / value[key]) for key in FILE_FIELDS if value.get(key)}
            if value.get("exec"):
                value["exec"] = _without_input(dict(value["exec"]), folder)
        rooted[name] = value
    return rooted


def _without_input(program: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A credential program, asked in the form that the client reads; v1 differs in nothing else."""
    if os.sep in program["command"]:
        program["command"] = str(folder / program["command"])
    if program.get("apiVersion") == EXEC_V1:
        question = {"apiVersion": EXEC_V1, "kind": "ExecCredential", "spec": {"interactive": False}}
        told = {"name": "KUBERNETES_EXEC_INFO", "value": msgspec.json.encode(question).decode()}
        program |= {"apiVersion": EXEC_V1BETA1, "env": [*(program.get("env") or ()), told]}
    return program
