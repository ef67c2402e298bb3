"""What setup.cfg can't say: the README's links lead to the site on PyPI, and a wheel holds the page of break codes."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SITE = re.search(r'SITE = "(.*)"', (ROOT / "pytensor_jaxpr_linker/base/words.py").read_text())[1]


def with_site_links(text: str) -> str:
    """Return the README with links to the site in place of links to files."""
    text = re.sub(r"\]\(docs/images/([^)]+)\)", rf"]({SITE}_images/\1)", text)
    text = re.sub(r"\]\(docs/([^).]+)\.md(#[^)]*)?\)", rf"]({SITE}\1.html\2)", text)
    return re.sub(r"\]\((?!https?:)([^)#]+?)(?:\.md)?\)", rf"]({SITE}repository/\1.html)", text)


class BuildWithBreaks(build_py):
    """Copies a page of `docs/` into the package: ``python -m pytensor_jaxpr_linker docs JX001`` prints its sections."""

    def run(self):
        super().run()
        if not self.editable_mode:
            copy = Path(self.build_lib, "pytensor_jaxpr_linker", "breaks.md")
            self.copy_file(str(ROOT / "docs" / "breaks.md"), str(copy))


setup(
    long_description=with_site_links((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithBreaks},
)
