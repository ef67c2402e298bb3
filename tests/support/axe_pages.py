"""Looks for accessibility errors, with axe in Chromium: on the pages of the built site and on those of `explain`.

    pip install -e ".[docs,pymc]" axe-playwright-python && playwright install chromium
    sphinx-build -W docs site && python tests/support/axe_pages.py site

Each page is looked at in light and dark, on a screen and, but for listings of code, on a phone; it must not be wider than the phone. `--browser` names a Chromium that is
installed, `--pictures` a folder for screenshots.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, sync_playwright

SCHEMES, WIDTHS = ("light", "dark"), (1280, 390)
#: What unfolds what `explain` writes, with a name for the picture. Mermaid draws the graph if there is a network.
VIEWS = {"folded": "0", "unfolded": "document.querySelectorAll('details').forEach(part => { part.open = true; })"}


def explained(folder: Path) -> list[Path]:
    """Write pages of `explain`: of a graph with a break, and of a model; and what a notebook shows."""
    import pytensor
    import pytensor.tensor as pt

    import pytensor_jaxpr_linker as pjl

    x, w = pt.vector("x"), pt.vector("w")
    loss = pt.log1p(pt.exp(x * w)).sum() + pt.arange((x > 0).sum() ** 2).sum()
    mode = pjl.JaxprMode(on_break="ignore")
    f = pytensor.function([x, w], [loss, pt.grad(loss, w)], mode=mode)
    f([1.0, 2.0], [0.5, 1.0])
    explanation = pjl.explain(f)
    notebook = folder / "explained-cell.html"
    notebook.write_text(
        '<!doctype html><html lang="en"><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><title>A cell</title>'
        f"<main><h1>A cell</h1>{explanation._repr_html_()}</main>"
    )
    return [explanation.save(folder / "explained-graph.html"), notebook]


def faults(page: Page, axe: Axe) -> Iterator[str]:
    """Yield what axe says of a page, and by how much it is too wide for the screen."""
    for violation in axe.run(page, options={"resultTypes": ["violations"]}).response["violations"]:
        for node in violation["nodes"]:
            yield f"{violation['id']} ({violation['impact']}): {violation['help']}: {node['html'][:200]}"
    beyond = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if beyond > 1 and page.evaluate("innerWidth") < min(WIDTHS) + 1:
        yield f"{beyond} pixels wider than the screen"


def looked_at(page: Page, path: Path, axe: Axe, pictures: Path | None, kind: str) -> Iterator[str]:
    """Yield the faults of each view of a page."""
    page.goto(path.resolve().as_uri())
    views = VIEWS if path.name.startswith("explained-") else {"": "0"}
    for view, script in views.items():
        page.evaluate(script)
        for fault in faults(page, axe):
            yield f"{path.name} {view} {kind}: {fault}"
        if pictures is not None:
            page.screenshot(path=pictures / f"{path.stem}-{view}-{kind}.png".replace("--", "-"))


def is_read_on_phones(path: Path) -> bool:
    """Return whether a page is no listing of code, which take most of the time."""
    return "_modules" not in path.parts and not path.name.endswith(".py.html")


def main() -> int:
    """Print the faults of all pages, and return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("site", type=Path, help="the folder of the built site")
    parser.add_argument("--browser", help="the path of a Chromium; without it, Playwright's")
    parser.add_argument("--pictures", type=Path, help="a folder for a screenshot of each page")
    given = parser.parse_args()
    pages = sorted(p for p in given.site.rglob("*.html") if "_static" not in p.parts)
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    found: dict[str, None] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        pages += explained(Path(folder))
        arguments = ["--no-sandbox"] if given.browser else []
        browser = playwright.chromium.launch(executable_path=given.browser, args=arguments)
        for scheme in SCHEMES:
            for width in WIDTHS:
                screen = {"width": width, "height": 844}
                page = browser.new_context(color_scheme=scheme, viewport=screen).new_page()
                for path in pages if width == WIDTHS[0] else filter(is_read_on_phones, pages):
                    found |= dict.fromkeys(looked_at(page, path, Axe(), given.pictures, f"{scheme}-{width}"))
                page.context.close()
                print(f"{scheme}, {width} pixels: {len(found)} faults so far", flush=True)
        browser.close()
    print("\n".join(found))
    print(f"{len(pages)} pages, {len(SCHEMES) * len(WIDTHS)} forms of each: {len(found)} faults")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
