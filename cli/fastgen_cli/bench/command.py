"""`fastgen bench`: finds the model, fits the prompts, runs each load, and reports."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from fastgen_api.spec import SLO
from fastgen_cli.bench.api import Api
from fastgen_cli.bench.endpoint import Endpoint, Sampling
from fastgen_cli.bench.failures import advice
from fastgen_cli.bench.fitting import GRPC_IDS, fit, parse_ids
from fastgen_cli.bench.grpc_endpoint import GrpcEndpoint
from fastgen_cli.bench.http_endpoint import HttpEndpoint
from fastgen_cli.bench.keys import Keys, read_keys
from fastgen_cli.bench.loads import ClosedLoad, Limits, Load, make_loads, make_shape, requests_of
from fastgen_cli.bench.measures import Point, measure
from fastgen_cli.bench.page import page_of
from fastgen_cli.bench.plots import draw
from fastgen_cli.bench.progress import Screen
from fastgen_cli.bench.prompts import Prompts, TextPrompts
from fastgen_cli.bench.report import (
    SCHEMA,
    LoadFacts,
    Report,
    remarks,
    summary_of,
    table_of,
    write_json,
)
from fastgen_cli.bench.requests import Shape
from fastgen_cli.bench.run import CountText, Run, Sender
from fastgen_cli.bench.tokenizer import load_tokenizer
from fastgen_cli.errors import UserError
from fastgen_cli.outputs import check_file, write_file
from fastgen_cli.plotting import check_plot, load_matplotlib, save_plot
from fastgen_cli.simulate.slo import parse_slo
from fastgen_cli.simulate.trace import Trace, read_trace


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was asked; the flags are explained in `bench_command`."""

    url: str
    grpc: str | None = None
    tls: bool = False
    ca_file: Path | None = None
    api: Api = Api.CHAT
    model: str | None = None
    api_key_file: Path | None = None
    clients: str | None = None
    rate: str | None = None
    trace: Path | None = None
    speed: str = "1"
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    max_length: int | None = None
    requests: int | None = None
    seconds: float | None = None
    warm_up: int = 1
    timeout: float = 600.0
    max_in_flight: int = 1000
    slo: str | None = None
    ignore_eos: bool = True
    temperature: float | None = None
    token_ids: str | None = None
    tokenizer: Path | None = None
    seed: int = 0
    output: Path | None = None
    plot: Path | None = None
    html: Path | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """The options, read and checked before anything is sent."""

    options: Options
    slo: SLO | None
    trace: Trace
    shape: Shape
    loads: tuple[Load, ...]
    keys: Keys
    count_text: CountText | None


@dataclass(frozen=True, slots=True)
class Measured:
    """What the endpoint showed."""

    model: str
    is_exact: bool
    prompts: str
    points: tuple[Point, ...]


def make_task(options: Options) -> Task:
    """Raises UserError for what cannot be done, whatever the endpoint is like."""
    if options.plot:
        check_plot(options.plot)
    if options.html:
        load_matplotlib("--html")
        check_file(options.html, "--html")
    if options.output:
        check_file(options.output, "--output")
    if options.tls and not options.grpc:
        raise UserError("--tls goes with --grpc: a URL says https:// itself")
    if options.token_ids and not options.grpc and options.api is Api.CHAT:
        raise UserError("--token-ids: a chat is a text; ask with --api completions")
    trace = read_trace(options.trace) if options.trace else ()
    limits = Limits(options.requests, options.seconds)
    return Task(
        options=options,
        slo=parse_slo(options.slo) if options.slo else None,
        trace=trace,
        shape=make_shape(options.prompt_tokens, options.output_tokens, trace, options.max_length),
        loads=make_loads(options.clients, options.rate, trace, options.speed, limits),
        keys=read_keys(options.api_key_file),
        count_text=load_tokenizer(options.tokenizer) if options.tokenizer else None,
    )


def run(options: Options, console: Console, progress_console: Console) -> bool:
    """Measures, prints the table, writes the files; whether nobody stopped it.

    Raises UserError.
    """
    task = make_task(options)
    began = datetime.now(UTC)
    try:
        measured = asyncio.run(_measure(task, Screen(progress_console)))
    except UserError as error:
        # An endpoint's words may hold the key that it was sent.
        raise UserError(task.keys.hidden(str(error))) from None
    report = _report(task, measured, began)
    console.print(table_of(report.points, report.slo))
    for remark in remarks(report):
        console.print(remark, highlight=False, markup=False, soft_wrap=True)
    if options.output:
        write_json(report, options.output)
    if options.plot:
        save_plot(draw([(report.model, report.points)]), options.plot)
    if options.html:
        write_file(options.html, page_of(report).encode(), "--html")
    return report.is_complete


