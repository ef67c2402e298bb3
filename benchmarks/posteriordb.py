"""posteriordb's posteriors: our PyMC models of them beside the Stan programs, and draws beside the reference draws.

FOLDER is the `posterior_database` of a fetched copy of github.com/stan-dev/posteriordb; its programs and data stay there.
Each posterior is measured in processes of its own. docs/posteriordb.md is written from posteriordb.json, and what is
stored goes on with --add.
"""

import argparse
import json
from pathlib import Path
from statistics import median

from processes import HERE, Job, collect, models_left, rotated
from rendering import NONE, describe_machine, figure, listed, mean_ratio, table, text, times

SIDES = {"ours": "this package", "pymc": "`pm.sample`", "stanli": "stanli"}
#: Errors of a gradient, relative to its norm, up to which it counts as equal.
EQUAL = 1e-10
#: What a row's figure needs said, by posterior, or by model.
REMARKS = json.loads((HERE / "posteriordb_remarks.json").read_text(encoding="utf-8"))
PACKAGES = ("pytensor_jaxpr_linker", "pytensor", "pymc", "jax", "stanli", "numba", "nutpie")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the measurement."""
    parser.add_argument("folder", type=Path, help="the posterior_database of a fetched posteriordb")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="models or posteriors, all by default")
    parser.add_argument("--check", action="store_true", help="compare densities and gradients")
    parser.add_argument("--points", type=int, default=10, help="points of each comparison")
    parser.add_argument("--mode", default="JAXPR", help="PyTensor's mode that is compared")
    parser.add_argument("--sides", nargs="*", choices=SIDES, default=[], help="samplers that draw")
    parser.add_argument("--referenced", action="store_true", help="posteriors with reference draws alone")
    parser.add_argument("--repeats", type=int, default=1, help="runs of each sampler, each of a seed of its own")
    parser.add_argument("--timeout", type=float, default=600, help="seconds of one process")
    parser.add_argument("--minutes", type=float, default=600, help="start no posterior after so many")
    parser.add_argument("--add", action="store_true", help="keep what is stored, and measure what is not")
    parser.add_argument("--write", action="store_true", help="write the page from what is stored, and measure nothing")


def run(args: argparse.Namespace) -> dict:
    """Measure, and write the page; with --models alone nothing is written."""
    folder = args.folder.absolute()
    data = args.out.parent / "POSTERIORDB.json"
    stored = json.loads(data.read_text(encoding="utf-8")) if args.add or args.write else {"posteriors": {}}
    if not args.write:
        stored["setting"] = describe_machine(PACKAGES) | {"points": args.points}
        names = [name for name in posteriors(folder) if wanted(folder, name, args)]
        kept = data if args.add or not args.models else None
        for what in [*["check"] * args.check, *["draws"] * bool(args.sides)]:
            done = {name: 1 for name, row in stored["posteriors"].items() if what in row}
            for name in models_left(names, done, args.minutes):
                found: dict = {}
                print(name, end=": ")
                collect([list(jobs(folder, name, what, args))], found, None)
                stored["posteriors"].setdefault(name, {"model": about(folder, name)["model_name"]}).update(found)
                if kept:
                    kept.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n")
        if not kept:
            return {}
    (HERE.parent / "docs" / "posteriordb.md").write_text(page(stored), encoding="utf-8")
    return {}


def about(folder: Path, name: str) -> dict:
    """Return what posteriordb says of a posterior."""
    return json.loads((folder / "posteriors" / f"{name}.json").read_text(encoding="utf-8"))


def posteriors(folder: Path) -> list[str]:
    """Return the names of posteriordb's posteriors."""
    return sorted(path.stem for path in (folder / "posteriors").glob("*.json"))


def wanted(folder: Path, name: str, args: argparse.Namespace) -> bool:
    """Return whether the command line asks for a posterior."""
    told = about(folder, name)
    named = not args.models or name in args.models or told["model_name"] in args.models
    return named and (not args.referenced or told["reference_posterior_name"] is not None)


def jobs(folder: Path, name: str, what: str, args: argparse.Namespace):
    """Give the processes of a posterior."""
    given = {"folder": str(folder), "name": name}
    if what == "check":
        yield Job(
            "posterior_files:check", given | {"count": args.points, "mode": args.mode}, (what,), timeout=args.timeout
        )
        return
    for repeat in range(args.repeats):
        for side in rotated(args.sides, repeat):
            arguments = given | {"side": side, "seed": repeat + 1}
            place = (what, side, str(repeat))
            yield Job("posterior_files:draw", arguments, place, timeout=args.timeout, blas_threads=None)


