"""The benchmark: ``python benchmarks/bench.py MEASUREMENT [options]``, and ``bench.py MEASUREMENT --help`` for the options.

Figures go to JSON files beside `--out`, from which the report is written again. README.md says how everything is measured.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from processes import HERE

#: Measurements whose figures are in the report, each a module of this folder.
REPORTED = {
    "stages": "time from the graph to the first result, later calls, loops, small measurements",
    "calls": "log density and gradient of PyMC models",
    "samplers": "time to the first and to the last draw of each sampler",
    "whole_programs": "whole programs that sample: seconds of the process, effective draws, memory, other samplers",
    "random_draws": "random draws beside NumPy's",
    "sparse_products": "products of sparse matrices beside SciPy's",
}
OTHERS = {
    "special_functions": "errors of special functions, docs/special-functions.md",
    "scale": "observations on many devices: error, memory, collectives",
    "gpu": "models on a GPU",
    "posteriordb": "posteriors of a fetched posteriordb beside Stan's, docs/posteriordb.md",
    "catalogue": "models of any folder: errors, breaks and times, docs/catalogue.md",
    "report": "RESULTS.md again, from the stored figures",
    "charts": "results.png and the README's picture again",
}


def main() -> int:
    """Measure, and write the report; the exit status is 1 if something failed."""
    lines = "\n".join(f"  {name:<18} {what}" for name, what in (REPORTED | OTHERS).items())
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=f"{__doc__}\nmeasurements:\n{lines}", formatter_class=style)
    parser.add_argument("measurement", choices=[*REPORTED, *OTHERS], metavar="MEASUREMENT")
    name = parser.parse_args(sys.argv[1:2]).measurement
    module = import_module(name)
    style = argparse.ArgumentDefaultsHelpFormatter
    options = argparse.ArgumentParser(f"bench.py {name}", description=module.__doc__, formatter_class=style)
    options.add_argument("--out", type=Path, default=HERE / "RESULTS.md", help="the report, beside the JSON files")
    module.add_options(options)
    args = options.parse_args(sys.argv[2:])
    args.out = args.out.absolute()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    measured = module.run(args)
    if name in REPORTED:
        import_module("report").run(args)
    reasons = [why for _, why in import_module("rendering").failures(measured)]
    return any("NotImplementedError" not in why for why in reasons)  # a mode may lack an Op: the report says so


if __name__ == "__main__":
    sys.exit(main())
