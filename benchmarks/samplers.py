"""Compare the samplers of `pytensor_jaxpr_linker.pymc` with those of `pymc.sample` on the models of `pymc_models.py`.

    python benchmarks/samplers.py                                 all models, for at most 40 minutes
    python benchmarks/samplers.py --add                           the models that the last run did not get to
    python benchmarks/samplers.py --models garch lkj --samplers nutpie --parts first last

Each measurement is a fresh process. Writes the section "Samplers" of `--out`, and the medians (JSON) beside it.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from time import monotonic

import sampler_report
from pymc_models import MODELS
from report import PACKAGES, describe_machine
from run import HERE, medians, run_process
from sampler_report import MODES, SIDES

SAMPLERS = ("nutpie", "numpyro", "blackjax")
PARTS = ("calls", "first", "last")


def subjects(samplers: list[str], parts: list[str]) -> list[str]:
    """List what is measured of a model, so that what is compared runs close together: ``first/pymc/numpyro``."""
    draws = [f"{part}/{side}/{s}" for s in samplers for part in parts if part != "calls" for side in SIDES]
    return ["calls/" + "+".join(MODES)] * ("calls" in parts) + draws


def measure(model: str, subject: str, repeat: int, folder: Path, args: argparse.Namespace) -> dict:
    """Run one process and read its result."""
    part, _, rest = subject.partition("/")
    options = {"--out": folder / "result.json", "--seed": repeat + 1, "--chains": args.chains}
    if part == "last":
        options |= {"--draws": args.draws, "--tune": args.tune}
    command = [HERE / "sampler_worker.py", "calls" if part == "calls" else "sample", model, rest]
    command += [word for option in options.items() for word in option] + ["--again"] * (part == "first")
    caches = folder / f"{model}-{subject.replace('/', '-')}-{repeat}"
    if failed := run_process(command, caches, args.timeout):
        return {"failed": failed}
    return json.loads((folder / "result.json").read_text())


def measure_model(model: str, args: argparse.Namespace) -> dict:
    """Return the medians of a model by subject; who fails at the first draw is not asked for the last."""
    found: dict[str, list[dict]] = {subject: [] for subject in subjects(args.samplers, args.parts)}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(args.repeats):
            for subject, results in found.items():
                first = found.get(subject.replace("last/", "first/"), [])
                failed = first is not results and any("failed" in r for r in first)
                results.append(first[-1] if failed else measure(model, subject, repeat, Path(folder), args))
                print(f"{model:<22} {subject:<24} {results[-1]}", flush=True)
    return {subject: medians(results) for subject, results in found.items()}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    for option, default in (("draws", 1000), ("tune", 1000), ("chains", 4), ("repeats", 1)):
        parser.add_argument(f"--{option}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one process (default 300)")
    parser.add_argument("--minutes", type=float, default=40, help="begin no model after so many (default 40)")
    parser.add_argument("--add", action="store_true", help="keep the models of the last run, and measure others")
    parser.add_argument("--out", type=Path, default=HERE / "RESULTS.md")
    parser.add_argument("--render", action="store_true", help="only write the section again, from the JSON file")
    return parser.parse_args()


def main() -> int:
    """Run the benchmark and write its section; the exit status is 1 if a process failed."""
    args, began = parse_arguments(), monotonic()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    data = args.out.with_name("SAMPLERS.json")
    setting = describe_machine((*PACKAGES, *SAMPLERS))
    setting |= {key: getattr(args, key) for key in ("samplers", "parts", "draws", "tune", "chains", "repeats")}
    collected = {"setting": setting, "results": {}}
    if args.render or (args.add and data.exists()):
        collected = json.loads(data.read_text())
    if args.add and any(collected["setting"][key] != setting[key] for key in setting.keys() - {"date"}):
        raise SystemExit(f"{data} was measured with other versions or options: run without --add.")
    results = collected["results"]
    for model in [] if args.render else [m for m in args.models if not (args.add and m in results)]:
        if monotonic() - began > 60 * args.minutes:
            print(f"No time for {model} and what follows: go on with --add.")
            break
        results[model] = measure_model(model, args)
        data.write_text(json.dumps(collected, indent=1) + "\n")
    return 1 if sampler_report.write(collected, args.out) else 0


if __name__ == "__main__":
    sys.exit(main())
