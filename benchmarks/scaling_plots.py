"""Pictures of `scaling.py`'s scores, as SVG."""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "fastgen"  # the same scores give the same file
from matplotlib import pyplot as plt  # noqa: E402

from fastgen_cli.simulate.comparison import ORACLE, OWN, Score, tuned  # noqa: E402


def plot_all(scores: list[Score], target: float, folder: Path) -> None:
    """`scaling-goodness.svg` and `scaling-replicas.svg`, a panel for each scenario."""
    names = list(dict.fromkeys(score.scenario for score in scores))
    _goodness(scores, names, target, folder / "scaling-goodness.svg")
    _replicas(scores, names, target, folder / "scaling-replicas.svg")


def _goodness(scores: list[Score], names: list[str], target: float, path: Path) -> None:
    """Good requests against replica-hours: the upper left corner is better."""
    _, panels = plt.subplots(len(names), 1, figsize=(8, 3.2 * len(names)), squeeze=False)
    for axes, name in zip(panels[:, 0], names, strict=True):
        for score in (one for one in scores if one.scenario == name):
            mark = {OWN: "*", ORACLE: "D"}.get(score.name, "o" if score.is_published else "s")
            colour = {OWN: "tab:red", ORACLE: "black"}.get(score.name)
            axes.plot(
                score.replica_hours, 100 * score.good_ratio, mark, color=colour,
                markersize=12 if score.name == OWN else 6, label=f"{score.name}, {score.setting}",
            )  # fmt: skip
        axes.axhline(100 * target, color="grey", linewidth=0.8)
        axes.set(title=name, xlabel="replica-hours", ylabel="good requests, %")
        axes.legend(frameon=False, fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5))
        axes.spines[["top", "right"]].set_visible(False)
    _save(path)


def _replicas(scores: list[Score], names: list[str], target: float, path: Path) -> None:
    """Replicas asked for over time: ours, the oracle's, and the best rival's."""
    _, panels = plt.subplots(len(names), 1, figsize=(8, 2.6 * len(names)), squeeze=False)
    for axes, name in zip(panels[:, 0], names, strict=True):
        group = [one for one in scores if one.scenario == name]
        rivals = [one for one in group if one.name not in (OWN, ORACLE)]
        shown = [one for one in group if one.name in (OWN, ORACLE)]
        if rivals:
            shown.append(tuned(rivals, target))
        for score in shown:
            axes.step(
                [moment.at / 60 for moment in score.timeline],
                [moment.wanted for moment in score.timeline],
                where="post",
                label=f"{score.name}, {score.setting}",
            )
        axes.set(title=name, xlabel="minutes", ylabel="replicas", ylim=(0, None))
        axes.legend(frameon=False, fontsize=6)
        axes.spines[["top", "right"]].set_visible(False)
    _save(path)


def _save(path: Path) -> None:
    plt.tight_layout()
    plt.savefig(path, metadata={"Date": None})
    plt.close()
