"""The benchmark's chart: three panels of dots on logarithmic axes, a line for each model."""

from pathlib import Path

COLORS = {"jaxpr": "#d1495b", "jax": "#2e6f9e", "numba": "#3d8f6b", "hand": "#8d8d8d"}
MARKERS = {"jaxpr": "o", "jax": "s", "numba": "D", "hand": "|"}
INK = "#333333"


def graph_to_jaxpr(backend: str, result: dict) -> float | None:
    """Milliseconds from the rewritten graph (or the Python source) to the Jaxpr."""
    stages = result["stages"]
    return None if backend == "numba" else 1e3 * (stages["analyze"] + stages["build"] + stages["trace"])


PANELS = (
    ("Rewritten graph to Jaxpr, ms", graph_to_jaxpr),
    ("Graph to first result, s", lambda _, result: result["first"]),
    ("Each later call, µs (on one core)", lambda _, result: result.get("call_pinned", result["call"])),
)


def draw(models: dict, path: Path) -> None:
    """Draw the chart.

    Parameters
    ----------
    models
        ``{model: {backend: medians}}``.
    path
        The PNG file to write.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from backends import TITLES
    from matplotlib.ticker import LogLocator, NullLocator

    names = list(models)
    plt.rcParams.update(
        {"font.size": 11, "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    )
    fig, axes = plt.subplots(1, len(PANELS), figsize=(13, 1.6 + 0.5 * len(names)), sharey=True, layout="constrained")
    for axis, (title, value_of) in zip(axes, PANELS, strict=True):
        for row, model in enumerate(names):
            found = {b: value_of(b, r) for b, r in models[model].items()}
            found = {b: v for b, v in found.items() if v}
            if found:
                axis.plot([min(found.values()), max(found.values())], [row, row], color="#dddddd", lw=2, zorder=1)
            for backend, value in found.items():
                style = {"mew": 2.5, "ms": 15} if backend == "hand" else {"ms": 8.5}
                axis.plot(value, row, MARKERS[backend], color=COLORS[backend], zorder=2 + (backend == "jaxpr"), **style)
        axis.set_xscale("log")
        axis.set_title(title, loc="left", fontsize=12)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=12))
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
        axis.xaxis.set_minor_locator(NullLocator())
        axis.grid(axis="x", color="#ececec", zorder=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(length=0)
    axes[0].set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    shown = [b for b in COLORS if any(b in found for found in models.values())]
    handles = [
        plt.Line2D(
            [], [], ls="", marker=MARKERS[b], color=COLORS[b], label=TITLES[b], ms=9, mew=2.5 if b == "hand" else 1
        )
        for b in shown
    ]
    fig.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    fig.savefig(path, dpi=150)
    plt.close(fig)
