"""Prometheus' own checker of rules, and the definitions of the Prometheus operator's kinds."""

import json
import shutil
import tempfile
from pathlib import Path

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


def _cache() -> Path:
    cache = Settings.from_environment().cache
    cache.mkdir(parents=True, exist_ok=True)
    return cache