def _open(options: Options) -> Endpoint:
    sampling = Sampling(options.ignore_eos, options.temperature)
    if options.grpc:
        return GrpcEndpoint.open(
            options.grpc, options.model, sampling, options.timeout, options.tls, options.ca_file
        )
    return HttpEndpoint.open(
        options.url, options.api, options.model, sampling, options.timeout, options.ca_file
    )


async def _measure(task: Task, screen: Screen) -> Measured:
    endpoint = _open(task.options)
    try:
        model = await endpoint.find_model(task.keys.of(0))
        screen.say(f"{model} at {endpoint.address}")
        prompts = await _prompts(task, endpoint, model)
        options = task.options
        sender = Sender(endpoint, prompts, task.keys, options.seed, task.count_text)
        await _warm_up(task, sender, model)
        points = await _run_all(task, sender, screen)
    finally:
        await endpoint.close()
    is_text = isinstance(prompts, TextPrompts)
    is_exact = prompts.is_exact if isinstance(prompts, TextPrompts) else True
    return Measured(model, is_exact, "text" if is_text else "token ids", points)


async def _prompts(task: Task, endpoint: Endpoint, model: str) -> Prompts:
    ids = task.options.token_ids or (GRPC_IDS if task.options.grpc else None)
    if ids is not None:
        return parse_ids(ids)
    return await fit(endpoint, model, task.keys.of(0), task.count_text)


async def _warm_up(task: Task, sender: Sender, model: str) -> None:
    """Requests that do not count; raises UserError when none of them is answered."""
    if not task.options.warm_up:
        return
    run = Run(sender)
    limits = Limits(requests=task.options.warm_up)
    requests = requests_of(ClosedLoad(1, limits), len(task.loads), task.shape, task.options.seed)
    await run.closed(requests, 1, task.options.timeout, asyncio.Event())
    failed = [record.failure for record in run.records if record.failure]
    if failed and len(failed) == len(run.records):
        raise UserError(advice(failed[0], sender.endpoint.address, model))


async def _run_all(task: Task, sender: Sender, screen: Screen) -> tuple[Point, ...]:
    """A point per load, until all are done or Ctrl-C."""
    points = []
    with _stopped_by_interrupt() as stop:
        for place, load in enumerate(task.loads):
            if stop.is_set():
                break
            run = await _run_one(task, sender, screen, place, load, stop)
            point = measure(
                load.name,
                run.records,
                task.slo,
                clients=load.clients if isinstance(load, ClosedLoad) else None,
                rate=None if isinstance(load, ClosedLoad) else load.rate,
                is_complete=run.is_complete,
            )
            screen.say(summary_of(point))
            points.append(point)
    return tuple(points)


async def _run_one(
    task: Task, sender: Sender, screen: Screen, place: int, load: Load, stop: asyncio.Event
) -> Run:
    run = Run(sender)
    requests = requests_of(load, place, task.shape, task.options.seed)
    most = load.most_requests if isinstance(load, ClosedLoad) else float("inf")
    seconds = load.seconds
    if isinstance(load, ClosedLoad):
        async with screen.following(load.name, run, most, seconds):
            await run.closed(requests, load.clients, seconds, stop)
    else:
        listed = list(requests)
        last = listed[-1].at_seconds if listed else 0.0
        async with screen.following(load.name, run, len(listed), last):
            await run.open(listed, task.options.max_in_flight, stop)
    return run


@contextmanager
def _stopped_by_interrupt() -> Iterator[asyncio.Event]:
    """Ctrl-C sets the event; a second one ends the program as it is used to."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        stop.set()
        loop.remove_signal_handler(signal.SIGINT)

    # Outside the main thread there are no signals.
    with suppress(ValueError, RuntimeError, NotImplementedError):
        loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        yield stop
    finally:
        with suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)


def _report(task: Task, measured: Measured, began: datetime) -> Report:
    options = task.options
    facts = LoadFacts(
        prompt_tokens=str(task.shape.prompts),
        output_tokens=str(task.shape.outputs),
        trace=options.trace.name if options.trace else None,
        seed=options.seed,
        ignore_eos=options.ignore_eos,
        temperature=options.temperature,
        prompts=measured.prompts,
        is_exact=measured.is_exact,
    )
    done = len(measured.points) == len(task.loads)
    return Report(
        schema=SCHEMA,
        began=began.isoformat(timespec="seconds"),
        endpoint=options.grpc or options.url,
        protocol="gRPC" if options.grpc else f"OpenAI {options.api}",
        model=measured.model,
        load=facts,
        slo=task.slo,
        is_complete=done and all(point.is_complete for point in measured.points),
        points=list(measured.points),
    )
