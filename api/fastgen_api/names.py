"""The names that two rooms, or a user and a room, must agree on; those of downloads: `delivery`."""

from enum import StrEnum
from typing import Final

GROUP: Final = "fastgen.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "FastGenDeployment"
PLURAL: Final = "fastgendeployments"
SHORT_NAME: Final = "fgd"

OPERATOR_MANAGER: Final = "fastgen-operator"
"""Field manager of what the operator applies: the children and its part of the status."""
BALANCER_MANAGER: Final = "fastgen-balancer"
"""Field manager of the balancer's leader: `slo`, `lastDecision` and its two conditions."""

PAUSED_ANNOTATION: Final = f"{GROUP}/paused"
MEMO_ANNOTATION: Final = f"{GROUP}/autoscaler-memo"
"""On the Lease `memo_name`: what the autoscaler's leader remembers, for the next one. JSON."""
DECIDED_ANNOTATION: Final = f"{GROUP}/autoscaler-decided"
"""On the autoscaler's Lease: when its leader has decided last, seconds since the epoch."""

DEPLOYMENT_LABEL: Final = f"{GROUP}/deployment"
"""Label of every child: the name of the FastGenDeployment that it belongs to.

Of a balancer's pods and objects: the balancer's name, which several deployments may share.
"""
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
GATEWAYS_LABEL: Final = f"{GROUP}/gateways"
"""Label of namespaces whose pods may ask endpoint pickers, and pass requests to replicas."""
MAX_NAME_LENGTH: Final = 48
"""Longest name of a FastGenDeployment: the longest child name must stay a DNS label (63)."""


class Component(StrEnum):
    """What a child pod does."""

    REPLICA = "replica"
    BALANCER = "balancer"
    DOWNLOAD = "download"
    """Brings the model into the cache, once for all replicas."""


class Port:
    """TCP ports inside the pods and of the Services."""

    REPLICA_HTTP: Final = 8000
    REPLICA_GRPC: Final = 9000
    REPLICA_METRICS: Final = 9090
    """/metrics alone, so that who may scrape a replica may not use its API."""
    BALANCER: Final = 8080
    """Envoy's listener: HTTP/1.1, HTTP/2 and gRPC."""
    PICKER: Final = 9002
    """ext_proc and access log service; loopback only."""
    BALANCER_HTTP: Final = 9090
    """The picker's own HTTP: /metrics, /healthz, /readyz, /drain."""
    BALANCER_METRICS: Final = 9091
    """/metrics alone, so that who may scrape a balancer may not drain it."""
    BALANCER_PEERS: Final = 9092
    """What a deployment's balancer pods ask one another; nobody else may."""
    ENDPOINT_PICKER: Final = 9003
    """The endpoint-picker protocol, for gateways; of the pods and of the Service."""
    ENVOY_ADMIN: Final = 9901
    """Envoy's admin interface; loopback only."""
    SERVICE: Final = 80
    """Client Service: HTTP and gRPC."""
    SERVICE_TLS: Final = 443
    """In its place where the balancer speaks TLS."""
    OPERATOR_HTTP: Final = 8081


BALANCER_HEALTH_PATH: Final = "/healthz/envoy"
"""On `Port.BALANCER`: 200 until the balancer's drain begins; for readiness probes."""


def balancer_name(name: str) -> str:
    """Name of a balancer's Deployment, ServiceAccount, Role and RoleBinding.

    Also of the Lease of a deployment's autoscaler, which each deployment has for itself.
    """
    return f"{name}-balancer"


def memo_name(deployment: str) -> str:
    """Name of the Lease in which the leaders of a deployment's autoscaler leave their memory."""
    return f"{balancer_name(deployment)}-memo"


def replica_name(deployment: str) -> str:
    """Name of the replicas' Deployment, ServiceAccount and headless Service."""
    return f"{deployment}-replica"


def slo_config_map_name(deployment: str) -> str:
    """Name of the ConfigMap that carries the SLO to the replicas without restarting them."""
    return f"{deployment}-slo"


def download_name(deployment: str) -> str:
    """Name of the download's ServiceAccount, Role and RoleBinding."""
    return f"{deployment}-download"


def download_job_name(deployment: str, key: str) -> str:
    """Name of the Job that downloads a model; key: 8 characters that stand for the model."""
    return f"{deployment}-model-{key}"


def model_config_map_name(deployment: str) -> str:
    """Name of the ConfigMap in which the download tells how far it is (`DeliveryField`)."""
    return f"{deployment}-model"


def models_claim_name(deployment: str) -> str:
    """Name of the claim that the operator makes for downloaded models."""
    return f"{deployment}-models"


