"""What RESULTS.md says first: where this package is ahead and where it is behind, from the files of `calls.py` and `effective_draws.py`.

python benchmarks/summary.py                    writes the section "In short" again
"""

import json
from pathlib import Path

import calls
import effective_draws
from report import PYMC_MODELS

FOLDER = Path(__file__).parent
HEADING, FIRST = "## In short\n", "## The first result\n"


def link(heading: str) -> str:
    """Return a link to a section of the report, by GitHub's anchor."""
    title = heading.removeprefix("## ").strip()
    return f"[{title}](#{title.lower().replace(' ', '-').replace(',', '')})"


def summary() -> str:
    """Return the section."""
    found = json.loads((FOLDER / "CALLS.json").read_text(encoding="utf-8"))
    parts = [
        HEADING,
        "The numbers are ratios to this package: above 1 it is ahead, below 1 it is behind. `summary.py` writes this section.\n",
    ]
    for file in sorted(FOLDER.glob("EFFECTIVE_DRAWS*.json")):
        drawn = json.loads(file.read_text(encoding="utf-8"))
        draws, sides = drawn["setting"]["draws"], drawn["setting"]["sides"]
        parts += [
            f"Effective draws a second of a whole call of `sample` for {draws:,} draws a chain, {link(effective_draws.heading(draws))}:\n",
            effective_draws.summary(drawn["results"], [side for side in sides if side != effective_draws.OURS]),
        ]
    parts += [
        f"Log density and gradient, {link(PYMC_MODELS)}:\n",
        calls.summary(found["models"]),
    ]
    return "\n".join(parts)


def write(path: Path) -> None:
    """Put the section in the place of the last one, before all others."""
    text = path.read_text(encoding="utf-8")
    before, _, rest = text.partition(FIRST)
    path.write_text(f"{before.partition(HEADING)[0]}{summary()}\n{FIRST}{rest}", encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER / "RESULTS.md")
