"""What the front costs: its CPU time against that of a bare grpc.aio server for the same bytes.

The real front runs in its own process and serves gRPC and server-sent events; an engine that
computes nothing sends it a token per stream and step over the real channel. What it sent is then
sent once more, at the same pace, by a grpc.aio server that does nothing else. CPU time is the
server process' own, all threads, from the first request to the last byte; the client's is told
apart. The delay of a token is the time from the engine's sending of the step to the client's
receiving of the token: below one step's time no token waits for the next.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from front_client import (
    GENERATE,
    Received,
    count_in_events,
    count_in_response,
    stream_grpc,
    stream_http,
)
from front_servers import SETTINGS, Settings

BARE = "/bare.Server/Stream"
SERVERS = Path(__file__).with_name("front_servers.py")


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of one server. Delays in seconds; late: share of tokens later than a step."""

    server: str
    tokens: int
    messages: int
    payload_bytes: int
    server_cpu: float
    client_cpu: float
    delay_p50: float
    delay_p99: float
    delay_max: float
    late: float


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_message(message: bytes) -> int:
    """The bare server sends a message per step, whatever is in it."""
    return 1


@contextmanager
def process(*arguments: str, settings: Settings, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A server of `front_servers.py`; its output goes to the log."""
    environment = os.environ | {SETTINGS: msgspec.json.encode(settings).decode()}
    with log.open("wb") as output:
        command = [sys.executable, str(SERVERS), *arguments]
        running = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield running
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


def wait_for(log: Path, find: Callable[[list[str]], Any]) -> Any:
    """What `find` makes of the log's lines, once it is not None."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = find(log.read_text().splitlines())
        if found is not None:
            return found
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def replica_ports(lines: list[str]) -> tuple[int, int] | None:
    """HTTP and gRPC port of a replica that serves."""
    events = {event["message"]: event for event in map(json.loads, lines)}
    if "serving" not in events:
        return None
    url, address = events["listening"]["url"], events["listening"]["grpc"]
    return int(url.rsplit(":", 1)[1].split("/")[0]), int(address.rsplit(":", 1)[1])


def last_times(path: Path) -> list[float]:
    """When the steps of the last round were sent."""
    times: list[float] = json.loads(path.read_text().splitlines()[-1])
    return times


async def measure(
    server: str, pid: int, times_path: Path, step_seconds: float, run: Awaitable[list[Received]]
) -> tuple[Measured, list[Received]]:
    """Runs one round and measures it."""
    before, client_before = cpu_seconds(pid), time.process_time()
    streams = await run
    server_cpu, client_cpu = cpu_seconds(pid) - before, time.process_time() - client_before
    await asyncio.sleep(2 * step_seconds)
    sent = last_times(times_path)
    delays = sorted(
        came - sent[number] for stream in streams for number, came in enumerate(stream.times)
    )
    percentiles = statistics.quantiles(delays, n=100)
    messages = [message for stream in streams for message in stream.messages]
    measured = Measured(
        server=server,
        tokens=len(delays),
        messages=len(messages),
        payload_bytes=sum(map(len, messages)),
        server_cpu=server_cpu,
        client_cpu=client_cpu,
        delay_p50=percentiles[49],
        delay_p99=percentiles[98],
        delay_max=delays[-1],
        late=sum(delay > step_seconds for delay in delays) / len(delays),
    )
    return measured, streams


async def compare(arguments: argparse.Namespace, folder: Path) -> list[Measured]:
    """Front and bare server in turn, once per protocol and round."""
    step_seconds, num_streams = arguments.step_ms / 1e3, arguments.streams
    times_path = folder / "times"
    settings = Settings(num_streams, step_seconds, str(times_path))
    results = []
    log = folder / "replica.log"
    flags = ("--model=smollm2", "--host=127.0.0.1", "--http-port=0", "--grpc-port=0")
    with process("replica", *flags, settings=settings, log=log) as replica:
        http_port, grpc_port = wait_for(log, replica_ports)
        for _ in range(arguments.rounds):
            for protocol, count in (("gRPC", count_in_response), ("HTTP", count_in_events)):
                run = (
                    stream_grpc(grpc_port, GENERATE, num_streams, arguments.tokens, count)
                    if protocol == "gRPC"
                    else stream_http(http_port, num_streams, arguments.tokens)
                )
                measured, streams = await measure(
                    f"front, {protocol}", replica.pid, times_path, step_seconds, run
                )
                results.append(measured)
                recorded = folder / "messages"
                recorded.write_text(
                    "".join(json.dumps([m.hex() for m in s.messages]) + "\n" for s in streams)
                )
                bare_log = folder / "bare.log"
                with process("bare", str(recorded), settings=settings, log=bare_log) as bare:
                    port = wait_for(bare_log, lambda lines: int(lines[0]) if lines else None)
                    run = stream_grpc(port, BARE, num_streams, arguments.tokens, is_message)
                    measured, _ = await measure(
                        f"bare, {protocol}'s bytes", bare.pid, times_path, step_seconds, run
                    )
                    results.append(measured)
    return results


def medians(results: list[Measured]) -> list[dict[str, Any]]:
    """One row per server: medians over its rounds, the largest delay of all."""
    rows: dict[str, list[Measured]] = {}
    for measured in results:
        rows.setdefault(measured.server, []).append(measured)
    return [
        {
            "server": server,
            "tokens": rounds[0].tokens,
            "messages": rounds[0].messages,
            "cpu_us_per_token": statistics.median(1e6 * r.server_cpu / r.tokens for r in rounds),
            "client_us_per_token": statistics.median(1e6 * r.client_cpu / r.tokens for r in rounds),
            "delay_p50_ms": statistics.median(1e3 * r.delay_p50 for r in rounds),
            "delay_p99_ms": statistics.median(1e3 * r.delay_p99 for r in rounds),
            "delay_max_ms": max(1e3 * r.delay_max for r in rounds),
            "late_percent": statistics.median(100 * r.late for r in rounds),
        }
        for server, rounds in rows.items()
    ]


def ratios(results: list[Measured]) -> dict[str, float]:
    """CPU time of the front by that of the bare server in the same round; the median round's."""
    told = {}
    for protocol in ("gRPC", "HTTP"):
        fronts = [r.server_cpu for r in results if r.server == f"front, {protocol}"]
        bares = [r.server_cpu for r in results if r.server == f"bare, {protocol}'s bytes"]
        told[protocol] = statistics.median(f / b for f, b in zip(fronts, bares, strict=True))
    return told


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """CPU time per token: a server's as a bar, its client's as a dot."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 2.4), layout="constrained")
    names = [row["server"] for row in rows]
    axes.barh(names, [row["cpu_us_per_token"] for row in rows], color="tab:blue", label="server")
    axes.plot([row["client_us_per_token"] for row in rows], names, "o", color="0.6", label="client")
    axes.invert_yaxis()
    axes.set_xlabel("CPU time per token in µs")
    figure.legend(loc="outside upper right", ncols=2, frameon=False)
    figure.savefig(path)


def print_table(rows: list[dict[str, Any]], told: dict[str, float]) -> None:
    names = list(rows[0])
    print(" | ".join(names))
    for row in rows:
        print(" | ".join(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    for protocol, ratio in told.items():
        print(f"{protocol}: the front takes {ratio:.2f} times the bare server's CPU time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="folder for front.json and front.svg")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = uvloop.run(compare(arguments, Path(folder)))
    rows, told = medians(results), ratios(results)
    print_table(rows, told)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        told_all = {"ratio": told, "median": rows, "rounds": [asdict(r) for r in results]}
        (arguments.out / "front.json").write_text(json.dumps(told_all, indent=1) + "\n")
        draw(rows, arguments.out / "front.svg")


if __name__ == "__main__":
    main()
