"""Numbers, tables and texts of the report."""

import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Iterable, Iterator
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean

PACKAGES = ("pytensor_jaxpr_linker", "pytensor", "jax", "jaxlib", "numpy", "numba", "pymc")
NONE = "-"
#: Prose by name, with places for what was measured.
TEXTS = dict(
    re.findall(
        r"^<!-- (\w+) -->\n(.*?)(?=^<!-- |\Z)",
        Path(__file__).with_name("texts.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def text(name: str, setting: dict | None = None, **values: str) -> str:
    """Return a text with the values, and with what `setting` says of the machine, of the processes and in remarks."""
    if setting is not None:
        values |= {"setting": machine(setting), "remark": f"\n{setting['remark']}\n" if "remark" in setting else ""}
        values |= {key: f"{setting[key]:,}" for key in ("cores", "draws", "tune", "chains") if key in setting}
    return paragraphs(TEXTS[name].format(**values)).rstrip("\n") + "\n"


def paragraphs(written: str) -> str:
    """Break the lines of paragraphs at 120 columns. Headings, lists, tables and pictures stay as they are."""
    blocks = written.split("\n\n")
    return "\n\n".join(
        block if block.lstrip().startswith(("#", "-", "|", "!", "```")) else fill(block) for block in blocks
    )


fill = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)


def of_processes(count: int) -> str:
    """Return of how many processes a figure is."""
    return "from one fresh process" if count == 1 else f"the median over {count} fresh processes"


def describe_machine(packages: tuple[str, ...] = PACKAGES) -> dict:
    """Collect versions, processor and date."""
    versions = {"Python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "from the checkout"
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        # Virtual machines say "AMD EPYC" for processors of any generation.
        lines = [line.partition(":") for line in info.read_text(encoding="utf-8").splitlines()]
        found = {name.strip(): value.strip() for name, _, value in lines}
        if "model name" in found:
            cpu = f"{found['model name']} (family {found.get('cpu family')}, model {found.get('model')})"
    system, today = platform.system(), date.today().isoformat()
    return {"versions": versions, "cpu": cpu, "cores": count_cores(), "system": system, "date": today}


def last_commit(*paths: str) -> str:
    """Return the short name of the last commit, or of the last that changed one of some paths of the repository."""
    git = ["git", "-C", str(Path(__file__).parents[1]), "log", "-1", "--format=%h", "--", *paths]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(setting: dict) -> str:
    """Say in a line what `describe_machine` collected."""
    versions = ", ".join(f"{name} {number}" for name, number in setting["versions"].items())
    return f"{setting['date']}. {versions}. {setting['cpu']}, {setting['cores']} cores, {setting['system']}."


def figure(value: float | None, scale: float = 1.0) -> str:
    """Write a number with three significant digits."""
    if value is None:
        return NONE
    value *= scale
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def with_ratio(value: float | None, base: float | None, scale: float = 1.0) -> str:
    """Write a number and its ratio to another, mode JAXPR's mostly."""
    if value is None or not base:
        return figure(value, scale)
    return f"{figure(value, scale)} ({times(value / base)})"


def compared(values: dict[str, float | None], base: str, scale: float = 1.0) -> list[str]:
    """Write the number of each side, and for all but `base` its ratio to that of `base`."""
    return [with_ratio(value, None if side == base else values.get(base), scale) for side, value in values.items()]


def times(ratio: float) -> str:
    """Write a ratio in two digits."""
    return f"{float(f'{ratio:.2g}'):,g}×"


def mean_ratio(ratios: Iterable[float]) -> str:
    """Write the geometric mean of ratios, if there are any."""
    found = list(ratios)
    return times(geometric_mean(found)) if found else NONE


def ratios_of(pairs: dict[str, tuple[float | None, float | None]]) -> dict[str, float]:
    """Return the ratios of the pairs that have both numbers."""
    return {name: value / base for name, (value, base) in pairs.items() if value and base}


def count_ahead(ratios: dict[str, float]) -> str:
    """Say how many ratios are above 1."""
    return f"{sum(ratio > 1 for ratio in ratios.values())} of {len(ratios)}"


def table(header: list[str], rows: list[list[str]], texts: int) -> str:
    """Write a Markdown table whose first `texts` columns are text and the others numbers, but for a last one of remarks."""
    numbers = range(texts, len(header) - (header[-1] == "remark"))
    lines = [header, ["---:" if i in numbers else "---" for i in range(len(header))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def mark_models(rows: list[list[str]]) -> list[list[str]]:
    """Write each model's name once, on its first line."""
    names = ["", *(row[0] for row in rows)]
    return [["" if row[0] == last else row[0], *row[1:]] for last, row in zip(names, rows, strict=False)]


def failures(results: dict, *path: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Give the keys of each measurement that gave no result, and the reason."""
    if "failed" in results:
        yield path, results["failed"]
    for key, found in results.items():
        if isinstance(found, dict):
            yield from failures(found, *path, key)


def listed(lines: Iterable[str]) -> str:
    """Write a Markdown list."""
    return "\n".join(fill(line, initial_indent="- ", subsequent_indent="  ") for line in lines) + "\n"
