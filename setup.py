"""What setup.cfg can't say. The README's links lead to the site on PyPI; a wheel holds a copy of the documentation's pages."""

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
SITE = re.search(r'SITE = "(.*)"', (ROOT / "pytensor_jaxpr_linker/base/documentation.py").read_text())[1]
#: The pages of `docs/` that are for users.
PAGES = ("*.md", "guides/*.md", "reference/*.md", "tutorials/*.md")


def with_site_links(text: str) -> str:
    """Return the README with links to the site in place of links to files."""
    text = re.sub(r"\]\(docs/images/([^)]+)\)", rf"]({SITE}_images/\1)", text)
    text = re.sub(r"\]\(docs/([^).]+)\.md(#[^)]*)?\)", rf"]({SITE}\1.html\2)", text)
    return re.sub(r"\]\((?!https?:)([^)#]+?)(?:\.md)?\)", rf"]({SITE}repository/\1.html)", text)


class BuildWithPages(build_py):
    """Copies pages of `docs/` into the package: what ``python -m pytensor_jaxpr_linker docs`` prints."""

    def run(self):
        super().run()
        if not self.editable_mode:
            docs, pages = ROOT / "docs", Path(self.build_lib, "pytensor_jaxpr_linker", "pages")
            for page in sorted(page for pattern in PAGES for page in docs.glob(pattern)):
                copy = pages / page.relative_to(docs)
                self.mkpath(str(copy.parent))
                self.copy_file(str(page), str(copy))


setup(
    long_description=with_site_links((ROOT / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithPages},
)
