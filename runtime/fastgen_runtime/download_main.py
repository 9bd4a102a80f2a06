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
* `--config-map NAME --key KEY [--namespace NS]`: merges `names.DeliveryField`s into the ConfigMap,
  which must exist, with the pod's service account (verb: patch). The first report has the state
  Downloading and clears what an earlier run left; the last has Delivered or Failed. While the
  download waits to try again, reason and message say why. PATH is relative to DIR and known
  together with REVISION and SIZE_BYTES, before the weights come.
* `--resolve-only`: fetches no weights. REVISION, PATH and SIZE_BYTES are what the download will
  have, the state is Delivered.
* Exit codes: 0: delivered; 1: a failure that no retry mends (source, access, checksum,
  architecture); 75 (EX_TEMPFAIL): one that may pass (server, network, room in the cache, a report
  that did not arrive, SIGTERM). With either the termination log holds `Reason: sentence`.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from fastgen_api.names import StartupFailure
from fastgen_runtime.log import log_problem, start_logging
from fastgen_runtime.startup_error import StartupError
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
    try:
        _bring(source, revision, cache)
    except StartupError as error:
        log_problem("the model is not delivered", reason=str(error.reason), sentence=str(error))
        leave_message(error.reason, str(error))
        sys.exit(os.EX_TEMPFAIL if error.reason in _PASSING else 1)


def _bring(source: str, revision: str | None, cache: Path) -> None:
    from fastgen_runtime.sources.hub import fetch_hub
    from fastgen_runtime.sources.hub_source import parse_hub_source

    model = parse_hub_source(source, revision)
    fetch_hub(model, cache / "huggingface" / "hub")


if __name__ == "__main__":
    app()
