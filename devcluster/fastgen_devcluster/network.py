"""Lays the cable between this machine and the cluster's network namespace."""

import ipaddress
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fastgen_devcluster.command import run, succeeds
from fastgen_devcluster.errors import SetupError
from fastgen_devcluster.settings import MAX_INDEX, Node, Settings


def inside(node: Node, *argv: str | Path) -> tuple[str | Path, ...]:
    """The command line that runs a program in the node's network namespace."""
    # `ip netns exec` would hide the cgroup file systems from it.
    return ("nsenter", f"--net={node.netns}", *argv)


def is_ready(settings: Settings, node: Node) -> bool:
    """Whether the last thing that `create` does is there."""
    return node.netns.exists() and settings.pod_cidr in run("ip", "route", "show")


def create(settings: Settings, node: Node) -> None:
    """Make the namespace, the cable, and the host's routes to pods and Services."""
    if is_ready(settings, node):
        return
    delete(settings, node)
    taken = conflict(
        settings, json.loads(run("ip", "-json", "-4", "route", "show", "table", "all"))
    )
    if taken:
        raise SetupError(
            f"{taken} is in use on this machine and lies in the cluster's addresses: set"
            f" FASTGEN_DEVCLUSTER_INDEX to another number from 0 to {MAX_INDEX}."
        )
    host = settings.host_interface
    run("ip", "netns", "add", node.name)
    cable = ("ip", "link", "add", host, "type", "veth", "peer", "name", "eth0")
    run(*cable, "netns", node.name)
    run("ip", "address", "add", f"{settings.host_address}/24", "dev", host)
    run("ip", "link", "set", host, "up")
    script = f"""set -e
ip link set lo up
ip address add {node.address}/24 dev eth0
ip link set eth0 up
# Service addresses are rewritten after routing has let them pass, so it needs some route to them.
ip route add {settings.service_cidr} dev eth0
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables
"""
    run(*inside(node, "sh", "-c", script))
    run("ip", "route", "add", settings.service_cidr, "via", node.address)
    run("ip", "route", "add", settings.pod_cidr, "via", node.address)


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


def delete(settings: Settings, node: Node) -> None:
    """Take all of it away; the routes go with the cable, the rules with the namespace."""
    if Path("/sys/class/net", settings.host_interface).exists():
        succeeds("ip", "link", "delete", settings.host_interface)
    if node.netns.exists():
        succeeds("ip", "netns", "delete", node.name)
