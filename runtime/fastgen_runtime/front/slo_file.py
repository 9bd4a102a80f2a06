"""The SLO's file, which changes under a running replica, and the pace that it asks for."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from fastgen_api.names import StartupFailure
from fastgen_api.spec import SLO, slo_from_json
from fastgen_runtime.engine.budget import Pace
from fastgen_runtime.log import log_event, log_problem
from fastgen_runtime.startup_error import StartupError

_POLL_SECONDS: Final = 1.0


def read_slo(path: Path | None) -> SLO:
    """The SLO at the start; without a file one without targets. Raises StartupError."""
    if path is None:
        return SLO()
    try:
        return slo_from_json(path.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise StartupError(
            StartupFailure.CONFIG_INVALID, f"--slo-file {path} cannot be used: {error}"
        ) from error


async def watch_slo(path: Path, apply: Callable[[SLO], None]) -> None:
    """Calls `apply` whenever the file holds another SLO; a broken file changes nothing.

    It polls: a ConfigMap's file is a link that is swapped, and a second is soon enough.
    """
    seen = _content(path)
    while True:
        await asyncio.sleep(_POLL_SECONDS)
        content = _content(path)
        if content is None or content == seen:
            continue
        seen = content
        try:
            slo = slo_from_json(content)
        except msgspec.MsgspecError as error:
            log_problem("the new SLO cannot be read, the old one stays", reason=str(error))
            continue
        apply(slo)
        log_event("the SLO changed", slo=msgspec.to_builtins(slo))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def pace_of(slo: SLO) -> Pace:
    """What the SLO asks of the engine."""
    first, per_token, gap = slo.time_to_first_token, slo.time_per_output_token, slo.token_gap
    return Pace(
        seconds_per_token=None if per_token is None else per_token.milliseconds / 1e3,
        longest_gap_seconds=None if gap is None else gap.max_milliseconds / 1e3,
        first_token_seconds=0.0 if first is None else first.milliseconds / 1e3,
        seconds_per_prompt_token=(
            0.0 if first is None else first.per_prompt_token_microseconds / 1e6
        ),
    )
