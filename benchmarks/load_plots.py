"""The picture of `load.py`'s figures, as SVG: a panel for each section that has one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "fastgen"  # the same figures give the same file
from load_sections import Found  # noqa: E402
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

Details = dict[str, Any]


def _added(details: Details, axes: Axes) -> None:
    shares = ("p50", "p90", "p99")
    for offset, (label, key) in ((-0.2, ("direct", "direct")), (0.2, ("FastGen", "balanced"))):
        last = details[f"at random, {key}"][-1]
        heights = [max(told["ttft_ms"][share] for told in last) for share in shares]
        places = [place + offset for place in range(len(shares))]
        axes.bar_label(axes.bar(places, heights, 0.4, label=label), fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(shares)), shares)
    axes.set(title="500 streams", ylabel="time to first token, ms")
    axes.legend(frameon=False)


def _tokens(details: Details, axes: Axes) -> None:
    for count, rounds in details["picker_seconds_per_request"].items():
        axes.plot([str(count)] * len(rounds), [1e3 * each for each in rounds], "o")
    axes.set(title="CPU time of the picker", xlabel="tokens per answer", ylabel="ms per request",
             ylim=(0, None))  # fmt: skip


def _replicas(details: Details, axes: Axes) -> None:
    numbers = list(details["balanced"])
    one = details["balanced"][numbers[0]]
    axes.plot(numbers, [one * number for number in numbers], "--", color="grey", label="linear")
    for label, key in (("FastGen", "balanced"), ("direct", "direct")):
        axes.plot(numbers, list(details[key].values()), marker="o", label=label)
    axes.set(title="Throughput", xlabel="replicas", ylabel="tokens per second")
    axes.legend(frameon=False)


def _turns(details: Details, axes: Axes) -> None:
    for name, told in details["told"].items():
        axes.plot(100 * details["hits"][name], told["ttft_ms"]["p99"], "o", label=name)
    axes.set(title="Multi-turn chats", xlabel="prefix hits, %", xlim=(0, 100), ylim=(0, None),
             ylabel="time to first token p99, ms")  # fmt: skip
    axes.legend(frameon=False)


PANELS: Final[dict[str, Callable[[Details, Axes], None]]] = {
    "added": _added,
    "tokens": _tokens,
    "replicas": _replicas,
    "turns": _turns,
}


def plot_all(found: dict[str, Found], path: Path) -> None:
    """One picture of the sections that were run."""
    shown = [name for name in PANELS if name in found]
    if not shown:
        return
    figure, panels = plt.subplots(1, len(shown), figsize=(4 * len(shown), 3.2), squeeze=False)
    for name, axes in zip(shown, panels[0], strict=True):
        PANELS[name](found[name].details, axes)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
