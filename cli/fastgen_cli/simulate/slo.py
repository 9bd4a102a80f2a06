"""An SLO from the command line."""

import re
from pathlib import Path
from typing import Final

import msgspec

from fastgen_api.spec import SLO, TimePerOutputToken, TimeToFirstToken, TokenGap, slo_from_json
from fastgen_cli.errors import UserError

EXAMPLE: Final = "ttft=500ms+2000us,tpot=50ms,gap=250ms,percent=99"
KEYS: Final = ("ttft", "tpot", "gap", "percent")
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")
_MICROSECONDS: Final = {"us": 1, "ms": 1000, "s": 1_000_000}


def parse_slo(text: str) -> SLO:
    """Reads `ttft=500ms+2000us,tpot=50ms,gap=250ms,percent=99` (after the +: per prompt token), or
    the path of a JSON file in the form of `spec.slo`.

    Raises UserError that names the part which cannot be read.
    """
    if "=" not in text and text.endswith(".json"):
        return _read(Path(text))
    parts: dict[str, str] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"--slo: {part!r} has no value; write for example {EXAMPLE}")
        if key not in KEYS:
            raise UserError(f"--slo: {key!r} is none of {', '.join(KEYS)}")
        if key in parts:
            raise UserError(f"--slo: {key} is given twice")
        parts[key] = value
    return _checked(_slo(parts))


def _read(path: Path) -> SLO:
    try:
        return _checked(slo_from_json(path.read_bytes()))
    except (OSError, msgspec.DecodeError) as error:
        raise UserError(f"--slo {path}: {error}") from error


def _slo(parts: dict[str, str]) -> SLO:
    ttft = None
    if "ttft" in parts:
        fixed, plus, each = parts["ttft"].partition("+")
        per_token = _microseconds("ttft", each) if plus else 0
        ttft = TimeToFirstToken(_milliseconds("ttft", fixed), per_token)
    return SLO(
        target_percent=parts.get("percent", SLO().target_percent),
        time_to_first_token=ttft,
        time_per_output_token=(
            TimePerOutputToken(_milliseconds("tpot", parts["tpot"])) if "tpot" in parts else None
        ),
        token_gap=TokenGap(_milliseconds("gap", parts["gap"])) if "gap" in parts else None,
    )


def _checked(slo: SLO) -> SLO:
    if not (slo.time_to_first_token or slo.time_per_output_token or slo.token_gap):
        raise UserError(f"--slo: no target: set ttft, tpot or gap, for example {EXAMPLE}")
    try:
        percent = float(slo.target_percent)
    except ValueError:
        percent = 0.0
    if not 0 < percent < 100:
        raise UserError(f"--slo: percent {slo.target_percent!r} must lie between 0 and 100")
    return slo


def _microseconds(key: str, text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UserError(f"--slo: {key}: {text!r} is no duration such as 500ms, 2000us or 1.5s")
    return round(float(found[1]) * _MICROSECONDS[found[2]])


def _milliseconds(key: str, text: str) -> int:
    return max(1, round(_microseconds(key, text) / 1000))
