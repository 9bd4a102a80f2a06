"""`fastgen-download`: brings one model into a cache, for all replicas that will read it there.

What a Job or an init container that runs it needs to know:

* `--source` is `hf://owner/name[@revision][/file.gguf]` or `https://host/path.gguf[#sha256=HEX]`.
  `--revision` is a branch, tag or commit of an hf:// source that names none itself.
* `--cache DIR` must be writable. Models of hf:// lie in DIR/huggingface/hub in Hugging Face's own
  layout (replicas that read it get HF_HOME=DIR/huggingface), files of https:// in DIR/https. The
  folder may be shared: one process at a time brings a model, and the others wait for it. A run that
  finds the model complete asks for no file again; one that was killed goes on where it was.
* Environment: HF_TOKEN (hf://: to the hub; https://: to the source's own host; never along a
  redirect to another), HF_ENDPOINT, SSL_CERT_FILE, HTTPS_PROXY and NO_PROXY,
  FASTGEN_DOWNLOAD_STALL_SECONDS (30: longest silence of a connection) and
  FASTGEN_DOWNLOAD_PATIENCE_SECONDS (1800: longest time without a new byte, waits included).
* `--config-map NAME --key KEY [--namespace NS]`: merges `DeliveryField`s into the ConfigMap,
  which must exist, with the pod's service account (verbs: get, patch). The first report has the
  state Downloading and clears what an earlier run left; the last has Delivered or Failed. While the
  download waits to try again, reason and message say why. PATH is relative to DIR and known
  together with REVISION and SIZE_BYTES, before the weights come. A download whose ConfigMap has
  got another key meanwhile writes no more. A REVISION that it holds of the same key is the commit
  that is brought, whatever the branch has become: what a run resolved, the next one goes on with.
  Whoever applies the ConfigMap must own none of `data`.
* `--resolve-only`: fetches no weights. REVISION, PATH and SIZE_BYTES are what the download will
  have, the state is Delivered, and there are no DOWNLOADED_BYTES.
* Exit codes: 0: delivered; 1: a failure that no retry mends (source, access, checksum,
  architecture); 75 (EX_TEMPFAIL): one that may pass (server, network, room in the cache, a report
  that did not arrive, SIGTERM). With either the termination log holds `Reason: sentence`.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from fastgen_api.delivery import DeliveryState
from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_event, log_problem, start_logging
from fastgen_runtime.sources.config_map import ACCOUNT_FOLDER, ConfigMap
from fastgen_runtime.sources.deliver import SCHEMES, Order, deliver
from fastgen_runtime.sources.delivery_report import DeliveryReport
from fastgen_runtime.sources.model import Model, caches_in
from fastgen_runtime.sources.patience import Limits, limits_from
from fastgen_runtime.sources.progress import Progress, Told, logged
from fastgen_runtime.sources.trouble import without_secrets
from fastgen_runtime.startup_error import ModelError
from fastgen_runtime.termination import leave_message

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_PASSING: Final = frozenset({StartupFailure.DOWNLOAD_FAILED, StartupFailure.CACHE_FULL})
"""Failures that may be none when the same is tried again later."""


@app.command()
def download(
    source: Annotated[str, typer.Option(help="hf://owner/name or https://host/path.gguf.")],
    cache: Annotated[Path, typer.Option(help="Folder that models are kept in.")],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of an hf:// source.")
    ] = None,
    resolve_only: Annotated[
        bool, typer.Option("--resolve-only", help="Tell revision, path and size; no weights.")
    ] = False,
    namespace: Annotated[
        str | None, typer.Option(help="Of the ConfigMap; default: the pod's.")
    ] = None,
    config_map: Annotated[
        str | None, typer.Option(help="ConfigMap that is told how far the download is.")
    ] = None,
    key: Annotated[str, typer.Option(help="What the ConfigMap calls this model.")] = "",
) -> None:
    """Bring a model into a cache."""
    start_logging("fastgen-download")
    signal.signal(signal.SIGTERM, _stop)
    progress = Progress(Told(brings_all=not resolve_only))
    order = Order(source, caches_in(cache.absolute()), Limits(), revision, resolve_only)
    with _report(config_map, key, namespace, progress, order) as report:
        sys.exit(_run(order, progress, report))


def _run(order: Order, progress: Progress, report: DeliveryReport | None) -> int:
    """Brings the model and tells how that went; the exit code."""
    order = replace(order, pinned=report.pinned() if report else None)
    try:
        with report.running() if report else nullcontext(), logged(progress):
            model = _bring(order, progress)
    except ModelError as error:
        failure = error.reason, str(error)
    except Exception as error:
        log_problem("a fault of the program", error)
        sentence = f"the program failed ({type(error).__name__}): its log tells more"
        failure = StartupFailure.DOWNLOAD_FAILED, sentence
    else:
        what = "resolved" if order.resolve_only else "delivered"
        fields = {"revision": model.revision, "path": str(model.path), "bytes": model.size_bytes}
        log_event(what, **fields)
        if report is None or report.end(DeliveryState.DELIVERED):
            return 0
        return _fail(StartupFailure.DOWNLOAD_FAILED, "the API server cannot be told of the model")
    if report is not None:
        report.end(DeliveryState.FAILED, failure)
    return _fail(*failure)


def _bring(order: Order, progress: Progress) -> Model:
    if not order.source.startswith(SCHEMES):
        raise ModelError(
            StartupFailure.MODEL_UNSUPPORTED,
            f"{without_secrets(order.source, None)} cannot be downloaded: give "
            "hf://owner/name or https://host/path.gguf",
        )
    limits = limits_from(os.environ, order.limits)
    return deliver(replace(order, limits=limits), progress)


def _fail(reason: StartupFailure, sentence: str) -> int:
    log_problem("the model is not delivered", reason=str(reason), sentence=sentence)
    leave_message(reason, sentence)
    return os.EX_TEMPFAIL if reason in _PASSING else 1


@contextmanager
def _report(
    name: str | None, key: str, namespace: str | None, progress: Progress, order: Order
) -> Iterator[DeliveryReport | None]:
    """Ends the process where there is a ConfigMap to write and nobody to write it as."""
    if name is None:
        yield None
        return
    try:
        config_map = ConfigMap(name, key, namespace)
    except OSError as error:
        sentence = f"--config-map needs the service account in {ACCOUNT_FOLDER}: {error}"
        sys.exit(_fail(StartupFailure.CONFIG_INVALID, sentence))
    with closing(config_map):
        yield DeliveryReport(config_map, progress, order.caches.root)


def _stop(number: int, _frame: FrameType | None) -> None:
    """Ends at once: what has come is with the kernel, and connections need no good-bye."""
    log_event("stopped, what has come is kept", signal=signal.Signals(number).name)
    os._exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    app()