def service_name(balancer: str) -> str:
    """Name of the Service that clients use."""
    return balancer


def url(balancer: str, namespace: str, *, tls: bool = False) -> str:
    """Base URL of the balancer's OpenAI API inside the cluster; its host serves gRPC too."""
    scheme = "https" if tls else "http"
    return f"{scheme}://{service_name(balancer)}.{namespace}.svc/v1"


class Header:
    """HTTP headers, which gRPC carries as metadata. Envoy removes internal ones of clients."""

    REQUEST_ID: Final = "x-request-id"
    MODEL: Final = "x-fastgen-model"
    """Client to balancer: names the deployment, where several share the balancer."""
    DEPLOYMENT: Final = "x-fastgen-deployment"
    """Picker to Envoy: whose replicas the request goes to, where the balancer reaches several."""
    MODEL_JUDGED: Final = "x-fastgen-model-judged"
    """Balancer to replica: the request has come to the right one, whatever model it names."""
    ENDPOINT: Final = "x-fastgen-endpoint"
    """Picker to Envoy: `ip:port[,ip:port]`, in order of preference."""
    ONCE: Final = "x-fastgen-once"
    """Picker to Envoy: no retry, since the request may crash the next replica, too."""
    CLIENT: Final = "x-fastgen-client"
    """Envoy to replica: the client whose API key came with the request."""
    WAITED: Final = "x-fastgen-waited-ms"
    """Picker to replica: how long the request has waited before it was sent, milliseconds."""
    UNWITNESSED: Final = "x-fastgen-unwitnessed"
    """Picker to replica, by a gateway: no balancer hears how the request ends; count it here."""
    REPLICA: Final = "x-fastgen-replica"
    """Replica to client: the name of the pod that answers."""
    PROMPT_TOKENS: Final = "x-fastgen-prompt-tokens"
    """Replica to balancer, with the first token: from it the balancer learns tokens per byte."""


class Outcome(StrEnum):
    """How a request ended, label `outcome` of `Metric.REQUESTS`; each request is counted once."""

    GOOD = "good"
    LATE_FIRST_TOKEN = "late_first_token"
    SLOW_TOKENS = "slow_tokens"
    TOKEN_GAP = "token_gap"
    REFUSED = "refused"
    ERROR = "error"
    EXCLUDED = "excluded"
    """The client's own error or early cancellation: neither good nor bad."""


class Target(StrEnum):
    """One target of the SLO, label `target` of `Metric.TARGET_MISSES`."""

    TTFT = "ttft"
    TPOT = "tpot"
    GAP = "gap"


class Phase(StrEnum):
    """Whose work it is, label `phase` of `Metric.ARRIVED_WORK` and `Metric.DONE_WORK`."""

    PREFILL = "prefill"
    DECODE = "decode"


class MetricLabel:
    """Labels that our processes put on each of their series themselves.

    Scrape configurations differ in the target labels that they add, so queries rest on these.
    """

    DEPLOYMENT: Final = "deployment"
    NAMESPACE: Final = "deployment_namespace"


