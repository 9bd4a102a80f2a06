"""Our Envoy with a policy of its own in place of the picker: the balancer that ours is held to."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from fastgen_balancer.endpoint_files import ENVOY_FILE, write_endpoints, write_reach
from fastgen_balancer.endpoints import parse_static
from fastgen_balancer.envoy_routes import CLUSTERS_FILE, ROUTES_FILE, Reach

Config: TypeAlias = dict[str, Any]

DEPLOYMENT: Final = "static"
POLICIES: Final = "type.googleapis.com/envoy.extensions.load_balancing_policies"


def policy(name: str, kind: str) -> Config:
    """A load balancing policy of Envoy's: the name of its extension and that of its message."""
    return {
        "name": f"envoy.load_balancing_policies.{name}",
        "typed_config": {"@type": f"{POLICIES}.{name}.v3.{kind}"},
    }


def decide_alone(directory: Path, addresses: Sequence[str], own: Config) -> None:
    """Has the Envoy that begins here decide by `own`, a `policy`, among these replicas.

    addresses: HOST:HTTP_PORT:GRPC_PORT of each.
    """
    write_endpoints(directory, DEPLOYMENT, [parse_static(each) for each in addresses])
    write_reach(directory, Reach((DEPLOYMENT,), DEPLOYMENT))
    for name, change in (
        (ENVOY_FILE, ask_nobody),
        (CLUSTERS_FILE, lambda found: choose_by(found, own)),
        (ROUTES_FILE, ask_nobody_on_routes),
    ):
        path = directory / name
        config = json.loads(path.read_bytes())
        change(config)
        path.write_text(json.dumps(config))


def ask_nobody(config: Config) -> None:
    """Takes the picker and its access log out of a bootstrap."""
    (chain,) = config["static_resources"]["listeners"][0]["filter_chains"]
    manager = chain["filters"][0]["typed_config"]
    manager["http_filters"] = [
        each for each in manager["http_filters"] if "ext_proc" not in each["name"]
    ]
    del manager["access_log"]


def choose_by(response: Config, own: Config) -> None:
    """Sets the policy of all clusters of a discovery response."""
    for cluster in response["resources"]:
        cluster["load_balancing_policy"] = {"policies": [{"typed_extension_config": own}]}


def ask_nobody_on_routes(response: Config) -> None:
    """Takes what routes ask of filters that are not there out of a discovery response."""
    (table,) = response["resources"]
    for host in table["virtual_hosts"]:
        for route in host["routes"]:
            route.pop("typed_per_filter_config", None)
