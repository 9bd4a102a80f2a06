"""The objects that a FastGenDeployment stands for."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fastgen_api import names
from fastgen_api.envoy import envoy_command
from fastgen_api.scaling import replicas_wanted
from fastgen_api.spec import (
    SLO,
    Balancer,
    Engine,
    KubernetesObject,
    Model,
    PodTemplate,
    Rollout,
    RolloutStrategy,
    ScaleToZero,
    Scaling,
    ScalingMode,
    Spec,
    TokenGap,
)
from fastgen_operator.children import CHILD_KINDS, id_of, make_children
from fastgen_operator.delivery import Delivered, Delivery, JobStep, Way, way_of
from fastgen_operator.fingerprint import DECLARED_ANNOTATION
from fastgen_operator.owner import Owner
from fastgen_operator.party import surroundings_of
from fastgen_operator.settings import Images, Settings
from fastgen_operator.standing import neighbours_of

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.yaml"))
UPDATE = "FASTGEN_UPDATE_GOLDEN"

SETTINGS = Settings(
    Images(runtime="registry.example/runtime:1", control="registry.example/control:1"),
    prometheus_url="http://prometheus.monitoring:9090",
)
OWNER = Owner("chat", "team", "uid-1")
SPEC = Spec(Model("file:///models/a.gguf"))


def children(spec: Spec, settings: Settings = SETTINGS) -> dict[tuple[str, str], dict[str, Any]]:
    made = make_children(OWNER, spec, settings)
    return {(child["kind"], child["metadata"]["name"]): child for child in made}


def template(spec: Spec, name: str = "chat-replica", settings: Settings = SETTINGS) -> Any:
    return children(spec, settings)["Deployment", name]["spec"]["template"]


def container(spec: Spec, name: str, deployment: str, settings: Settings = SETTINGS) -> Any:
    pod = template(spec, deployment, settings)["spec"]
    found = [*pod["containers"], *pod.get("initContainers", [])]
    return next(each for each in found if each["name"] == name)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_the_children_of_each_example_are_as_reviewed(example: Path) -> None:
    resources = list(yaml.safe_load_all(example.read_text()))
    for number, resource in enumerate(resources, start=1):
        created = f"2026-01-01T00:00:0{number}Z"
        identity = {"namespace": "team", "uid": f"uid-{number}", "creationTimestamp": created}
        resource["metadata"] |= identity
    members = neighbours_of(resources)
    made: dict[tuple[str, str], KubernetesObject] = {}
    for member in members:
        spec = member.spec
        delivered = Delivery(Delivered(key="k", path="a", size_bytes=10**9), job=JobStep.MAKE)
        delivery = delivered if way_of(spec.model) is Way.CACHE else None
        around = surroundings_of(member.owner, members)
        children = make_children(member.owner, spec, SETTINGS, delivery, (), around)
        for child in children:
            assert made.setdefault(id_of(child), child) == child, "all that share it make it alike"
    # Without JSON in between, equal parts would be written as YAML anchors.
    plain = msgspec.json.decode(msgspec.json.encode(list(made.values())))
    text = yaml.safe_dump_all(plain, sort_keys=False, width=100)
    golden = GOLDEN / f"operator-{example.stem}.yaml"
    if os.environ.get(UPDATE):
        golden.write_text(text)
    assert golden.exists(), f"run this test with {UPDATE}=1, then review {golden.name}"
    assert text == golden.read_text(), f"if this is meant, run with {UPDATE}=1 and review the diff"


NAMES = st.from_regex(rf"[a-z][-a-z0-9]{{0,{names.MAX_NAME_LENGTH - 2}}}[a-z0-9]", fullmatch=True)


@given(name=NAMES, replicas=st.integers(0, 50), drain_seconds=st.integers(0, 3600))
def test_children_are_deterministic_owned_and_well_named(
    name: str, replicas: int, drain_seconds: int
) -> None:
    owner = Owner(name, "team", "uid-1")
    spec = msgspec.structs.replace(
        SPEC, replicas=replicas, rollout=Rollout(drain_seconds=drain_seconds)
    )
    made = make_children(owner, spec, SETTINGS)
    assert made == make_children(owner, spec, SETTINGS)
    order = [CHILD_KINDS.index(child["kind"]) for child in made]
    assert order == sorted(order)
    identities = {(child["kind"], child["metadata"]["name"]) for child in made}
    assert len(identities) == len(made)
    assert len({id(child["metadata"]) for child in made}) == len(made), "none changes another's"
    for child in made:
        metadata = child["metadata"]
        assert len(metadata["name"]) <= 63
        assert metadata["ownerReferences"][0]["uid"] == "uid-1"
        assert metadata["ownerReferences"][0]["controller"] is True
        assert metadata["labels"][names.DEPLOYMENT_LABEL] == name
        assert metadata["labels"][names.MANAGED_BY_LABEL] == names.OPERATOR_MANAGER
        assert all(len(value) <= 63 for value in metadata["labels"].values())


def test_the_pods_outlive_their_drain() -> None:
    spec = msgspec.structs.replace(SPEC, rollout=Rollout(drain_seconds=100))
    replica = template(spec)["spec"]
    pre_stop = replica["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert replica["terminationGracePeriodSeconds"] >= pre_stop + 100 + 5
    assert template(spec, "chat-balancer")["spec"]["terminationGracePeriodSeconds"] >= 105
    assert "--drain-seconds=100" in replica["containers"][0]["args"]


@pytest.mark.parametrize(
    "edit",
    [
        {"replicas": 5},
        {"slo": SLO(target_percent="90", token_gap=TokenGap(250))},
        {"scaling": Scaling(mode=ScalingMode.DISABLED, max_replicas=7)},
        {"balancer": Balancer(replicas=3, max_queued_requests=5)},
        {"rollout": Rollout(max_surge=2, progress_deadline_seconds=60)},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_what_running_pods_read_themselves_restarts_nothing(edit: dict[str, Any]) -> None:
    edited = msgspec.structs.replace(SPEC, **edit)
    for name in ("chat-replica", "chat-balancer"):
        assert template(edited, name) == template(SPEC, name)
        before, after = (
            children(spec)["Deployment", name]["metadata"]["annotations"][DECLARED_ANNOTATION]
            for spec in (SPEC, edited)
        )
        assert before == after


@pytest.mark.parametrize(
    "edit",
    [
        {"engine": Engine(max_model_length=99)},
        {"model": Model("file:///models/b.gguf")},
        {"image": "registry.example/mine:2"},
        {"node_selector": {"gpu": "yes"}},
        {"pod_template": PodTemplate(metadata={"annotations": {"a": "b"}})},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_what_pods_are_made_from_makes_new_ones(edit: dict[str, Any]) -> None:
    edited = msgspec.structs.replace(SPEC, **edit)
    before, after = (
        children(spec)["Deployment", "chat-replica"]["metadata"]["annotations"]
        for spec in (SPEC, edited)
    )
    assert template(edited) != template(SPEC)
    assert all(before[name] != after[name] for name in before)


@pytest.mark.parametrize(
    ("replicas", "mode", "wanted"),
    [
        (1, ScalingMode.AUTO, 2),
        (3, ScalingMode.AUTO, 3),
        (9, ScalingMode.AUTO, 4),
        (9, ScalingMode.DISABLED, 9),
        (0, ScalingMode.DISABLED, 0),
        (9, ScalingMode.RECOMMEND, 9),
        (0, ScalingMode.RECOMMEND, 0),
    ],
)
def test_replicas_are_clamped_only_when_we_scale(
    replicas: int, mode: ScalingMode, wanted: int
) -> None:
    scaling = Scaling(mode=mode, min_replicas=2, max_replicas=4)
    spec = msgspec.structs.replace(SPEC, replicas=replicas, scaling=scaling)
    assert replicas_wanted(spec) == wanted
    assert children(spec)["Deployment", "chat-replica"]["spec"]["replicas"] == wanted


SLEEPER = msgspec.structs.replace(
    SPEC, replicas=0, scaling=Scaling(min_replicas=0, scale_to_zero=ScaleToZero(hold_seconds=300))
)


def test_a_deployment_at_zero_has_all_children_and_no_replica() -> None:
    made = children(SLEEPER)
    assert made.keys() == children(SPEC).keys()
    assert made["Deployment", "chat-replica"]["spec"]["replicas"] == 0
    assert made["Deployment", "chat-balancer"]["spec"]["replicas"] == 2


def test_a_balancer_that_ends_has_time_for_what_it_holds() -> None:
    def pod(spec: Spec) -> Any:
        return children(spec)["Deployment", "chat-balancer"]["spec"]["template"]["spec"]

    grace = pod(SPEC)["terminationGracePeriodSeconds"]
    assert pod(SLEEPER)["terminationGracePeriodSeconds"] == grace + 300


def test_only_how_long_is_held_renews_balancers_and_never_replicas() -> None:
    """Balancers that have less time than they hold would break what waits."""

    def declared(spec: Spec, name: str) -> str:
        return str(
            children(spec)["Deployment", name]["metadata"]["annotations"][DECLARED_ANNOTATION]
        )

    zero = SLEEPER.scaling
    others = [
        msgspec.structs.replace(SLEEPER, replicas=1),
        msgspec.structs.replace(SLEEPER, scaling=msgspec.structs.replace(zero, max_replicas=5)),
        msgspec.structs.replace(
            SLEEPER,
            scaling=msgspec.structs.replace(zero, scale_to_zero=ScaleToZero(60, hold_seconds=300)),
        ),
    ]
    for spec in others:
        assert declared(spec, "chat-balancer") == declared(SLEEPER, "chat-balancer")
    assert declared(SPEC, "chat-balancer") != declared(SLEEPER, "chat-balancer")
    assert declared(SPEC, "chat-replica") == declared(SLEEPER, "chat-replica")


def test_the_balancer_may_touch_its_own_resource_and_no_secret() -> None:
    rules = children(SPEC)["Role", "chat-balancer"]["rules"]
    assert not any("secrets" in rule["resources"] or "*" in rule["verbs"] for rule in rules)
    writes = {"create", "update", "patch", "delete"}
    unnamed = {
        (resource, verb)
        for rule in rules
        if "resourceNames" not in rule
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb in writes
    }
    assert unnamed == {("leases", "create"), ("events", "create")}


def test_only_the_picker_gets_a_token() -> None:
    for deployment in ("chat-replica", "chat-balancer"):
        assert template(SPEC, deployment)["spec"]["automountServiceAccountToken"] is False
    with_token = [
        each["name"]
        for name in ("chat-replica", "chat-balancer")
        for each in template(SPEC, name)["spec"]["containers"]
        if any(mount["name"] == "token" for mount in each["volumeMounts"])
    ]
    assert with_token == ["picker"]


def test_every_container_is_confined() -> None:
    for deployment in ("chat-replica", "chat-balancer"):
        pod = template(SPEC, deployment)["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        for each in [*pod["containers"], *pod.get("initContainers", [])]:
            security = each["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_a_foreign_envoy_runs_the_same_configuration() -> None:
    settings = Settings(Images("r:1", "c:1", envoy="envoy:9", pull_secrets=("pull",)))
    envoy = container(SPEC, "envoy", "chat-balancer", settings)
    assert envoy["image"] == "envoy:9"
    assert envoy["command"] == envoy_command("/run/fastgen/envoy.yaml")
    assert container(SPEC, "picker", "chat-balancer", settings)["image"] == "c:1"
    for deployment in ("chat-replica", "chat-balancer"):
        pod = template(SPEC, deployment, settings)["spec"]
        assert pod["imagePullSecrets"] == [{"name": "pull"}]


def test_in_place_needs_no_spare_capacity() -> None:
    spec = msgspec.structs.replace(
        SPEC, rollout=Rollout(strategy=RolloutStrategy.IN_PLACE, max_surge=1, max_unavailable=0)
    )
    strategy = children(spec)["Deployment", "chat-replica"]["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
