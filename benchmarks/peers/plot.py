"""One picture: W1, W2 and W4 as bars, W3 as curves of gap against the long prompt's time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl

from peers.settings import LLAMACPP, LLAMACPP_BATCHED, OPENVINO, OURS, VLLM
from peers.verdicts import Row, point
from peers.workloads import Name

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "fastgen"  # the same rows give the same file
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

COLOURS: Final = {
    OURS: "tab:orange", OPENVINO: "tab:blue", VLLM: "tab:green", LLAMACPP: "tab:grey",
    LLAMACPP_BATCHED: "silver",
}  # fmt: skip
_MOST_BARS: Final = 8


def plot_bars(axes: Axes, rows: Sequence[Row], name: Name, measure: str, label: str) -> None:
    """The best configurations by a measure, with the extremes of their rounds."""
    is_rate = measure.endswith("per_second")
    chosen = sorted((row for row in rows if row.workload is name),
                    key=lambda row: row.median(measure), reverse=is_rate)[:_MOST_BARS]  # fmt: skip
    for place, row in enumerate(reversed(chosen)):
        spread, factor = row.spreads[measure], 1 if is_rate else 1e3
        reach = [
            [factor * (spread.median - spread.least)],
            [factor * (spread.most - spread.median)],
        ]
        axes.barh(place, factor * spread.median, xerr=reach,
                  color=COLOURS[row.configuration.engine])  # fmt: skip
    axes.set_yticks(range(len(chosen)), [row.configuration.name for row in reversed(chosen)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(f"{name}: {label}", fontsize=9)


def plot_stall(axes: Axes, rows: Sequence[Row]) -> None:
    """A curve for each engine; further left and down is better."""
    stall = [row for row in rows if row.workload is Name.STALL]
    for engine in dict.fromkeys(row.configuration.engine for row in stall):
        points = sorted(point(row) for row in stall if row.configuration.engine == engine)
        axes.plot([ttft for ttft, _ in points], [1e3 * gap for _, gap in points], marker="o",
                  color=COLOURS[engine], label=engine)  # fmt: skip
    axes.set(yscale="log", xlabel="the long prompt's first token, s", ylabel="longest gap, ms")
    axes.set_title(f"{Name.STALL}: a long prompt among streams", fontsize=9)
    axes.legend(frameon=False, fontsize=7)


def plot(rows: Sequence[Row], path: Path) -> None:
    """Writes an SVG."""
    figure, axes = plt.subplots(2, 3, figsize=(14, 7))
    plot_bars(axes[0][0], rows, Name.DECODE, "output_tokens_per_second", "output tokens/s")
    plot_bars(axes[0][1], rows, Name.MIXTURE, "total_tokens_per_second", "total tokens/s")
    plot_bars(axes[1][0], rows, Name.SINGLE, "ttft_p50_seconds", "time to first token, ms")
    plot_bars(axes[1][1], rows, Name.SINGLE, "tpot_p50_seconds", "time per output token, ms")
    plot_stall(axes[0][2], rows)
    axes[1][2].axis("off")
    for each in axes.flat:
        each.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