class Metric:
    """Prometheus names, as exposed (counters with `_total`)."""

    # Replicas; REQUESTS also by the balancer, for what never reached or never left a replica.
    REQUESTS: Final = "fastgen_requests_total"
    TARGET_MISSES: Final = "fastgen_slo_target_misses_total"
    SLO_TARGET: Final = "fastgen_slo_target_ratio"
    """The share of good requests that the SLO asks for."""
    TARGET_SECONDS: Final = "fastgen_slo_target_seconds"
    START_TIME: Final = "fastgen_start_time_seconds"
    TTFT: Final = "fastgen_time_to_first_token_seconds"
    TPOT: Final = "fastgen_time_per_output_token_seconds"
    TOKEN_GAP: Final = "fastgen_token_gap_seconds"
    PROMPT_TOKENS: Final = "fastgen_prompt_tokens_total"
    OUTPUT_TOKENS: Final = "fastgen_output_tokens_total"
    RUNNING_REQUESTS: Final = "fastgen_running_requests"
    WAITING_REQUESTS: Final = "fastgen_waiting_requests"
    OWED_TOKENS: Final = "fastgen_owed_tokens"
    KV_USAGE: Final = "fastgen_kv_usage_ratio"
    ARRIVED_REQUESTS: Final = "fastgen_arrived_requests_total"
    ARRIVED_WORK: Final = "fastgen_arrived_engine_seconds_total"
    DONE_WORK: Final = "fastgen_done_engine_seconds_total"
    OWED_WORK: Final = "fastgen_owed_engine_seconds"
    STEP_SECONDS: Final = "fastgen_step_seconds"
    STEP_TOKENS: Final = "fastgen_step_tokens"
    STEP_RATIO: Final = "fastgen_step_measured_to_predicted_ratio"
    BUDGET_TOKENS: Final = "fastgen_budget_tokens"
    PREEMPTIONS: Final = "fastgen_preemptions_total"
    PREFIX_QUERIES: Final = "fastgen_prefix_cache_queries_total"
    PREFIX_HITS: Final = "fastgen_prefix_cache_hits_total"
    DRAFTED_TOKENS: Final = "fastgen_drafted_tokens_total"
    ACCEPTED_TOKENS: Final = "fastgen_accepted_tokens_total"
    REQUEST_ENDS: Final = "fastgen_request_ends_total"
    QUEUE_SECONDS: Final = "fastgen_request_queue_seconds"
    PREFILL_SECONDS: Final = "fastgen_request_prefill_seconds"
    DECODE_SECONDS: Final = "fastgen_request_decode_seconds"
    # Balancer.
    QUEUED_REQUESTS: Final = "fastgen_balancer_queued_requests"
    IN_FLIGHT_REQUESTS: Final = "fastgen_balancer_in_flight_requests"
    FIRST_BYTE_SECONDS: Final = "fastgen_balancer_time_to_first_byte_seconds"
    PICKS: Final = "fastgen_balancer_picks_total"
    RETRIES: Final = "fastgen_retries_total"
    ENDPOINTS: Final = "fastgen_balancer_endpoints"
    EJECTIONS: Final = "fastgen_balancer_ejections_total"
    QUARANTINED_PROMPTS: Final = "fastgen_balancer_quarantined_prompts"
    DESIRED_REPLICAS: Final = "fastgen_autoscaler_desired_replicas"
    LEADER: Final = "fastgen_autoscaler_leader"
    DECISIONS: Final = "fastgen_autoscaler_decisions_total"
    BLOCKED_DECISIONS: Final = "fastgen_autoscaler_blocked_decisions_total"
    REVERSALS: Final = "fastgen_autoscaler_reversals_total"
    DEMAND: Final = "fastgen_autoscaler_demand_engine_seconds"
    CAPACITY: Final = "fastgen_autoscaler_capacity_engine_seconds"
    # Operator.
    RECONCILES: Final = "fastgen_operator_reconciles_total"
    RECONCILE_SECONDS: Final = "fastgen_operator_reconcile_seconds"
    QUEUED_DEPLOYMENTS: Final = "fastgen_operator_queued_deployments"
    WATCH_ENDS: Final = "fastgen_operator_watch_ends_total"
    API_REQUESTS: Final = "fastgen_operator_api_requests_total"
    KNOWN_OBJECTS: Final = "fastgen_operator_known_objects"


class Condition:
    """Types of `status.conditions`."""

    READY: Final = "Ready"
    RECONCILING: Final = "Reconciling"
    STALLED: Final = "Stalled"
    AVAILABLE: Final = "Available"
    MODEL_READY: Final = "ModelReady"
    ROLLOUT_BLOCKED: Final = "RolloutBlocked"
    CAPACITY_BLOCKED: Final = "CapacityBlocked"
    ROUTE_BLOCKED: Final = "RouteBlocked"
    """A route leads to a deployment that is not there; its requests are served without it."""
    UPGRADE_AVAILABLE: Final = "UpgradeAvailable"
    SCALING_FROZEN: Final = "ScalingFrozen"
    """Set by the operator for all at once; autoscalers heed it: they decide and change nothing."""
    FOREIGN_SCALER: Final = "ForeignScaler"
    """Somebody else's autoscaler scales one of the Deployments behind the resource's back."""
    SLO_MET: Final = "SLOMet"
    SCALING_ACTIVE: Final = "ScalingActive"


TERMINATION_MESSAGE_PATH: Final = "/dev/termination-log"
"""A replica that cannot serve writes `Reason: sentence` here, for the operator to report."""


class StartupFailure(StrEnum):
    """Reasons with which a replica's termination message may begin."""

    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    MODEL_INVALID = "ModelInvalid"
    OUT_OF_MEMORY = "OutOfMemory"
    CONFIG_INVALID = "ConfigInvalid"
    ACCESS_DENIED = "AccessDenied"
    """The server of the model wants a token, or another one."""
    DOWNLOAD_FAILED = "DownloadFailed"
    """The server cannot be reached, throttles, stalls or breaks off, for too long."""
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    CACHE_FULL = "CacheFull"
    ENGINE_FAILED = "EngineFailed"
    """The engine process ended, while it loaded the model or served, as its log tells."""
