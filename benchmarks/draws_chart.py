"""The README's picture: seconds until PyMC's default sampler and this package's have drawn, and effective draws a second.

``python benchmarks/draws_chart.py`` draws ``docs/images/draws.svg`` from ``EFFECTIVE_DRAWS.json``, and prints the sentence that the README says of it.
"""

import json
from pathlib import Path
from statistics import geometric_mean, median

FOLDER = Path(__file__).parent
PICTURE = FOLDER.parent / "docs" / "images" / "draws.svg"
#: Keys of EFFECTIVE_DRAWS.json: PyMC's default is nutpie on Numba, this package's is BlackJAX on mode JAXPR.
DEFAULT, OURS = "pymc/nutpie", "jaxpr/default"
#: Colors of at least 3:1 on white and on black, so that one picture serves light and dark pages; text is on a white ground.
COLORS = {DEFAULT: "#7a7a7a", OURS: "#c43d52"}
LABELS = {DEFAULT: "pm.sample, PyMC's default", OURS: "sample of pytensor_jaxpr_linker.pymc"}
INK = "#222222"


def read() -> dict[str, dict[str, dict[str, float]]]:
    """Return ``{"cold" or "warm": {model: {side: figure}}}`` of the models that both sides can sample.

    With empty caches ("cold") the figure is seconds; with filled ones ("warm"), effective draws a second.
    """
    results = json.loads((FOLDER / "EFFECTIVE_DRAWS.json").read_text(encoding="utf-8"))["results"]
    both = {m: sides for m, sides in results.items() if not any("failed" in sides[side] for side in (DEFAULT, OURS))}
    cold = {m: {side: sides[side]["cold seconds"] for side in (DEFAULT, OURS)} for m, sides in both.items()}
    warm = {
        m: {side: sides[side]["warm bulk"] / sides[side]["warm seconds"] for side in (DEFAULT, OURS)}
        for m, sides in both.items()
    }
    return {"cold": cold, "warm": warm}


def sentence() -> str:
    """Return what the README says of the picture."""
    found = read()
    cold, warm = ({side: [row[side] for row in found[when].values()] for side in (OURS, DEFAULT)} for when in found)
    sooner = geometric_mean(d / o for d, o in zip(cold[DEFAULT], cold[OURS], strict=True))
    more = geometric_mean(o / d for d, o in zip(warm[DEFAULT], warm[OURS], strict=True))
    return (
        f"4 x 1,000 draws after {median(cold[OURS]):.1f} s instead of {median(cold[DEFAULT]):.0f} s when a model is sampled for the first time (median of"
        f" {len(found['cold'])} models; {sooner:.1f} times sooner as a geometric mean), and {more:.1f} times as many effective draws a second in later"
        " processes (a geometric mean), which find the programs that `pjl.cache()` keeps"
    )


def draw(path: Path) -> None:
    """Draw two panels of dots on logarithmic axes, a line for each model, the greatest difference at the top."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "draws", "svg.fonttype": "path", "text.color": INK})
    found = read()
    warm = found["warm"]
    models = sorted(warm, key=lambda model: warm[model][DEFAULT] / warm[model][OURS])
    figure, axes = plt.subplots(1, 2, figsize=(10, 7), sharey=True, layout="constrained")
    titles = ("Seconds for 4 x 1,000 draws, the first time", "Effective draws a second, later processes")
    ticks = ([1, 3, 10, 30, 100], [10, 100, 1000, 10000])
    for axis, title, at, rows in zip(axes, titles, ticks, found.values(), strict=True):
        for i, model in enumerate(models):
            seconds = rows[model]
            axis.plot(list(seconds.values()), [i, i], color="#cccccc", lw=2, zorder=1)
            for side, marker in ((DEFAULT, "D"), (OURS, "o")):
                axis.plot(seconds[side], i, marker, color=COLORS[side], ms=7.5, label=LABELS[side] if i == 0 else None)
        axis.set_xscale("log")
        axis.set_xticks(at, [f"{x:,}" for x in at])
        axis.minorticks_off()
        axis.set_title(title, loc="left", fontsize=12)
        axis.grid(axis="x", color="#e6e6e6", zorder=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(length=0)
    axes[0].set_yticks(range(len(models)), [model.replace("_", " ") for model in models])
    axes[0].set_ylim(len(models) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    draw(PICTURE)
    print(sentence())
