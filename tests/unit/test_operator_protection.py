"""What surrounds the pods: budgets, policies, placement, probes, shared memory."""

from typing import Any

import msgspec
import pytest

from fastgen_api.spec import Engine, Model, Resources, Rollout, Spec
from fastgen_operator.children import make_children
from fastgen_operator.delivery import Delivered, Delivery
from fastgen_operator.drift import keep_template
from fastgen_operator.owner import Owner
from fastgen_operator.probes import LONGEST_SECONDS, startup_seconds
from fastgen_operator.protection import replicas_that_may_miss
from fastgen_operator.settings import Images, Settings, settings_from

SETTINGS = Settings(Images("runtime:1", "control:1"))
OWNER = Owner("chat", "team", "uid-1")
SPEC = Spec(Model("file:///models/a.gguf"))


def children(spec: Spec = SPEC, settings: Settings = SETTINGS, **more: Any) -> dict[Any, Any]:
    made = make_children(OWNER, spec, settings, **more)
    return {(child["kind"], child["metadata"]["name"]): child for child in made}


def template(spec: Spec = SPEC, **more: Any) -> Any:
    return children(spec, **more)["Deployment", "chat-replica"]["spec"]["template"]


def with_(**fields: Any) -> Spec:
    return msgspec.structs.replace(SPEC, **fields)


@pytest.mark.parametrize(
    ("max_unavailable", "wanted"),
    [(0, 1), ("0%", 1), (1, 1), (3, 3), ("25%", "25%"), ("100%", "100%")],
)
def test_as_many_replicas_may_be_evicted_as_a_rollout_takes_and_never_none(
    max_unavailable: int | str, wanted: int | str
) -> None:
    assert replicas_that_may_miss(Rollout(max_unavailable=max_unavailable)) == wanted
    made = children(with_(rollout=Rollout(max_unavailable=max_unavailable)))
    assert made["PodDisruptionBudget", "chat-replica"]["spec"]["maxUnavailable"] == wanted
    assert made["PodDisruptionBudget", "chat-balancer"]["spec"]["maxUnavailable"] == 1


def test_scaling_writes_no_budget() -> None:
    for replicas in (0, 1, 8):
        budget = children(with_(replicas=replicas))["PodDisruptionBudget", "chat-replica"]
        assert budget == children()["PodDisruptionBudget", "chat-replica"]
        assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def peers(policy: Any) -> dict[int, list[Any] | None]:
    """Who may come, by port; None: everybody."""
    return {
        port["port"]: rule.get("from")
        for rule in policy["spec"]["ingress"]
        for port in rule["ports"]
    }


def test_only_balancers_reach_a_replicas_api_and_all_its_metrics() -> None:
    replica = children()["NetworkPolicy", "chat-replica"]
    (balancers,) = peers(replica)[8000] or []
    assert peers(replica) == {8000: [balancers], 9000: [balancers], 9090: None}
    balancer_labels = children()["Deployment", "chat-balancer"]["spec"]["selector"]["matchLabels"]
    assert balancers == {"podSelector": {"matchLabels": balancer_labels}}
    assert replica["spec"]["policyTypes"] == ["Ingress"]
    labels = template()["metadata"]["labels"]
    assert replica["spec"]["podSelector"]["matchLabels"].items() <= labels.items()


def test_balancers_ask_one_another_and_nobody_else_asks_them() -> None:
    (balancers,) = peers(children()["NetworkPolicy", "chat-replica"])[8000] or []
    found = peers(children()["NetworkPolicy", "chat-balancer"])
    assert found == {8080: None, 9091: None, 9092: [balancers]}


def test_pods_of_an_operator_without_policies_stay_as_open_as_they_were() -> None:
    """They are scraped on ports that the policies would close to Prometheus."""
    for name in ("chat-replica", "chat-balancer"):
        selector = children()["NetworkPolicy", name]["spec"]["podSelector"]["matchLabels"]
        deployment = children()["Deployment", name]["spec"]["selector"]["matchLabels"]
        assert not selector.items() <= deployment.items()


def test_the_ports_of_policies_are_those_of_the_containers() -> None:
    for name in ("chat-replica", "chat-balancer"):
        pod = children()["Deployment", name]["spec"]["template"]
        ports = {port["name"]: port["containerPort"] for each in pod["spec"]["containers"]
                 for port in each["ports"]}  # fmt: skip
        assert int(pod["metadata"]["annotations"]["prometheus.io/port"]) == ports["metrics"]
        # The kubelet, which probes and drains, is let in by every node itself.
        probes = ports.pop("probes", None)
        assert set(peers(children()["NetworkPolicy", name])) == set(ports.values()) - {probes}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("file:///models/a.gguf", False),
        ("pvc://claim/a.gguf", False),
        ("hf://owner/name", True),
        ("https://host/a.gguf", True),
    ],
)
def test_nobody_reaches_a_download(source: str, wanted: bool) -> None:
    policy = children(with_(model=Model(source))).get(("NetworkPolicy", "chat-download"))
    assert (policy is not None) is wanted
    if policy:
        assert policy["spec"]["ingress"] == []


