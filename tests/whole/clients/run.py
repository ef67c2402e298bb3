"""Runs models of packages that build on PyMC, of their newest releases, on mode JAXPR, and prints a table; see README.md.

python tests/whole/clients/run.py FOLDER [PACKAGE ...]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
#: What pip installs beside this package; pymc.dims comes with PyMC.
PACKAGES = ("bambi", "pymc-marketing", "CausalPy", "pymc-extras", "pymc-bart", "gEconpy")
SECONDS = 1800


def install(folder: Path) -> Path:
    """Return the Python of a virtual environment in which all packages are, as new as they allow each other."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "-U", *PACKAGES, "-e", f"{REPOSITORY}[nutpie]"], check=True)
    return python


def run(python: Path, package: str) -> dict[str, Any]:
    """Return what `models.py` says of a package's models."""
    command = [python, HERE / "models.py", package]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"version": "", "rows": [{"model": "", "failed": f"no result after {SECONDS} s"}]}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return {"version": "", "rows": [{"model": "", "failed": (done.stderr.splitlines() or ["no output"])[-1]}]}
    return json.loads(lines[-1])


def as_row(package: str, row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "failed" in row:
        cells = [package, row["model"], f"fails: {row['failed']}", "", ""]
    else:
        codes, count = row["breaks"]
        program = "yes" if not count else f"no: {count} of {', '.join(codes)}"
        cells = [package, row["model"], f"{row['error']:.0e}", program, row["sampler"]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Install, run the packages named on the command line, or all, and print the table, and below why samplers refused."""
    python = install(Path(sys.argv[1]).resolve())
    print("| package | model | largest error | one program | sampled by |\n|---|---|---|---|---|", flush=True)
    refused = []
    for package in sys.argv[2:] or (*PACKAGES, "pymc.dims"):
        found = run(python, package)
        for row in found["rows"]:
            print(as_row(f"{package} {found['version']}".strip(), row), flush=True)
            refused += [f"{package}, {row['model']}: {row['refused']}"] if row.get("refused") else []
    print("\n" + "\n".join(refused))


if __name__ == "__main__":
    main()
