"""Prometheus' own checker of rules, and the definitions of the Prometheus operator's kinds."""

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import yaml

from fastgen_devcluster.command import CommandError, run
from fastgen_devcluster.settings import Settings
from fastgen_devcluster.toolchain import ensure_go

PACKAGE = "prometheus"
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
OPERATOR_VERSION = "v0.85.0"
OPERATOR_SUM = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
DEFINITIONS = ("podmonitors", "prometheusrules")


def promtool() -> Path:
    """The `promtool` of the PATH, or that of Debian's package, which is unpacked, not installed."""
    on_path = shutil.which("promtool")
    if on_path:
        return Path(on_path)
    home = _cache() / "promtool"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
            folder = Path(scratch)
            try:
                run("apt-get", "download", PACKAGE, directory=folder)
            except CommandError:
                run("apt-get", "update")
                run("apt-get", "download", PACKAGE, directory=folder)
            (package,) = folder.glob("*.deb")
            run("dpkg", "-x", package, folder / "unpacked")
            (folder / "unpacked" / "usr" / "bin" / "promtool").rename(home)
    return home


def monitoring_definitions() -> list[Path]:
    """The real CustomResourceDefinitions of PodMonitor and PrometheusRule, checked by their sum."""
    home = _cache() / f"prometheus-operator-{OPERATOR_VERSION}"
    if not home.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
            wanted = f"{OPERATOR_MODULE}@{OPERATOR_VERSION}"
            environment = {
                "GOMODCACHE": f"{scratch}/mod",
                "GOFLAGS": "-modcacherw",
                "GOTOOLCHAIN": "local",
                "GOWORK": "off",
            }
            go = ensure_go(_cache())
            download = (go, "mod", "download", "-json", wanted)
            told = json.loads(run(*download, environment=environment, directory=Path(scratch)))
            assert told["Sum"] == OPERATOR_SUM, told
            folder = Path(scratch) / "definitions"
            folder.mkdir()
            for name in DEFINITIONS:
                file = f"monitoring.coreos.com_{name}.yaml"
                shutil.copy(Path(told["Dir"]) / "example/prometheus-operator-crd" / file, folder)
            folder.rename(home)
    return sorted(home.iterdir())


def complaints_of_definition(manifest: dict[str, Any]) -> list[str]:
    """What the real CustomResourceDefinition of its kind has against an object's spec."""
    for path in monitoring_definitions():
        definition = yaml.safe_load(path.read_text())["spec"]
        if definition["names"]["kind"] == manifest["kind"]:
            (version,) = definition["versions"]
            spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
            found = jsonschema.Draft7Validator(_closed(spec)).iter_errors(manifest["spec"])
            return [f"{error.json_path}: {error.message}" for error in found]
    raise ValueError(f"no definition of kind {manifest['kind']}")


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, refusing unknown fields as kubectl does."""
    found = {name: _closed(part) if isinstance(part, dict) else part
             for name, part in schema.items()}  # fmt: skip
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def _cache() -> Path:
    cache = Settings.from_environment().cache
    cache.mkdir(parents=True, exist_ok=True)
    return cache
