"""The GPU's kernels and the engine on them, measured on this machine's GPU in under four minutes.

    python benchmarks/gpu.py [PART ...] [--dry] [--minutes 4] [--out DIR]

checks: each kernel against its twin.
decode: attention of single tokens, as a share of measured copy bandwidth; how evenly its CTAs end;
other ways to divide the work.
prefill: attention of prompts in TFLOP/s.
step: whole steps of Llama-3-8B's shape, random weights, beside the time that reading the weights
takes.
serving: the same model under 1 to 32 clients by SplitFuse, prefill-first and vanilla batches:
goodput, time to first token, time per output token.
peers: the same attention by others, where they are installed.

Prints one table, and writes gpu.json to DIR after each part. Ends with 1 when a result is wrong or
a part fails; an aim of speed that is missed is a finding. Without a GPU it says so and ends with 2.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from fastgen_runtime.engine import cores

cores.limit_threads(cores.available_threads())  # before torch is imported
import torch  # noqa: E402
from gpu_attention import decode_figures, prefill_figures  # noqa: E402
from gpu_cases import DRY, FULL, Sizes  # noqa: E402
from gpu_checks import check_figures  # noqa: E402
from gpu_clients import Slo  # noqa: E402
from gpu_figures import Figure, Trouble, as_json, exit_code, sentences, table  # noqa: E402
from gpu_model import Runners, make_runners  # noqa: E402
from gpu_peers import peer_findings  # noqa: E402
from gpu_serving import measure_serving, step_figures  # noqa: E402
from gpu_target import (  # noqa: E402
    Target,
    copy_bytes_per_second,
    dry_target,
    gpu_target,
    operations_per_second,
)

from fastgen_runtime.startup_error import StartupError  # noqa: E402

PARTS: Final = ("checks", "decode", "prefill", "step", "serving", "peers")
"""In the order in which they are measured: what matters most comes before time runs out."""
Finding = Figure | Trouble


class Bench:
    """What the parts have in common, made when the first of them needs it."""

    def __init__(self, target: Target, sizes: Sizes, slo: Slo, seed: int) -> None:
        self._target = target
        self._sizes = sizes
        self._slo = slo
        self._seed = seed
        self._runners: Runners | None = None
        self.copy_rate = copy_bytes_per_second(target, sizes.copy_bytes, sizes.rounds)
        self.product_rate = operations_per_second(target, sizes.matrix, sizes.rounds)

    def machine(self) -> Iterator[Figure]:
        """What everything else is compared with."""
        yield Figure("machine", self._target.name, "copy", self.copy_rate / 1e9, "GB/s")
        yield Figure("machine", self._target.name, "product", self.product_rate / 1e12, "TFLOP/s")

    def part(self, name: str) -> Iterator[Finding]:
        """The findings of one of PARTS, as they come."""
        target, sizes = self._target, self._sizes
        parts: dict[str, Callable[[], Iterator[Finding]]] = {
            "checks": lambda: check_figures(target),
            "decode": lambda: decode_figures(target, sizes, self.copy_rate),
            "prefill": lambda: prefill_figures(target, sizes, self.product_rate),
            "step": lambda: step_figures(self._models(), sizes, self.copy_rate, self.product_rate),
            "serving": lambda: measure_serving(self._models().graphs, sizes, self._slo, self._seed),
            "peers": lambda: peer_findings(target, sizes, self.copy_rate, self.product_rate),
        }
        return parts[name]()

    def forget_model(self) -> None:
        """Frees its memory, for the peers."""
        self._runners = None
        if self._target.is_gpu:
            torch.cuda.empty_cache()

    def _models(self) -> Runners:
        if self._runners is None:
            self._runners = make_runners(self._target, self._sizes)
        return self._runners


def measure(
    bench: Bench, parts: list[str], until: float, note: Callable[[list[Finding]], None]
) -> list[Finding]:
    """Each part's findings; one that fails leaves the others alone. until: by `time.monotonic`,
    from when on nothing more is begun. note: told all findings after each part."""
    found: list[Finding] = list(bench.machine())
    for name in parts:
        if name == "peers":
            bench.forget_model()
        begun = time.monotonic()
        try:
            for finding in bench.part(name):
                found.append(finding)
                if time.monotonic() > until:
                    found.append(Trouble(name, "the rest", "no time was left (--minutes)"))
                    break
        except Exception as error:
            first = str(error).strip().splitlines()[:1]
            found.append(Trouble(name, "the rest", f"{type(error).__name__}: {''.join(first)}"))
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
        note(found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(PARTS)}")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU, by the twins")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--ttft", type=float, default=1.0, help="seconds to a good first token")
    parser.add_argument("--tpot", type=float, default=0.05, help="seconds per good output token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("results"))
    asked = parser.parse_args()
    parts = asked.parts or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    begun = time.monotonic()
    try:
        target = dry_target() if asked.dry else gpu_target()
    except (RuntimeError, StartupError) as error:
        print(error, file=sys.stderr)
        return 2
    asked.out.mkdir(parents=True, exist_ok=True)
    parameters = {"seed": asked.seed, "dry": asked.dry, "ttft": asked.ttft, "tpot": asked.tpot}

    def write(found: list[Finding]) -> None:
        file: dict[str, Any] = {
            "machine": target.name,
            "torch": torch.__version__,
            "parameters": parameters,
            **as_json(*_parted(found)),
        }
        (asked.out / "gpu.json").write_text(json.dumps(file, indent=1) + "\n")

    bench = Bench(target, DRY if asked.dry else FULL, Slo(asked.ttft, asked.tpot), asked.seed)
    figures, troubles = _parted(measure(bench, parts, begun + 60 * asked.minutes, write))
    print(f"\n{table(figures)}\n\n{sentences(troubles)}")
    print(f"{target.name}, {time.monotonic() - begun:.0f} s")
    return exit_code(figures, troubles)


def _parted(found: list[Finding]) -> tuple[list[Figure], list[Trouble]]:
    figures = [each for each in found if isinstance(each, Figure)]
    return figures, [each for each in found if isinstance(each, Trouble)]


if __name__ == "__main__":
    sys.exit(main())
