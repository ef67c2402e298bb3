"""The check of the finished site's links finds those that lead nowhere. It needs the extra `docs`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import SimpleNamespace

import pytest

EXTENSIONS = Path(__file__).parents[2] / "docs" / "_extensions"


def test_links_that_lead_nowhere(tmp_path, monkeypatch, caplog):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(EXTENSIONS)
    internal_links = importlib.import_module("internal_links")
    said = []
    monkeypatch.setattr(internal_links, "LOGGER", SimpleNamespace(warning=lambda text, *args: said.append(text % args)))
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x">good</a> <a href="b.html#y">bad</a> <a href="c.html">bad</a> <a href="#">top</a>'
    )
    (tmp_path / "b.html").write_text('<h1 id="x">x</h1> <img src="no.png"> <a href="https://example.org/z">other</a>')
    internal_links.check_links(SimpleNamespace(builder=SimpleNamespace(format="html"), outdir=tmp_path), None)
    assert said == [
        f"{page}: the link {link} leads nowhere"
        for page, link in (("a.html", "b.html#y"), ("a.html", "c.html"), ("b.html", "no.png"))
    ]


def test_links_to_files_of_the_repository(monkeypatch):
    pytest.importorskip("sphinx")
    monkeypatch.syspath_prepend(EXTENSIONS)
    pages = importlib.import_module("repository_pages")
    text = "[a](../CHANGELOG.md) [b](options.md#logs) [`c`](../setup.py#L3) [d](https://example.org) ![e](images/draws.svg)\n```\n[f](../g.py)\n```\n"
    assert pages.with_links(text, "docs/x.md", "x.md") == (
        '[a](repository/CHANGELOG.md) [b](options.md#logs) <a href="repository/setup.py.html#L-3">`c`</a> [d](https://example.org)'
        " ![e](images/draws.svg)\n```\n[f](../g.py)\n```\n"
    )
    assert pages.with_links("[a](docs/options.md) [b](LICENSE)", "CONTRIBUTING.md", "repository/CONTRIBUTING.md") == (
        '[a](../options.md) <a href="LICENSE.html">b</a>'
    )
