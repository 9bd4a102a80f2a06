"""The picture of `replay.py`: replicas and times to first token, real and simulated."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "fastgen"  # the same figures give the same file
from matplotlib import pyplot as plt  # noqa: E402

from fastgen_cli.simulate.agreement import Run, Seen  # noqa: E402


def plot(runs: Mapping[str, tuple[Run, Sequence[Seen]]], seconds: float, path: Path) -> None:
    """Replicas asked for and ready above, each request's time to first token below."""
    _, (replicas, latency) = plt.subplots(2, 1, figsize=(8, 6), sharex=True)
    for number, (name, (run, seen)) in enumerate(runs.items()):
        colour = f"C{number}"
        minutes = [moment.at / 60 for moment in run.timeline] + [seconds / 60]
        for values, style, label in (
            ([moment.wanted for moment in run.timeline], "-", f"{name}, asked for"),
            ([moment.ready for moment in run.timeline], ":", f"{name}, ready"),
        ):
            replicas.step(
                minutes, [*values, values[-1]], where="post", linestyle=style, color=colour,
                label=label,
            )  # fmt: skip
        known = [one for one in seen if one.ttft_seconds is not None]
        latency.plot(
            [one.at / 60 for one in known], [one.ttft_seconds or 0.0 for one in known], ".",
            color=colour, markersize=4, label=name,
        )  # fmt: skip
    replicas.set(ylabel="replicas", ylim=(0, None))
    latency.set(xlabel="minutes", ylabel="time to first token, s", yscale="log")
    for axes in (replicas, latency):
        axes.legend(frameon=False, fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
