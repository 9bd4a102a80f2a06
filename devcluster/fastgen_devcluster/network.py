"""Lays the cables between this machine and the network namespaces of the cluster's nodes."""

import ipaddress
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastgen_devcluster.command import run, succeeds
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.settings import MAX_INDEX, Node, Settings, network_namespace

BRIDGE = "switch"


def inside(netns: Path, *argv: str | Path) -> tuple[str | Path, ...]:
    """The command line that runs a program in a network namespace."""
    # `ip netns exec` would hide the cgroup file systems from it.
    return ("nsenter", f"--net={netns}", *argv)


def namespaces(settings: Settings) -> list[Path]:
    """The files of all the cluster's network namespaces, there or not."""
    names = (*(node.name for node in settings.nodes), settings.switch)
    return [network_namespace(name) for name in names]


def is_ready(settings: Settings) -> bool:
    """Whether the last thing that `create` does is there."""
    everything = all(netns.exists() for netns in namespaces(settings))
    return everything and settings.nodes[-1].pod_cidr in run("ip", "route", "show")


def create(settings: Settings) -> None:
    """Make the namespaces, the cables, and the host's routes to pods and Services."""
    if is_ready(settings):
        return
    delete(settings)
    taken = conflict(
        settings, json.loads(run("ip", "-json", "-4", "route", "show", "table", "all"))
    )
    if taken:
        raise SetupError(
            f"{taken} is in use on this machine and lies in the cluster's addresses: set"
            f" FASTGEN_DEVCLUSTER_INDEX to another number from 0 to {MAX_INDEX}."
        )
    _make_switch(settings)
    _plug_in(settings, settings.host_interface)
    host = settings.host_interface
    run("ip", "address", "add", f"{settings.host_address}/24", "dev", host)
    run("ip", "link", "set", host, "up")
    for node in settings.nodes:
        _make_node(settings, node)
    run("ip", "route", "add", settings.service_cidr, "via", settings.node().address)
    for node in settings.nodes:
        run("ip", "route", "add", node.pod_cidr, "via", node.address)


def _make_switch(settings: Settings) -> None:
    run("ip", "netns", "add", settings.switch)
    script = f"""set -e
ip link set lo up
ip link add {BRIDGE} type bridge
ip link set {BRIDGE} up
# Nothing is filtered here: the nodes do that, each for its own pods.
echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""
    run(*inside(network_namespace(settings.switch), "sh", "-c", script))


def _plug_in(settings: Settings, interface: str, *where: str) -> None:
    """A cable from the switch to an interface of the host, or of the namespace that is named."""
    port = where[-1] if where else "host"
    cable = ("ip", "link", "add", interface, *where, "type", "veth", "peer", "name", port)
    run(*cable, "netns", settings.switch)
    attach = ("ip", "link", "set", port, "master", BRIDGE, "up")
    run(*inside(network_namespace(settings.switch), *attach))


def _make_node(settings: Settings, node: Node) -> None:
    run("ip", "netns", "add", node.name)
    _plug_in(settings, "eth0", "netns", node.name)
    others = [other for other in settings.nodes if other != node]
    routes = [f"ip route add {other.pod_cidr} via {other.address}" for other in others]
    script = "\n".join(
        [
            "set -e",
            "ip link set lo up",
            f"ip address add {node.address}/24 dev eth0",
            "ip link set eth0 up",
            # Service addresses are rewritten after routing has let them pass: they need some route.
            f"ip route add {settings.service_cidr} dev eth0",
            *routes,
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables",
        ]
    )
    run(*inside(node.netns, "sh", "-c", script))


def conflict(settings: Settings, routes: Iterable[Mapping[str, Any]]) -> str | None:
    """The first of `ip -json route`'s destinations and gateways that the cluster would cut off.

    A route to a wider network is none: the cluster's own, more exact ones take only their part.
    """
    ours = [
        ipaddress.IPv4Network(cidr)
        for cidr in (settings.node_cidr, settings.service_cidr, settings.pod_cidr)
    ]
    for route in routes:
        for place in (route["dst"], route.get("gateway")):
            if place in (None, "default"):
                continue
            network = ipaddress.IPv4Network(place)
            if any(network.subnet_of(mine) for mine in ours):
                return str(place)
    return None


def delete(settings: Settings) -> None:
    """Take all of it away; the routes go with the cables, the rules with the namespaces."""
    if Path("/sys/class/net", settings.host_interface).exists():
        succeeds("ip", "link", "delete", settings.host_interface)
    for netns in namespaces(settings):
        if netns.exists():
            succeeds("ip", "netns", "delete", netns.name)
