"""What setup.cfg, the constraints and the README say about each other."""

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pytensor_jaxpr_linker
from pytensor_jaxpr_linker.artifacts.mlir.mlir_module import FILE_PACKAGES
from pytensor_jaxpr_linker.base.words import SITE
from pytensor_jaxpr_linker.command_line.main import COPIES, PACKAGE
from pytensor_jaxpr_linker.pymc.arguments import EXTRAS

ROOT = Path(__file__).parents[2]


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of each library requirement in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    extras = config["options.extras_require"]
    lines = "".join([config["options"]["install_requires"], extras["export"], extras["pymc"], extras["store"]])
    return dict(re.findall(r"^(\w+)>=([\d.]+)", lines, flags=re.MULTILINE))


def pins() -> dict[str, str]:
    """Return the versions in constraints/lowest.txt."""
    text = (ROOT / "constraints" / "lowest.txt").read_text()
    return dict(re.findall(r"^(\w+)==([\d.]+)", text, flags=re.MULTILINE))


def release(version: str) -> str:
    """Return `version` without trailing zeros: 3.3 and 3.3.0 are one release."""
    return re.sub(r"(\.0)+$", "", version)


def test_every_lower_bound_is_the_version_that_is_tested():
    bounds = {name: release(version) for name, version in lower_bounds().items()}
    tested = {name: release(version) for name, version in pins().items()}
    assert tested.pop("jaxlib") == tested["jax"]
    assert bounds == tested


def test_readme_commands_are_one_line_each():
    readme = (ROOT / "README.md").read_text()
    commands = dict(re.findall(r"^<!-- (\w+)-command -->\n```\n(.*?)\n```$", readme, flags=re.MULTILINE | re.DOTALL))
    assert commands.keys() == {"example", "test"}
    for command in commands.values():
        assert command.startswith("python3 -m venv .venv && ")
        assert "\n" not in command


def test_both_packages_are_in_the_distribution():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    included = config["options.packages.find"]["include"].split()
    packages = [path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests"]
    assert sorted(included) == sorted(f"{name}*" for name in packages) == ["jaxpr_artifact*", "pytensor_jaxpr_linker*"]


def test_addresses_are_written_once_or_agree():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    urls = dict(re.findall(r"^(\w+) = (\S+)$", config["metadata"]["project_urls"], flags=re.MULTILINE))
    assert urls["Documentation"] == SITE
    assert all(url.startswith(SITE) for url in urls.values())
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"url: {SITE}\n" in citation
    assert f"version: {pytensor_jaxpr_linker.__version__}\n" in citation


def test_a_wheel_has_the_break_codes_and_a_readme_whose_links_work_elsewhere(tmp_path):
    pytest.importorskip("setuptools")
    words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path / "lib")]
    subprocess.run(
        [*words, "egg_info", "--egg-base", str(tmp_path)], cwd=ROOT, check=True, timeout=120, capture_output=True
    )
    built = tmp_path / "lib" / "pytensor_jaxpr_linker"
    assert (built / COPIES[0].relative_to(PACKAGE)).read_text() == (ROOT / "docs" / "breaks.md").read_text()
    assert (built / "py.typed").exists() and (built / "report" / "page.html").exists()
    described = (tmp_path / "pytensor_jaxpr_linker.egg-info" / "PKG-INFO").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", described)
    assert f"{SITE}from_pymc.html" in targets and f"{SITE}_images/draws.svg" in targets
    assert all(target.startswith("https://") for target in targets)
    for page in [target.removeprefix(SITE) for target in targets if target.startswith(SITE)]:
        path = re.sub(r"\.html$", "", page).replace("_images/", "docs/images/")
        path = (
            path.removeprefix("repository/")
            if path.startswith("repository/")
            else f"docs/{path}".replace("docs/docs/", "docs/")
        )
        assert (ROOT / path).exists() or (ROOT / f"{path}.md").exists(), page


def test_errors_advise_extras_that_exist():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "pytensor_jaxpr_linker").rglob("*.py"))
    advised = set(re.findall(r"pytensor_jaxpr_linker\[([a-z]+)\]", sources))
    extras = dict(config["options.extras_require"])
    assert advised and advised <= extras.keys()
    # Where the name of the extra is computed, it is the one that brings the package.
    for package, extra in (EXTRAS | dict(FILE_PACKAGES.values())).items():
        brought = re.findall(r"^([\w-]+)", extras[extra], re.MULTILINE)
        assert any(name.startswith(package.partition(".")[0]) for name in brought), package


def test_the_conda_recipe_asks_for_what_setup_cfg_asks_for():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    recipe = (ROOT / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    _, _, run = recipe.partition("  run:\n")
    run = run.partition("  run_constraints:\n")[0]
    asked = dict(re.findall(r"^    - (\w+) (\S+)$", run, re.MULTILINE))
    required = dict(re.findall(r"^(\w+)(\S+)$", config["options"]["install_requires"], re.MULTILINE))
    assert required and asked.items() >= required.items()
    assert f'version: "{pytensor_jaxpr_linker.__version__}"' in recipe
    assert f'python_min: "{config["options"]["python_requires"].removeprefix(">=")}"' in recipe
    for name, bounds in re.findall(r"^    - (\w+) (>=\S+)$", recipe.partition("run_constraints:\n")[2], re.MULTILINE):
        assert f"{name}{bounds}" in (ROOT / "setup.cfg").read_text(encoding="utf-8")
