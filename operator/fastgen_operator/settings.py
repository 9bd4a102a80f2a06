"""What the operator is told by its environment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from fastgen_api.names import Port
from fastgen_operator.privileges import Allowed

PULL_POLICIES = ("Always", "IfNotPresent", "Never")
SWITCH = ("true", "false")
WATCH_SILENCE_SECONDS = 75
"""The API server sends a bookmark each minute."""
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@dataclass(frozen=True, slots=True)
class Images:
    """The images that the children run."""

    runtime: str
    """Of replicas whose resource names none."""
    control: str
    """Of balancer pods."""
    envoy: str = ""
    """Of the balancer's Envoy container; empty: the Envoy inside the control image."""
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in the resource's own namespace; the operator never reads them."""


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """What each deployment gets for a Prometheus operator."""

    enabled: bool = True
    """Whether it gets a PodMonitor and a PrometheusRule, where the cluster knows these kinds."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of both, by which a Prometheus selects them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All that an operator process can be told."""

    images: Images
    namespaces: tuple[str, ...] = ()
    """Namespaces that are watched; empty: all."""
    prometheus_url: str = ""
    """Where balancers read metrics when their resource names no Prometheus."""
    hub_endpoint: str = ""
    """Where downloads find the Hugging Face Hub or a mirror of it; empty: the public one."""
    download_environment: Mapping[str, str] = field(default_factory=dict)
    """More environment variables of downloads, such as HTTPS_PROXY."""
    pod_templates: Allowed = Allowed.ANY
    """Which `spec.podTemplate` is taken."""
    monitoring: MonitoringSettings = MonitoringSettings()
    metric_aliases: str = ""
    """Under whose names new replicas tell their load as well: vllm, or nobody's."""
    network_policies: bool = True
    """Whether each deployment gets NetworkPolicies."""
    scaling_frozen: bool = False
    """No autoscaler changes replicas: the lever for an incident of the whole fleet."""
    log_level: str = "INFO"
    identity: str = "fastgen-operator"
    """Source of the Kubernetes events that the operator writes."""
    http_port: int = field(default=Port.OPERATOR_HTTP)
    watch_silence_seconds: int = WATCH_SILENCE_SECONDS
    """A watch that says nothing for so long is begun anew."""


class SettingsError(ValueError):
    """An environment variable is missing or wrong; the message names it and the way out."""


def settings_from(environment: Mapping[str, str]) -> Settings:
    """Reads the settings; raises SettingsError naming the variable."""
    return Settings(
        images=Images(
            runtime=_required(environment, "FASTGEN_RUNTIME_IMAGE"),
            control=_required(environment, "FASTGEN_CONTROL_IMAGE"),
            envoy=environment.get("FASTGEN_ENVOY_IMAGE", "").strip(),
            pull_policy=_choice(
                environment, "FASTGEN_IMAGE_PULL_POLICY", "IfNotPresent", PULL_POLICIES
            ),
            pull_secrets=_names(environment.get("FASTGEN_IMAGE_PULL_SECRETS", "")),
        ),
        namespaces=_names(environment.get("FASTGEN_WATCH_NAMESPACES", "")),
        prometheus_url=environment.get("FASTGEN_PROMETHEUS_URL", "").strip(),
        hub_endpoint=environment.get("FASTGEN_HUB_ENDPOINT", "").strip(),
        download_environment=_variables(environment, "FASTGEN_DOWNLOAD_ENVIRONMENT"),
        pod_templates=Allowed(
            _choice(environment, "FASTGEN_POD_TEMPLATES", Allowed.ANY, tuple(Allowed))
        ),
        monitoring=MonitoringSettings(
            _choice(environment, "FASTGEN_MONITORING", "true", SWITCH) == "true",
            _pairs(environment, "FASTGEN_MONITORING_LABELS"),
        ),
        metric_aliases=_choice(environment, "FASTGEN_METRIC_ALIASES", "", ("", "vllm")),
        network_policies=_choice(environment, "FASTGEN_NETWORK_POLICIES", "true", SWITCH) == "true",
        scaling_frozen=_choice(environment, "FASTGEN_SCALING_FROZEN", "false", SWITCH) == "true",
        log_level=_choice(environment, "FASTGEN_LOG_LEVEL", "INFO", LOG_LEVELS),
        identity=environment.get("POD_NAME", "").strip() or "fastgen-operator",
        http_port=_port(environment, "FASTGEN_HTTP_PORT", Port.OPERATOR_HTTP),
        watch_silence_seconds=_seconds(
            environment, "FASTGEN_WATCH_SILENCE_SECONDS", WATCH_SILENCE_SECONDS
        ),
    )


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name, "").strip()
    if not value:
        raise SettingsError(f"{name} is not set: the chart sets it from its image values")
    return value


def _choice(environment: Mapping[str, str], name: str, default: str, of: tuple[str, ...]) -> str:
    value = environment.get(name, "").strip() or default
    if value not in of:
        raise SettingsError(f"{name} is {value!r}: use one of {', '.join(of)}")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _pairs(environment: Mapping[str, str], name: str) -> dict[str, str]:
    pairs = {}
    for pair in _names(environment.get(name, "")):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise SettingsError(f"{name} has {pair!r}: use KEY=VALUE, parted by commas")
        pairs[key] = value
    return pairs


def _variables(environment: Mapping[str, str], name: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(environment.get(name, "").strip() or "{}", type=dict[str, str])
    except msgspec.DecodeError as error:
        raise SettingsError(f"{name} is no JSON object of strings: {error}") from None


def _port(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip() or str(default)
    if not text.isdecimal() or int(text) > 65535:
        raise SettingsError(f"{name} is {text!r}: use a port from 0 to 65535")
    return int(text)


def _seconds(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "").strip() or str(default)
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{name} is {text!r}: use a whole number of seconds, at least 1")
    return int(text)
