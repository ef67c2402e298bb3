"""Runs files of PyTensor's own test suite with mode JAXPR as the default, see README.md.

python tests/whole/pytensor_suite/run.py CHECKOUT [FILE ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).parent

#: Files whose tests compare numbers.
FILES = [
    *(
        f"tests/tensor/test_{name}.py"
        for name in (
            *(
                "subtensor",
                "elemwise",
                "basic",
                "math",
                "shape",
                "extra_ops",
                "blockwise",
                "sort",
                "special",
                "math_scipy",
            ),
            *(
                "pad",
                "einsum",
                "optimize",
                "fft",
                "fourier",
                "casting",
                "complex",
                "functional",
                "interpolate",
                "keepdims",
            ),
            *("variable", "sharedvar"),
        )
    ),
    *(
        "tests/tensor/linalg",
        "tests/tensor/random",
        "tests/tensor/signal",
        "tests/scan",
        "tests/compile",
        "tests/sparse",
    ),
    *("tests/scalar", "tests/xtensor", "tests/typed_list", "tests/link/jax"),
    *(f"tests/test_{name}.py" for name in ("raise_op", "ifelse", "gradient", "rop", "printing", "breakpoint")),
]

SECONDS_A_TEST, SECONDS_A_FILE = 120, 3000


def run_file(checkout: Path, file: str, results: Path) -> None:
    """Run one file in its own process and print its counts and the first line of each failure."""
    name = file.removeprefix("tests/").removesuffix(".py").replace("/", "_")
    xml, log = results / f"{name}.xml", results / f"{name}.log"
    xml.unlink(missing_ok=True)
    paths = [str(HERE), str(checkout), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "jaxpr_mode", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-o", "addopts=", f"--timeout={SECONDS_A_TEST}", "--tb=short", f"--junitxml={xml}", file]
    with log.open("w") as out:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p), "JAX_PLATFORMS": "cpu"}
        env["PYTENSOR_FLAGS"] = f"on_opt_error=raise,on_shape_error=raise,{env.get('PYTENSOR_FLAGS', '')}".rstrip(",")
        try:
            subprocess.run(command, cwd=checkout, env=env, stdout=out, stderr=out, timeout=SECONDS_A_FILE, check=False)
        except subprocess.TimeoutExpired:
            print(f"{file}: no result after {SECONDS_A_FILE} s")
            return
    if not xml.exists():
        print(f"{file}: no result, see {log}")
        return
    cases = list(ElementTree.parse(xml).iter("testcase"))
    failed = [(case, bad) for case in cases for bad in (*case.findall("failure"), *case.findall("error"))]
    skipped = sum(case.find("skipped") is not None for case in cases)
    print(f"{file}: {len(cases) - len(failed) - skipped} passed, {len(failed)} failed, {skipped} skipped", flush=True)
    for case, bad in failed:
        class_name = case.get("classname", "").rpartition(".")[2]
        message = bad.get("message", "").strip().partition("\n")[0]
        print(f"    {class_name}::{case.get('name')}: {message[:160]}", flush=True)


def main() -> None:
    """Run the files named on the command line, or all."""
    checkout, files = Path(sys.argv[1]).resolve(), sys.argv[2:] or FILES
    results = checkout / "results"
    results.mkdir(exist_ok=True)
    for file in files:
        run_file(checkout, file, results)


if __name__ == "__main__":
    main()