def page(stored: dict) -> str:
    """Write the page from the stored figures."""
    rows = stored["posteriors"]
    checked = {name: row["check"] for name, row in rows.items() if "check" in row}
    compared = {name: row for name, row in checked.items() if "failed" not in row}
    equal = {rows[name]["model"] for name, row in compared.items() if row["gradient"] <= EQUAL}
    models = {rows[name]["model"] for name in checked}
    lines = [
        f"{len(checked)} posteriors of {len(models)} models were compared at {stored['setting']['points']} points each.",
        f"The gradients of {len(equal)} models are within {EQUAL:g} of Stan's, relative to their norm.",
        *draw_summary(rows),
    ]
    tables = [density_table(rows, checked), draw_table(rows)]
    return text("posteriordb", stored["setting"], short=listed(lines), densities=tables[0], draws=tables[1])


def remark(rows: dict, name: str) -> str:
    """Return what is said of a posterior's figures."""
    return REMARKS.get(name, REMARKS.get(rows[name]["model"], ""))


def density_table(rows: dict, checked: dict) -> str:
    """Write a row for each posterior: coordinates, spread of the log density, error of the gradient."""
    written = []
    for name, row in checked.items():
        figures = [NONE] * 3 if "failed" in row else [str(row["size"]), f"{row['value']:.1e}", f"{row['gradient']:.1e}"]
        why = remark(rows, name) or row.get("failed", "")
        written.append([name, *figures, why.replace("|", "\\|")])
    return table(["posterior", "coordinates", "log density", "gradient", "remark"], written, 1)


def figures_of(row: dict, side: str) -> list[dict]:
    """Return the runs of a side that gave draws."""
    return [run for run in row.get("draws", {}).get(side, {}).values() if "failed" not in run]


def rate(row: dict, side: str) -> float | None:
    """Return effective draws a second of the whole call, the median over the runs."""
    found = [run["ess"] / run["seconds"] for run in figures_of(row, side)]
    return median(found) if found else None


def draw_summary(rows: dict) -> list[str]:
    """Say how the draws of this package compare with the reference draws and with other samplers."""
    runs = {name: figures_of(row, "ours") for name, row in rows.items()}
    judged = {
        name: max(run["z"] for run in found) for name, found in runs.items() if found and found[0]["z"] is not None
    }
    if not judged:
        return []
    mixed = [name for name in judged if max(run["rhat"] for run in runs[name]) < 1.01]
    lines = [
        f"{sum(z < 4 for z in judged.values())} of {len(judged)} posteriors with reference draws agree with them: all means "
        f"and means of squares are within 4 standard errors. R-hat is below 1.01 in {len(mixed)}."
    ]
    for side in ("pymc", "stanli"):
        pairs = {name: (rate(row, "ours"), rate(row, side)) for name, row in rows.items()}
        ratios = [mine / theirs for mine, theirs in pairs.values() if mine and theirs]
        if ratios:
            lines.append(
                f"Effective draws a second of the whole call beside {SIDES[side]}: {mean_ratio(ratios)} in geometric mean over "
                f"{len(ratios)} posteriors, least {times(min(ratios))}, more on {sum(r > 1 for r in ratios)}."
            )
    return lines


def draw_table(rows: dict) -> str:
    """Write a row for each posterior that was sampled."""
    written = []
    for name, row in rows.items():
        if "draws" not in row:
            continue
        cells, found = [name], figures_of(row, "ours")
        if found:
            worst = max(found, key=lambda run: run["z"] or 0)
            cells += [NONE if worst["z"] is None else f"{worst['z']:.1f} ({worst['of']})"]
            cells += [f"{max(run['rhat'] for run in found):.3f}"]
        else:
            cells += [NONE, NONE]
        for side in SIDES:
            runs = figures_of(row, side)
            if runs:
                cells += [
                    f"{figure(median(run['ess'] for run in runs))} / {figure(median(run['seconds'] for run in runs))}"
                ]
            else:
                cells += [next((run["failed"] for run in row["draws"].get(side, {}).values()), NONE)[:60]]
        mine = rate(row, "ours")
        for side in ("pymc", "stanli"):
            theirs = rate(row, side)
            cells += [times(mine / theirs) if mine and theirs else NONE]
        written.append([*cells, remark(rows, name)])
    header = ["posterior", "largest z", "R-hat", *SIDES.values(), "× pm.sample", "× stanli", "remark"]
    return table(header, written, 2) if written else "No draws are stored.\n"
