"""How loaded a replica is, as its front knows it: told to balancers and in metrics."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fastgen_api.names import Metric
from fastgen_runtime.engine.channel import Ready, Report
from fastgen_runtime.front.metrics import Metrics
from fastgen_runtime.front.stream import Stream


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How loaded the replica is, with what the engine has not seen yet."""

    num_running: int
    num_waiting: int
    num_owed: int
    max_running: int
    num_blocks: int
    num_free_blocks: int
    block_size: int
    tokens_per_second: float
    draining: bool
    owed_seconds: float = 0.0
    """Engine-seconds that the tokens owed will take."""

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that are in use."""
        return 1 - self.num_free_blocks / self.num_blocks if self.num_blocks else 0.0


def replica_load(
    report: Report,
    ready: Ready | None,
    streams: Iterable[Stream],
    max_running: int,
    tokens_per_second: float,
    draining: bool,
) -> ReplicaLoad:
    """report: the engine's last one. streams: of all open requests, seen by the engine or not."""
    unseen = [
        stream
        for stream in streams
        if stream.command_number is None or stream.command_number > report.num_commands
    ]
    return ReplicaLoad(
        num_running=report.load.num_running,
        num_waiting=report.load.num_waiting + sum(stream.num_choices for stream in unseen),
        num_owed=report.load.num_owed + sum(stream.num_prompt_tokens for stream in unseen),
        max_running=max_running,
        num_blocks=ready.num_blocks if ready else 0,
        num_free_blocks=report.load.num_free_blocks,
        block_size=ready.block_size if ready else 0,
        tokens_per_second=tokens_per_second,
        draining=draining,
        owed_seconds=report.load.work.owed,
    )


def add_gauges(metrics: Metrics, load: Callable[[], ReplicaLoad]) -> None:
    """Gauges that ask `load` when they are scraped."""
    gauge = metrics.gauge
    gauge(Metric.RUNNING_REQUESTS, "Requests that hold blocks.", lambda: load().num_running)
    gauge(Metric.WAITING_REQUESTS, "Requests that wait for a place.", lambda: load().num_waiting)
    gauge(Metric.OWED_TOKENS, "Tokens that open requests still have to compute.",
          lambda: load().num_owed)  # fmt: skip
    gauge(Metric.OWED_WORK, "Engine-seconds that the tokens owed will take.",
          lambda: load().owed_seconds)  # fmt: skip
    gauge(Metric.KV_USAGE, "Share of the KV blocks in use.", lambda: load().kv_usage)
