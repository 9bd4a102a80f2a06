"""Pictures of the rows of `engine.py` and `growth.py`, as SVG."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "fastgen"  # the same rows give the same file
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

Rows = list[dict[str, Any]]


def _save(draw: Callable[[Axes], None], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def plot_steps(rows: Rows, path: Path) -> None:
    """Step time against tokens, a line per number of requests."""

    def draw(axes: Axes) -> None:
        for requests in sorted({row["requests"] for row in rows}):
            part = [row for row in rows if row["requests"] == requests]
            axes.plot(
                [row["tokens"] for row in part],
                [row["milliseconds"] for row in part],
                marker="o",
                label=f"{requests} request{'s' if requests > 1 else ''}",
            )
        axes.set(xscale="log", yscale="log", xlabel="tokens of the step", ylabel="step, ms")
        axes.set_xticks([row["tokens"] for row in rows if row["requests"] == 1])
        axes.get_xaxis().set_major_formatter("{x:.0f}")
        axes.legend(frameon=False)

    _save(draw, path)


def plot_chunks(rows: Rows, path: Path) -> None:
    """Time of equal chunks as a share of greedy ones."""

    def draw(axes: Axes) -> None:
        places = range(len(rows))
        for offset, key, label in (
            (-0.2, "equal_over_greedy", "whole prompt"),
            (0.2, "longest_equal_over_greedy", "longest step"),
        ):
            axes.bar([place + offset for place in places], [row[key] for row in rows], 0.4,
                     label=label)  # fmt: skip
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_xticks(list(places), [f"{row['prompt']} tokens" for row in rows])
        axes.set_ylabel("equal chunks / greedy chunks, time")
        axes.legend(frameon=False)

    _save(draw, path)


def plot_pace(rows: Rows, path: Path) -> None:
    """Step times and time per output token by policy."""

    def draw(axes: Axes) -> None:
        names = [row["budget"] for row in rows]
        for offset, key, label in (
            (-0.27, "step_p99_ms", "step, p99"),
            (0.0, "tpot_p99_ms", "time per output token of chats, p99"),
            (0.27, "tpot_p50_ms", "the same, median"),
        ):
            places = [place + offset for place in range(len(names))]
            bars = axes.bar(places, [row[key] for row in rows], 0.27, label=label)
            axes.bar_label(bars, fmt="%.0f", fontsize=7)
        axes.set_xticks(range(len(names)), names)
        axes.set(yscale="log", ylabel="ms")
        axes.legend(frameon=False)

    _save(draw, path)


def plot_streams(rows: Rows, path: Path) -> None:
    """Time of a step, and tokens of all streams per second, against the streams."""

    def draw(axes: Axes) -> None:
        streams = [row["streams"] for row in rows]
        axes.plot(streams, [row["step_ms"] for row in rows], marker="o", label="step, ms")
        rates = [row["tokens_per_second"] for row in rows]
        axes.plot(streams, rates, "--", marker="o", label="tokens/s of all streams")
        axes.set(xscale="log", yscale="log", xlabel="answers at once")
        axes.set_xticks(streams)
        axes.get_xaxis().set_major_formatter("{x:.0f}")
        axes.legend(frameon=False)

    _save(draw, path)


def plot_context(rows: Rows, path: Path) -> None:
    """Time to first token, and per token after it, against the prompt."""

    def draw(axes: Axes) -> None:
        lengths = [row["context"] for row in rows]
        axes.plot(lengths, [row["ttft_ms"] for row in rows], marker="o", label="TTFT")
        axes.plot(lengths, [row["tpot_ms"] for row in rows], "--", marker="o", label="TPOT")
        axes.set(xscale="log", yscale="log", xlabel="tokens of the prompt", ylabel="ms")
        axes.set_xticks(lengths)
        axes.get_xaxis().set_major_formatter("{x:.0f}")
        axes.legend(frameon=False)

    _save(draw, path)


PLOTS: Final[dict[str, Callable[[Rows, Path], None]]] = {
    "steps": plot_steps,
    "chunks": plot_chunks,
    "pace": plot_pace,
    "streams": plot_streams,
    "context": plot_context,
}
