"""The autoscaler as a process of its own, with a balancer's rights and signals from a file."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from commands import Commands
from lightkube import AsyncClient, KubeConfig
from prometheus_client import CollectorRegistry

from fastgen_api.logs import log_to_stderr
from fastgen_balancer.leader import lead
from fastgen_balancer.signals import LocalSignals

QUIET = LocalSignals(
    queued_requests=0,
    in_flight_requests=0,
    ready_endpoints=1,
    saturated_endpoints=0,
)

NO_WAY_OUT = {"HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}
"""Proxies that do not answer: nothing inside a cluster goes through one."""


@dataclass
class Contender:
    """One process that wants to lead."""

    arguments: tuple[str, ...]
    log: Path
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            program = (sys.executable, __file__, *self.arguments)
            self.process = subprocess.Popen(
                program, stderr=log, stdout=log, env=os.environ | NO_WAY_OUT
            )

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(timeout=20)
            self.process = None


def account_kubeconfig(cluster: Commands, namespace: str, account: str, folder: Path) -> Path:
    """A kubeconfig with the rights of a ServiceAccount alone."""
    token = cluster.kubectl("-n", namespace, "create", "token", account)
    raw = cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "-o", "json")
    config = json.loads(raw)
    config["users"][0]["user"] = {"token": token.strip()}
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


def tell(path: Path, signals: LocalSignals) -> None:
    """What the contenders see from now on."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(signals)))
    new.replace(path)


@contextmanager
def contenders(
    kubeconfig: Path, namespace: str, name: str, folder: Path, prometheus_url: str, *names: str
) -> Iterator[dict[str, Contender]]:
    """Processes that are not started yet, by their pod's name."""
    signals = folder / "signals.json"
    made = {
        pod: Contender(
            (str(kubeconfig), namespace, name, pod, str(signals), prometheus_url),
            folder / f"{pod}.log",
        )
        for pod in names
    }
    try:
        yield made
    finally:
        for contender in made.values():
            contender.stop()


def _read(path: Path) -> LocalSignals:
    return LocalSignals(**json.loads(path.read_text()))


async def _main(arguments: list[str]) -> None:
    kubeconfig, namespace, name, pod, signals, prometheus_url = arguments
    client = AsyncClient(KubeConfig.from_file(kubeconfig), trust_env=False)

    async def told() -> LocalSignals:
        return _read(Path(signals))

    task = asyncio.create_task(
        lead(
            client,
            namespace,
            name,
            pod,
            told,
            prometheus_url,
            registry=CollectorRegistry(),
            tick_seconds=0.5,
        )
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await asyncio.gather(task, return_exceptions=True)
    await client.close()


if __name__ == "__main__":
    log_to_stderr("autoscaler")
    asyncio.run(_main(sys.argv[1:]))
