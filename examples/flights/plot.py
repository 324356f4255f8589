"""Plot: the figures as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from datalattice.errors import UsageError
from flights.dataset import CARRIER, HOUR
from flights.figures import Figure, Figures, group_of

FEW: Final = 1_000
"""Departures below which a mean says little."""

_INK: Final = "#1f4e79"
_MUTED: Final = "#9db7d1"


def check_plot() -> None:
    """Check that a plot can be drawn here.

    Raises: UsageError: matplotlib is not installed.
    """
    if find_spec("matplotlib") is None:
        raise UsageError("the plot needs matplotlib: pip install 'datalattice[demo]'")


def save_plot(figures: Figures, path: Path) -> Path:
    """Draw mean departure delays by carrier and by hour and save them as a PNG.

    Raises: UsageError: matplotlib is not installed.
    """
    check_plot()
    import matplotlib as mpl

    mpl.use("Agg")  # no screen is needed
    from matplotlib import pyplot as plt

    canvas, (left, right) = plt.subplots(1, 2, figsize=(12, 5), width_ratios=(1, 1.2))
    carriers = sorted(group_of(figures, CARRIER), key=lambda one: one[1].mean_delay)
    _bars(left, [name for name, _ in carriers], [figure for _, figure in carriers], sideways=True)
    left.set_xlabel("mean departure delay, minutes")
    left.set_title("by carrier")
    hours = list(group_of(figures, HOUR))
    _bars(right, [name for name, _ in hours], [figure for _, figure in hours], sideways=False)
    right.set_xlabel("scheduled hour of departure")
    right.set_ylabel("mean departure delay, minutes")
    right.set_title("by hour of day")
    canvas.suptitle("Departures from EWR, JFK and LGA in 2013")
    canvas.text(0.01, 0.01, f"pale: fewer than {FEW:,} departures", color="#555555", fontsize=9)
    canvas.tight_layout(rect=(0, 0.03, 1, 1))
    canvas.savefig(path, dpi=120)
    plt.close(canvas)
    return path


def _bars(axes: Any, names: Sequence[str], figures: Sequence[Figure], *, sideways: bool) -> None:
    means = [figure.mean_delay for figure in figures]
    # The mean of a few flights says little, so such a group is drawn pale.
    colours = [_INK if figure.departed >= FEW else _MUTED for figure in figures]
    if sideways:
        axes.barh(names, means, color=colours)
    else:
        axes.bar(names, means, color=colours)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
