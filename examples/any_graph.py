"""A model that no backend compiles whole: with a mask, a runtime shape, a while-loop and a Python Op.

Mode "JAXPR" runs it all the same. The example runs it, compares the results with mode "FAST_COMPILE", prints the report that
says what runs where and how to do better, and saves it as an HTML page. Run ``python examples/any_graph.py``; ``--help``
lists the options.
"""

import argparse
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor import wrap_py
from pytensor.scan.utils import until

import pytensor_jaxpr_linker as pjl


class Result(NamedTuple):
    """Largest relative difference of mode "JAXPR" from mode "FAST_COMPILE", what was explained, path of the page."""

    difference: float
    explanation: pjl.Explanation
    page: Path


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def running_median(x):
    """Return the median of the elements so far: plain Python that no compiler sees."""
    return np.array([np.median(x[: i + 1]) for i in range(len(x))])


def build_model() -> tuple[pt.TensorVariable, list[pt.TensorVariable]]:
    """Return the input of a model of daily rain and its outputs."""
    rain = pt.vector("rain", dtype="float64")

    # A mask: how much it rains on the days on which it does.
    wet = rain > 0.1
    wet.name = "wet"
    amounts = pt.log(rain[wet])
    amounts.name = "amounts"
    typical = pt.exp(amounts.mean())

    # A runtime shape: the quantiles of as many levels as there are centimetres of rain.
    count = pt.maximum(rain.sum() / 10, 2).astype("int64")
    count.name = "count"
    levels = pt.linspace(0, 1, 50)[:count]
    levels.name = "levels"
    heights = typical * (-pt.log1p(-levels * 0.99))

    # A while-loop: how full a tank gets until it overflows.
    def fill(amount, level):
        level = 0.95 * level + amount
        return level, until(level > 100)

    tank = pytensor.scan(fill, sequences=[rain], outputs_info=[pt.constant(0.0, dtype="float64")], return_updates=False)
    tank.name = "tank"

    # A Python Op between ordinary ones.
    medians = running_median(pt.sqrt(rain))
    medians.name = "medians"
    spread = pt.std(medians) / (1 + typical)
    return rain, [typical, heights, tank[-1], spread]


def main(argv: list[str] | None = None) -> Result:
    """Run the example.

    Parameters
    ----------
    argv : list of str, optional
        Command line, by default that of the process.

    Returns
    -------
    Result
        What was printed and saved.
    """
    parser = argparse.ArgumentParser(description="Run a graph that is not one XLA program, and explain it.")
    parser.add_argument("--days", type=int, default=200, help="days of rain that are made up")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random numbers")
    parser.add_argument("--out", type=Path, default=Path(), help="directory for any_graph.html")
    arguments = parser.parse_args(argv)
    if arguments.days < 10:
        parser.error("--days must be at least 10")

    rng = np.random.default_rng(arguments.seed)
    data = rng.gamma(0.5, 8.0, arguments.days) * (rng.random(arguments.days) < 0.4)
    data[0] = 1.0
    rain, outputs = build_model()
    with warnings.catch_warnings():
        # The warning says in short what the report says in full.
        warnings.simplefilter("ignore", pjl.GraphBreakWarning)
        f = pytensor.function([rain], outputs, mode="JAXPR")
        results = f(data)
    expected = pytensor.function([rain], outputs, mode="FAST_COMPILE")(data)
    difference = max(
        float(np.max(np.abs(got - want) / (1e-12 + np.abs(want)))) if np.size(want) else 0.0
        for got, want in zip(results, expected, strict=True)
    )
    explanation = pjl.explain(f)
    print(explanation)
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        page = explanation.save(arguments.out / "any_graph.html")
    except OSError as error:
        raise SystemExit(f"any_graph.py: {error}") from error
    print(f"\nLargest relative difference from mode FAST_COMPILE: {difference:.1e}. The report with the graph: {page}")
    return Result(difference, explanation, page)


if __name__ == "__main__":
    main()
