"""Sphinx's configuration of the site. ``pip install -e ".[docs]" && sphinx-build -W docs site`` builds it."""

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "_extensions"))

from pytensor_jaxpr_linker import __version__  # noqa: E402
from pytensor_jaxpr_linker.base.words import SITE  # noqa: E402

project = "pytensor_jaxpr_linker"
author = "The pytensor_jaxpr_linker developers"
copyright = author
version = release = __version__

extensions = [
    "citation_roles",
    "glossary_links",
    "internal_links",
    "myst_nb",
    "numpydoc",
    "repository_pages",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinxcontrib.mermaid",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]
nb_execution_mode = "cache"
nb_execution_cache_path = str(DOCS / "_build" / "executed")
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True
nb_render_markdown_format = "gfm"

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc's sections have the types
numpydoc_show_class_members = False
# Nothing is fetched while the site is built, so that it can be built without a network.
intersphinx_mapping = {}

html_theme = "pydata_sphinx_theme"
html_title = project
html_baseurl = SITE
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("accessible.js", {"defer": "defer"})]
html_show_sourcelink = False
html_theme_options = {
    "check_switcher": False,
    "switcher": {
        "json_url": f"{SITE}_static/switcher.json",
        "version_match": "latest" if "dev" in release else release,
    },
    "navbar_end": ["version-switcher", "theme-switcher"],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version", "theme-version"],
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