def test_policies_can_be_switched_off() -> None:
    environment = {"FASTGEN_RUNTIME_IMAGE": "r:1", "FASTGEN_CONTROL_IMAGE": "c:1",
                   "FASTGEN_NETWORK_POLICIES": "false"}  # fmt: skip
    made = children(settings=settings_from(environment))
    assert not [kind for kind, _ in made if kind == "NetworkPolicy"]
    assert ("PodDisruptionBudget", "chat-replica") in made


def test_replicas_spread_while_there_is_room_unless_told_otherwise() -> None:
    spread = template()["spec"]["topologySpreadConstraints"]
    assert [(each["topologyKey"], each["whenUnsatisfiable"]) for each in spread] == [
        ("kubernetes.io/hostname", "ScheduleAnyway"),
        ("topology.kubernetes.io/zone", "ScheduleAnyway"),
    ]
    labels = template()["metadata"]["labels"]
    for each in spread:
        assert each["labelSelector"]["matchLabels"].items() <= labels.items()
    own = {"maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}
    told = template(with_(topology_spread_constraints=(own,)))
    assert told["spec"]["topologySpreadConstraints"] == [own]


GPU_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("limits", "given", "wanted"),
    [
        ({"cpu": "1"}, (), None),
        ({"amd.com/gpu": 1}, (), None),
        ({"nvidia.com/gpu": 1}, (), [GPU_TOLERATION]),
        ({"nvidia.com/mig-1g.5gb": "1"}, (), [GPU_TOLERATION]),
        ({"nvidia.com/gpu": 1}, ({"key": "a"},), [{"key": "a"}, GPU_TOLERATION]),
        ({"nvidia.com/gpu": 1}, (GPU_TOLERATION,), [GPU_TOLERATION]),
    ],
)
def test_who_asks_for_a_gpu_tolerates_the_taint_of_its_nodes(
    limits: dict[str, Any], given: tuple[Any, ...], wanted: Any
) -> None:
    pod = template(with_(resources=Resources(limits=limits), tolerations=given))["spec"]
    assert pod.get("tolerations") == wanted
    assert pod["containers"][0]["resources"] == {"limits": limits}
    assert "runtimeClassName" not in pod


@pytest.mark.parametrize(
    ("ranks", "asked", "wanted"),
    [(1, None, None), (2, None, "1Gi"), (2, "4Gi", "4Gi"), (1, "256Mi", "256Mi")],
)
def test_ranks_talk_through_shared_memory(ranks: int, asked: str | None, wanted: str) -> None:
    spec = with_(engine=Engine(tensor_parallel_size=ranks), shared_memory=asked)
    pod = template(spec)["spec"]
    volumes = {each["name"]: each for each in pod["volumes"]}
    mounts = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    memory = {"medium": "Memory", "sizeLimit": wanted}
    assert volumes.get("shared-memory", {}).get("emptyDir") == (memory if wanted else None)
    assert ("/dev/shm" in mounts) is bool(wanted)
    told = [each for each in pod["containers"][0]["args"] if "tensor-parallel" in each]
    assert told == ([f"--tensor-parallel-size={ranks}"] if ranks > 1 else [])


@pytest.mark.parametrize(
    ("size_bytes", "seconds"),
    [
        (None, 3600),
        (0, 600),
        (140_000_000, 607),
        (16_000_000_000, 1400),
        (140_000_000_000, 7600),
        (10**13, LONGEST_SECONDS),
    ],
)
def test_a_larger_model_may_load_for_longer(size_bytes: int | None, seconds: int) -> None:
    assert startup_seconds(size_bytes, 1800) == seconds
    delivery = Delivery(Delivered(key="k", path="m", size_bytes=size_bytes))
    spec = with_(model=Model("hf://owner/name"))
    probe = template(spec, delivery=delivery)["spec"]["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] in (seconds, seconds - 1)


def test_whoever_expects_a_slow_start_of_an_unknown_model_gets_it() -> None:
    assert startup_seconds(None, 7200) == 7200
    assert startup_seconds(10**9, 7200) == startup_seconds(10**9, 60)


def test_a_size_that_is_learned_later_restarts_nothing() -> None:
    spec = with_(model=Model("hf://owner/name"))
    unknown, known = (
        children(spec, delivery=Delivery(Delivered(key="k", path="m", size_bytes=size)))[
            "Deployment", "chat-replica"
        ]
        for size in (None, 10**9)
    )
    assert unknown["spec"]["template"] != known["spec"]["template"]
    kept = keep_template(known, unknown, stuck=False)
    assert kept["spec"]["template"] == unknown["spec"]["template"]
