"""Names, addresses and configuration files of the development cluster."""

import ipaddress
import json
import tomllib
from pathlib import Path

import pytest
import yaml

from fastgen_devcluster import configuration
from fastgen_devcluster.buildah import pip_settings, uv_settings
from fastgen_devcluster.certificates import holders
from fastgen_devcluster.cluster import Cluster
from fastgen_devcluster.contents import Contents, manifests
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.lifecycle import processes
from fastgen_devcluster.programs import KWOK, MODULES, Module
from fastgen_devcluster.progress import format_seconds
from fastgen_devcluster.settings import MAX_INDEX, Settings
from fastgen_devcluster.toolchain import MINIMUM_GO, parse_go_version

SETTINGS = Settings(state=Path("/state"), cache=Path("/cache/fastgen"))


def test_directories_follow_the_environment() -> None:
    given = Settings.from_environment({"FASTGEN_STATE": "/s", "FASTGEN_CACHE": "/c"})
    assert (given.state, given.cache) == (Path("/s"), Path("/c/fastgen"))
    assert Settings.from_environment({"XDG_CACHE_HOME": "/x"}).cache == Path("/x/fastgen")
    assert Settings.from_environment({}).cache == Path.home() / ".cache" / "fastgen"


@pytest.mark.parametrize("index", ["-1", "16", "one"])
def test_an_index_out_of_range_is_refused(index: str) -> None:
    with pytest.raises(SetupError, match="FASTGEN_DEVCLUSTER_INDEX"):
        Settings.from_environment({"FASTGEN_DEVCLUSTER_INDEX": index})


def test_clusters_side_by_side_share_no_address_and_no_name() -> None:
    every = [Settings(Path("/state"), Path("/cache"), index) for index in range(MAX_INDEX + 1)]
    for cidr in ("pod_cidr", "service_cidr"):
        networks = [ipaddress.ip_network(getattr(settings, cidr)) for settings in every]
        for number, network in enumerate(networks):
            assert not any(network.overlaps(other) for other in networks[number + 1 :])
    assert len({settings.prefix for settings in every}) == len(every)
    # The kernel takes no longer name for an interface.
    assert all(len(settings.host_interface) <= 15 for settings in every)


def test_a_node_lies_in_the_addresses_of_its_cluster() -> None:
    for number in range(3):
        node = SETTINGS.node(number)
        pods = ipaddress.ip_network(SETTINGS.pod_cidr)
        assert ipaddress.ip_network(node.pod_cidr).subnet_of(pods)
    assert SETTINGS.node(0).pod_cidr != SETTINGS.node(1).pod_cidr


def test_nodes_share_no_name_no_directory_and_no_group() -> None:
    nodes = SETTINGS.nodes
    assert len(nodes) == 2
    for of in ("name", "address", "pod_cidr", "home", "group", "zone", "containerd_socket"):
        assert len({getattr(node, of) for node in nodes}) == len(nodes), of
    names = processes(SETTINGS)
    assert len(set(names)) == len(names)
    assert {"etcd", "kubelet-0", "kubelet-1", "kube-router-1"} <= set(names)


def test_the_server_certificate_covers_every_address_of_the_api() -> None:
    server = holders(SETTINGS, SETTINGS.nodes)[0]
    assert {"IP:10.197.0.2", "IP:10.198.0.1"} <= set(server.addresses)


def test_a_kubeconfig_holds_everything_itself() -> None:
    document = yaml.safe_load(configuration.kubeconfig("https://server", b"ca", b"crt", b"key"))
    assert document["clusters"][0]["cluster"]["certificate-authority-data"] == "Y2E="
    assert document["users"][0]["user"]["client-key-data"] == "a2V5"
    assert "/" not in yaml.safe_dump(document["users"])


def test_only_writes_are_audited() -> None:
    writes, rest = yaml.safe_load(configuration.audit_policy())["rules"]
    assert writes["level"] == "Metadata"
    assert "watch" not in writes["verbs"]
    assert rest == {"level": "None"}


def test_a_kubelet_keeps_its_images_and_its_own_groups() -> None:
    document = yaml.safe_load(configuration.kubelet(SETTINGS, SETTINGS.node(), 24000))
    assert document["cgroupRoot"] == "/fastgen/fastgen-0"
    assert document["imageGCHighThresholdPercent"] == 100
    assert document["evictionHard"] == {}


