"""The pictures: results.png from RESULTS.json, and the README's docs/images/draws.svg from WHOLE_PROGRAMS.json.

`bench.py charts` draws both, and prints the sentence that the README says of the latter. Each has panels of dots on logarithmic axes, a line for each model.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

import whole_programs
from whole_programs import DEFAULT, OURS, Results, mean, middle, ratios

FOLDER = Path(__file__).parent
PICTURE = FOLDER.parent / "docs" / "images" / "draws.svg"
COLORS = {"jaxpr": "#d1495b", "jax": "#2e6f9e", "numba": "#3d8f6b", "hand": "#8d8d8d"}
MARKERS = {"jaxpr": "o", "jax": "s", "numba": "D", "hand": "|"}
INK = "#333333"
#: Colors of at least 3:1 on white and on black, so that one picture serves light and dark pages; text is on a white ground.
COLORS_OF_DRAWS = {DEFAULT: "#7a7a7a", OURS: "#c43d52"}
LABELS = {DEFAULT: "pm.sample, PyMC's default", OURS: "sample of pytensor_jaxpr_linker.pymc"}


def graph_to_jaxpr(backend: str, result: dict) -> float | None:
    """Milliseconds from the rewritten graph (or the Python source) to the Jaxpr."""
    stages = result["stages"]
    return None if backend == "numba" else 1e3 * (stages["analyze"] + stages["build"] + stages["trace"])


PANELS = (
    ("Rewritten graph to Jaxpr, ms", graph_to_jaxpr),
    ("Graph to first result, s", lambda _, result: result["first"]),
    ("Each later call, µs (on one core)", lambda _, result: result.get("call_pinned", result["call"])),
)


def start(models: list[str], panels: int, size: tuple[float, float], **parameters: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, which name the models."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 11, **parameters})
    drawing, axes = plt.subplots(1, panels, figsize=size, sharey=True, layout="constrained")
    axes[0].set_yticks(range(len(models)), [name.replace("_", " ") for name in models])
    axes[0].set_ylim(len(models) - 0.5, -0.5)
    return drawing, axes


def finish(axis: Any, title: str, grid: str) -> None:
    """Give an axis its title and its scale."""
    axis.set_xscale("log")
    axis.set_title(title, loc="left", fontsize=12)
    axis.grid(axis="x", color=grid, zorder=0)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0)


def draw_results(models: dict, path: Path) -> None:
    """Draw the medians of models, ``{model: {backend: medians}}``, to a PNG file."""
    models = {m: {b: r[b] for b in COLORS if b in r and "failed" not in r[b]} for m, r in models.items()}
    if not models:
        return
    colors = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
    drawing, axes = start(list(models), len(PANELS), (13, 1.6 + 0.5 * len(models)), **colors)
    from backends import TITLES
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    for axis, (title, value_of) in zip(axes, PANELS, strict=True):
        for row, by_backend in enumerate(models.values()):
            found = {b: v for b, r in by_backend.items() if (v := value_of(b, r))}
            if found:
                axis.plot([min(found.values()), max(found.values())], [row, row], color="#dddddd", lw=2, zorder=1)
            for backend, value in found.items():
                style = {"mew": 2.5, "ms": 15} if backend == "hand" else {"ms": 8.5}
                axis.plot(value, row, MARKERS[backend], color=COLORS[backend], zorder=2 + (backend == "jaxpr"), **style)
        finish(axis, title, "#ececec")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=12))
        axis.xaxis.set_major_formatter(lambda x, _: f"{x:,.10g}")
        axis.xaxis.set_minor_locator(NullLocator())
    shown = [b for b in COLORS if any(b in found for found in models.values())]
    widths = {b: 2.5 if b == "hand" else 1 for b in shown}
    handles = [
        Line2D([], [], ls="", marker=MARKERS[b], color=COLORS[b], label=TITLES[b], ms=9, mew=widths[b]) for b in shown
    ]
    drawing.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    drawing.savefig(path, dpi=150)


def read() -> Results:
    """Return what was measured of whole programs for 1,000 draws, of the models that both sides can sample."""
    results = json.loads((FOLDER / "WHOLE_PROGRAMS.json").read_text(encoding="utf-8"))["results"]
    return {m: sides for m, sides in results.items() if all(whole_programs.good(results, m, s) for s in LABELS)}


def sentence() -> str:
    """Return what the README says of the picture."""
    found = read()
    seconds = {
        (key, side): median(float(middle(found, model, side, f"{key} process") or 0) for model in found)
        for key in ("first", "later")
        for side in LABELS
    }
    more = {key: mean(ratios(found, DEFAULT, f"{key} bulk rate")) for key in ("first", "later")}
    return (
        f"A program that samples such a model ends after {seconds['first', OURS]:.1f} s instead of {seconds['first', DEFAULT]:.1f} s the first time, and"
        f" after {seconds['later', OURS]:.1f} s instead of {seconds['later', DEFAULT]:.1f} s later: medians of {len(found)} models, from the start of Python to"
        f" its end. The call of `sample` has {more['first']:.1f} times as many effective draws a second the first time, and {more['later']:.1f} times later"
        " (geometric means)"
    )


#: The panels of the README's picture: title, figure, and the marks of its axis.
PANELS_OF_DRAWS = (
    ("Seconds of the first program", "first process", [2, 5, 10, 20, 50]),
    ("Seconds of a later one", "later process", [2, 5, 10, 20, 50]),
    ("Effective draws a second, later", "later bulk rate", [10, 100, 1000, 10000]),
)


def draw_draws(path: Path) -> None:
    """Draw seconds of whole programs, and effective draws a second, the greatest difference at the top."""
    found = read()
    later = ratios(found, DEFAULT, "later process")
    models = sorted(found, key=lambda model: later[model])
    parameters = {"svg.hashsalt": "draws", "svg.fonttype": "path", "text.color": "#222222"}
    drawing, axes = start(models, len(PANELS_OF_DRAWS), (12, 7), **parameters)
    for axis, (title, key, at) in zip(axes, PANELS_OF_DRAWS, strict=True):
        for i, model in enumerate(models):
            values = {side: middle(found, model, side, key) for side in LABELS}
            axis.plot(list(values.values()), [i, i], color="#cccccc", lw=2, zorder=1)
            for side, marker in ((DEFAULT, "D"), (OURS, "o")):
                label = LABELS[side] if i == 0 else None
                axis.plot(values[side], i, marker, color=COLORS_OF_DRAWS[side], ms=7.5, label=label)
        finish(axis, title, "#e6e6e6")
        axis.set_xticks(at, [f"{x:,}" for x in at])
        axis.minorticks_off()
    drawing.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    drawing.savefig(path, metadata={"Date": None})


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none but those of all measurements."""


def run(args: argparse.Namespace) -> dict:
    """Draw both."""
    data = args.out.with_suffix(".json")
    draw_results(json.loads(data.read_text(encoding="utf-8"))["first"], args.out.with_name("results.png"))
    draw_draws(PICTURE)
    print(sentence())
    return {}
