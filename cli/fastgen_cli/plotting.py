"""Pictures that commands write where they are asked for one."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fastgen_cli.errors import UserError
from fastgen_cli.outputs import check_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT_FORMATS: Final = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises UserError where no picture could be made or written, before anything is computed."""
    if path.suffix.lower() not in PLOT_FORMATS:
        raise UserError(f"--plot {path}: the name must end in {', '.join(PLOT_FORMATS)}")
    load_matplotlib("--plot")
    check_file(path, "--plot")


def load_matplotlib(flag: str) -> None:
    """Makes pictures possible without a screen; raises UserError where they are not."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise UserError(f"{flag} needs matplotlib: pip install matplotlib") from None
    mpl.use("agg")


def bare(axes: "Axes") -> None:
    """Takes off the frame above and right."""
    axes.spines[["top", "right"]].set_visible(False)


def save_plot(figure: "Figure", path: Path) -> None:
    """Writes the picture and frees it; raises UserError where it cannot be written."""
    from matplotlib import pyplot as plt

    figure.tight_layout()
    try:
        figure.savefig(path)
    except OSError as error:
        raise UserError(f"--plot {path}: {error.strerror or error}") from error
    finally:
        plt.close(figure)
