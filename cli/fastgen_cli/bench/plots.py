"""A report as curves: one line per report, so that engines stand side by side."""

from collections.abc import Callable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

from fastgen_cli.bench.measures import Distribution, Point
from fastgen_cli.plotting import bare

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curves = Sequence[tuple[str, Sequence[Point]]]
"""A name and its points, in the order of their loads."""
MILLI: Final = 1e3


def draw(curves: Curves) -> "Figure":
    """Latency against throughput, TTFT, pace and useful throughput against load.

    Of several reports only the upper percentiles and the goodput are drawn, each in its colour.
    """
    from matplotlib import pyplot as plt

    figure, ((latency, ttft), (pace, useful)) = plt.subplots(2, 2, figsize=(10, 7))
    is_alone = len(curves) == 1
    for name, points in curves:
        _latency(latency, name, points)
        _percentiles(ttft, name, points, lambda p: p.ttft_seconds, (50, 90), is_alone)
        _percentiles(pace, name, points, lambda p: p.tpot_seconds, (50, 99), is_alone)
        _useful(useful, name, points, is_alone)
    latency.set(xlabel="requests/s", ylabel="mean latency, s", ylim=(0, None), xlim=(0, None))
    ttft.set(ylabel="TTFT, ms" if is_alone else "TTFT P90, ms", ylim=(0, None))
    pace.set(ylabel="TPOT, ms" if is_alone else "TPOT P99, ms", ylim=(0, None))
    useful.set(ylabel="requests/s" if is_alone else "good requests/s", ylim=(0, None))
    for axes in (latency, ttft, pace, useful):
        bare(axes)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, fontsize=8, handlelength=3.5)
    for axes in (ttft, pace, useful):
        _name_loads(axes, curves)
    return figure


def _latency(axes: "Axes", name: str, points: Sequence[Point]) -> None:
    seen = [point for point in points if point.latency_seconds]
    rates = [point.requests_per_second for point in seen]
    means = [point.latency_seconds.mean for point in seen if point.latency_seconds]
    axes.plot(rates, means, marker="o", label=name)
    for point, x, y in zip(seen, rates, means, strict=True):
        axes.annotate(point.name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")


def _percentiles(
    axes: "Axes",
    name: str,
    points: Sequence[Point],
    of: Callable[[Point], Distribution | None],
    percents: tuple[int, int],
    is_alone: bool,
) -> None:
    """The upper percentile, and of a report that is alone the lower one as well."""
    places = [place for place, point in enumerate(points) if of(point)]
    lower, upper = (
        [MILLI * getattr(of(points[place]), f"p{percent}") for place in places]
        for percent in percents
    )
    (line,) = axes.plot(places, upper, marker="o", label=f"P{percents[1]}" if is_alone else name)
    if is_alone:
        color = line.get_color()
        axes.plot(places, lower, "--", marker="o", color=color, label=f"P{percents[0]}")


def _useful(axes: "Axes", name: str, points: Sequence[Point], is_alone: bool) -> None:
    """Goodput; of a report that is alone what it is to be compared with, too."""
    places = range(len(points))
    goodputs = [point.goodput for point in points if point.goodput is not None]
    if len(goodputs) == len(points):
        axes.plot(places, goodputs, marker="o", label="good (SLO)" if is_alone else name)
    if not is_alone:
        return
    effective = [point.effective_throughput["4"] for point in points]
    axes.plot(places, effective, "--", marker="o", label="effective at 4 tokens/s")
    answered = [point.requests_per_second for point in points]
    axes.plot(places, answered, ":", color="grey", label="answered")


def _name_loads(axes: "Axes", curves: Curves) -> None:
    names = max((list(points) for _, points in curves), key=len, default=[])
    axes.set_xticks(range(len(names)), [point.name for point in names], fontsize=7)


def as_svg(figure: "Figure") -> str:
    """The picture as an element of a page, freed then."""
    from matplotlib import pyplot as plt

    text = StringIO()
    figure.tight_layout()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    whole = text.getvalue()
    return whole[whole.index("<svg") :]
