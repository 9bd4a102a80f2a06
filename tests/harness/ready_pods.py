"""Counts the ready pods of a FastGenDeployment without a gap: each change that a watch tells."""

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from commands import Commands


@dataclass
class ReadyPods:
    """What was seen since the watch began."""

    fewest: int = 99
    """The smallest number of ready pods; one that is told to stop counts no more."""
    forms: set[str] = field(default_factory=set)
    """Templates of the pods that were ever seen ready."""
    _ready: set[str] = field(default_factory=set)

    def take(self, event: dict[str, Any]) -> int:
        """Takes an event of a watch; returns how many pods are ready."""
        pod = event["object"]
        conditions = pod.get("status", {}).get("conditions") or ()
        is_ready = (
            event["type"] != "DELETED"
            and "deletionTimestamp" not in pod["metadata"]
            and any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
        )
        uid = pod["metadata"]["uid"]
        if is_ready:
            self._ready.add(uid)
            self.forms.add(pod["metadata"]["annotations"]["fastgen.dev/template"])
        else:
            self._ready.discard(uid)
        return len(self._ready)


@contextmanager
def ready_pods(cluster: Commands, namespace: str, name: str, present: int) -> Iterator[ReadyPods]:
    """Watches the replicas of a FastGenDeployment that has `present` ready pods."""
    selector = f"fastgen.dev/deployment={name},app.kubernetes.io/component=replica"
    words: list[str | Path] = [
        *(cluster.cluster.kubectl, f"--kubeconfig={cluster.kubeconfig}", f"-n={namespace}"),
        *("get", "pods", f"-l={selector}", "--watch", "--output-watch-events", "-o=json"),
    ]
    seen = ReadyPods()
    counting = threading.Event()

    def follow(stream: IO[str]) -> None:
        for line in stream:
            count = seen.take(json.loads(line))
            if count >= present:
                counting.set()
            if counting.is_set():
                seen.fewest = min(seen.fewest, count)

    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        thread = threading.Thread(target=follow, args=(process.stdout,), daemon=True)
        thread.start()
        try:
            assert counting.wait(30), f"there are no {present} ready pods"
            yield seen
        finally:
            process.terminate()
            thread.join()
