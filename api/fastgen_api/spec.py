"""The types of a FastGenDeployment's spec and their defaults.

The one place where camelCase meets snake_case. The CustomResourceDefinition validates; these types
only read what passed, and fill in the defaults, so that a better default reaches old resources.
A default is always something that this version does: a field left out claims no more than is true.
"""

from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

KubernetesObject: TypeAlias = dict[str, Any]
"""A Kubernetes object or a part of one, as its API serves it."""

Quantity: TypeAlias = str | int
"""A Kubernetes quantity, such as `500m` or `24Gi`."""


class _Spec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class CacheType(StrEnum):
    EMPTY_DIR = "EmptyDir"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"


class RetentionPolicy(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class DType(StrEnum):
    AUTO = "Auto"
    BFLOAT16 = "BFloat16"
    FLOAT16 = "Float16"
    FLOAT32 = "Float32"


class Quantization(StrEnum):
    AUTO = "Auto"
    NONE = "None"
    INT8 = "Int8"
    FP8 = "FP8"


class BudgetMode(StrEnum):
    AUTO = "Auto"
    FIXED = "Fixed"


class Speculation(StrEnum):
    """How tokens are guessed, to compute several of an answer in one step."""

    NONE = "None"
    PROMPT_LOOKUP = "PromptLookup"


class ScalingMode(StrEnum):
    AUTO = "Auto"
    RECOMMEND = "Recommend"
    DISABLED = "Disabled"


class Routing(StrEnum):
    PREFIX = "Prefix"
    LEAST_TOKENS = "LeastTokens"


class RolloutStrategy(StrEnum):
    AUTO = "Auto"
    SURGE = "Surge"
    IN_PLACE = "InPlace"


class SecretKeyRef(_Spec, frozen=True):
    name: str
    key: str


class Cache(_Spec, frozen=True):
    type: CacheType = CacheType.EMPTY_DIR
    size: Quantity | None = None
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ("ReadWriteOnce",)
    retention_policy: RetentionPolicy = RetentionPolicy.RETAIN
    claim_name: str | None = None


class Model(_Spec, frozen=True):
    source: str
    revision: str | None = None
    token_secret_ref: SecretKeyRef | None = None
    served_name: str | None = None
    """Default: the name of the FastGenDeployment."""
    cache: Cache = Cache()


class TokenBudget(_Spec, frozen=True):
    mode: BudgetMode = BudgetMode.AUTO
    max_tokens: int | None = None
    """Default: `most_step_tokens`."""


class Engine(_Spec, frozen=True):
    dtype: DType = DType.AUTO
    quantization: Quantization = Quantization.AUTO
    tensor_parallel_size: int = 1
    max_model_length: int | None = None
    """Default: the model's own."""
    max_concurrent_requests: int = 256
    kv_block_size: int = 64
    token_budget: TokenBudget = TokenBudget()
    prefix_caching: bool = True
    speculation: Speculation = Speculation.NONE
    memory_percent: int = 90


class TimeToFirstToken(_Spec, frozen=True):
    milliseconds: int
    per_prompt_token_microseconds: int = 0


class TimePerOutputToken(_Spec, frozen=True):
    milliseconds: int


class TokenGap(_Spec, frozen=True):
    max_milliseconds: int


class SLO(_Spec, frozen=True):
    """A request is good when it holds all the targets that are set."""

    target_percent: str = "99"
    time_to_first_token: TimeToFirstToken | None = None
    time_per_output_token: TimePerOutputToken | None = None
    token_gap: TokenGap | None = None


class ScaleToZero(_Spec, frozen=True):
    idle_seconds: int = 900
    hold_seconds: int = 600


class Prometheus(_Spec, frozen=True):
    url: str | None = None
    """Default: the operator's."""


class ScalingPolicy(_Spec, frozen=True):
    """One policy of autoscaling/v2 HPAScalingRules."""

    type: str
    value: int
    period_seconds: int


class ScalingRules(_Spec, frozen=True):
    """autoscaling/v2 HPAScalingRules of the upward direction, and what both are resolved to."""

    stabilization_window_seconds: int = 0
    select_policy: str = "Max"
    """Max, Min or Disabled."""
    policies: tuple[ScalingPolicy, ...] = (
        ScalingPolicy(type="Percent", value=100, period_seconds=15),
        ScalingPolicy(type="Pods", value=4, period_seconds=15),
    )
    tolerance: Quantity | None = None


class ScaleDownRules(_Spec, frozen=True):
    """HPAScalingRules of the downward direction; window None: it follows the cold start."""

    stabilization_window_seconds: int | None = None
    select_policy: str = "Max"
    policies: tuple[ScalingPolicy, ...] = (
        ScalingPolicy(type="Percent", value=100, period_seconds=15),
    )
    tolerance: Quantity | None = None


class Behavior(_Spec, frozen=True):
    """autoscaling/v2 HorizontalPodAutoscalerBehavior, but for the window of scaling down."""

    scale_up: ScalingRules = ScalingRules()
    scale_down: ScaleDownRules = ScaleDownRules()


class Scaling(_Spec, frozen=True):
    mode: ScalingMode = ScalingMode.AUTO
    min_replicas: int = 1
    max_replicas: int = 1
    scale_to_zero: ScaleToZero = ScaleToZero()
    prometheus: Prometheus = Prometheus()
    behavior: Behavior = Behavior()


class HeaderMatch(_Spec, frozen=True):
    name: str
    value: str


class RouteMatch(_Spec, frozen=True):
    header: HeaderMatch | None = None
    min_prompt_tokens: int | None = None


class Route(_Spec, frozen=True):
    match: RouteMatch
    deployment: str


class SecretRef(_Spec, frozen=True):
    """A Secret of the same namespace; pods mount it, the operator never reads it."""

    secret_name: str


class Balancer(_Spec, frozen=True):
    name: str = ""
    replicas: int = 2
    routing: Routing = Routing.PREFIX
    max_queued_requests: int = 1000
    routes: tuple[Route, ...] = ()
    api_keys: SecretRef | None = None
    """Default: everybody is served."""
    tls: SecretRef | None = None
    """Default: no TLS."""
    endpoint_picker: bool = False


class Rollout(_Spec, frozen=True):
    strategy: RolloutStrategy = RolloutStrategy.AUTO
    max_surge: int | str = 1
    max_unavailable: int | str = 0
    progress_deadline_seconds: int = 1800
    drain_seconds: int = 120


class Resources(_Spec, frozen=True):
    limits: dict[str, Quantity] = {}
    requests: dict[str, Quantity] = {}


class PodTemplate(_Spec, frozen=True):
    metadata: KubernetesObject = {}
    spec: KubernetesObject = {}


class Spec(_Spec, frozen=True):
    """The spec of a FastGenDeployment."""

    model: Model
    engine: Engine = Engine()
    slo: SLO = SLO()
    replicas: int = 1
    scaling: Scaling = Scaling()
    balancer: Balancer = Balancer()
    rollout: Rollout = Rollout()
    resources: Resources = Resources()
    image: str | None = None
    image_pull_secrets: tuple[KubernetesObject, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[KubernetesObject, ...] = ()
    affinity: KubernetesObject | None = None
    topology_spread_constraints: tuple[KubernetesObject, ...] = ()
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    shared_memory: Quantity | None = None
    """Size of /dev/shm."""
    pod_template: PodTemplate = PodTemplate()


def parse(raw: KubernetesObject) -> Spec:
    """Reads `spec` as the API server holds it.

    Raises msgspec.ValidationError, which names the field's path, when a resource was stored under
    an older schema and no longer fits.
    """
    return msgspec.convert(raw, Spec)


def most_step_tokens(mode: BudgetMode, given: int | None) -> int:
    """Most tokens of a step: as given, or by default SplitFuse's constant, and more with Auto,
    which goes there only while no stream has to wait for it."""
    if given is not None:
        return given
    return 512 if mode is BudgetMode.FIXED else 2048


def slo_json(slo: SLO) -> str:
    """The SLO as JSON in the resource's own form, for `fastgen-runtime --slo-file`."""
    return msgspec.json.encode(slo).decode()


def slo_from_json(text: str | bytes) -> SLO:
    """Reads `slo_json`'s output; raises msgspec.ValidationError naming the field."""
    return msgspec.json.decode(text, type=SLO)