def test_the_nodes_offer_the_machines_memory_once() -> None:
    total = 24105
    offered = 0
    for node in SETTINGS.nodes:
        reserved = yaml.safe_load(configuration.kubelet(SETTINGS, node, total))["systemReserved"]
        offered += total - int(reserved["memory"].removesuffix("Mi"))
    assert abs(offered - total) <= len(SETTINGS.nodes)


def test_volumes_lie_below_what_down_removes() -> None:
    classes = json.loads(configuration.storage(SETTINGS))["storageClassConfigs"]
    assert classes["shared"] == {"sharedFileSystemPath": "/state/volumes"}
    paths = {entry["node"]: entry["paths"] for entry in classes["local-path"]["nodePathMap"]}
    assert paths == {
        "fastgen-0": ["/state/node-0/volumes"],
        "fastgen-1": ["/state/node-1/volumes"],
    }


def test_the_pod_network_is_the_nodes_share() -> None:
    document = json.loads(configuration.pod_network(SETTINGS.node(1)))
    (bridge,) = document["plugins"]
    assert bridge["ipam"]["ranges"] == [[{"subnet": "10.199.1.0/24"}]]


def test_manifests_name_their_images_and_addresses() -> None:
    text = manifests(
        SETTINGS, Contents("pause", "registry/coredns:1", "registry/prometheus:2", "volume")
    )
    documents = list(yaml.safe_load_all(text))
    images = {
        container["image"]
        for document in documents
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry/coredns:1", "registry/prometheus:2"}
    services = {d["metadata"]["name"]: d for d in documents if d["kind"] == "Service"}
    assert services["prometheus"]["spec"]["clusterIP"] == "10.198.0.90"
    assert services["kube-dns"]["spec"]["clusterIP"] == "10.198.0.10"


@pytest.mark.parametrize("module", [*MODULES, KWOK], ids=lambda module: module.name)
def test_every_program_is_pinned_and_its_sums_are_committed(module: Module) -> None:
    assert (module.source / "go.mod").exists()
    assert (module.source / "go.sum").exists()
    needed = next(
        line for line in (module.source / "go.mod").read_text().splitlines() if line[:3] == "go "
    )
    assert parse_go_version(f"{needed.replace(' ', '')} ") <= MINIMUM_GO


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("go version go1.26.8 linux/amd64", (1, 26, 8)),
        ("go version go1.27 linux/amd64", (1, 27)),
        ("go version go1.28rc1 linux/amd64", ()),
        ("nothing", ()),
    ],
)
def test_go_versions_compare_as_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_go_version(text) == version


def test_installers_learn_the_way_to_the_index_and_nothing_else_of_this_machine() -> None:
    listing = (
        ":env:.find-links='/some/wheels'\n"
        "global.index-url='https://index.example/simple'\n"
        "install.trusted-host='one.example two.example'\n"
    )
    assert pip_settings(listing) == (
        "[global]\n"
        "index-url = https://index.example/simple\n"
        "trusted-host = one.example two.example\n"
        "cert = /etc/ssl/certs/ca-certificates.crt\n"
    )
    assert tomllib.loads(uv_settings(listing)) == {
        "index-url": "https://index.example/simple",
        "allow-insecure-host": ["one.example", "two.example"],
    }
    assert tomllib.loads(uv_settings("")) == {}


def test_the_users_own_cluster_is_taken_as_it_is(tmp_path: Path) -> None:
    for file in ("kubectl", "helm", "config"):
        (tmp_path / file).touch(mode=0o755)
    environment = {
        "FASTGEN_KUBECONFIG": str(tmp_path / "config"),
        "FASTGEN_REGISTRY": "registry.example/team/",
        "PATH": str(tmp_path),
    }
    cluster = Cluster.current(environment)
    assert cluster.is_own
    assert cluster.kubeconfig == tmp_path / "config"
    assert cluster.registry == "registry.example/team"
    del environment["FASTGEN_REGISTRY"]
    with pytest.raises(SetupError, match="FASTGEN_REGISTRY"):
        Cluster.current(environment)
    (tmp_path / "config").unlink()
    with pytest.raises(SetupError, match="FASTGEN_KUBECONFIG"):
        Cluster.current(environment)


def test_times_read_as_a_person_says_them() -> None:
    assert format_seconds(3.14159) == "3.1 s"
    assert format_seconds(215) == "3 min 35 s"
