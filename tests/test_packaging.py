"""What setup.cfg, the constraints and the README say about each other."""

import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lower_bounds() -> dict[str, str]:
    """Return the lower bound of each library requirement in setup.cfg."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"] + config["options.extras_require"]["pymc"]
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
