"""The first use of each word of the glossary on a page is a link to it, with the explanation as its title."""

import re

from docutils import nodes
from sphinx.domains.std import StandardDomain

GLOSSARY = "guides/glossary"
#: Pages for users; the others are for readers who know the words, or are made from code.
PAGES = re.compile(r"(?!guides/glossary|reference/|repository/|notes/|ops$|architecture$|project$|releases$)")
#: Words that also have another meaning on these pages.
AMBIGUOUS = {"batch", "break", "extra", "guard", "kernel", "mark", "rule", "scan", "trace, to"}
#: Phrases in which a word has that.
OTHERWISE = re.compile(
    r"[Rr]ewrite the|passes rewrites|Forward mode|or in mode|shell program|Its programs|Each program runs|These programs|StableHLO artifact"
    r"|Each artifact"
)
#: Where a link would be in the way.
WITHOUT_LINKS = (
    nodes.title,
    nodes.reference,
    nodes.literal,
    nodes.literal_block,
    nodes.raw,
    nodes.image,
    nodes.topic,
    nodes.container,
)


def setup(app):
    """Register the extension."""
    app.connect("doctree-resolved", link_words)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}


def link_words(app, doctree, name):
    """Link the first use of each word of the glossary."""
    if not PAGES.match(name) or app.builder.format != "html":
        return
    explained = explanations(app.env.get_doctree(GLOSSARY))
    terms = {term: anchor for term, anchor in anchors(app.env.get_domain("std")).items() if term in explained}
    if not terms:
        return
    pattern = re.compile(rf"\b({'|'.join(map(form_of, sorted(terms, key=len, reverse=True)))})s?\b")
    page, seen = app.builder.get_relative_uri(name, GLOSSARY), set()
    for text in list(doctree.findall(nodes.Text)):
        if not isinstance(text.parent, nodes.paragraph | nodes.emphasis | nodes.strong) or has_ancestor(text):
            continue
        parts, end = [], 0
        otherwise = [found.span() for found in OTHERWISE.finditer(text)]
        for found in pattern.finditer(text):
            term = next(t for t in terms if re.fullmatch(form_of(t), found[1]))
            if terms[term] in seen or any(start <= found.start() < stop for start, stop in otherwise):
                continue
            seen.add(terms[term])
            link = nodes.reference(found[0], found[0], internal=True, refuri=f"{page}#{terms[term]}")
            link["reftitle"], link["classes"] = explained[term], ["glossary-word"]
            parts += [nodes.Text(text[end : found.start()]), link]
            end = found.end()
        if parts:
            text.parent.replace(text, [*parts, nodes.Text(text[end:])])


def form_of(term: str) -> str:
    """Return the pattern of a word: its first letter may be a capital one."""
    first = f"[{term[0].lower()}{term[0].upper()}]" if term.islower() else re.escape(term[0])
    return first + re.escape(term[1:])


def has_ancestor(text: nodes.Text) -> bool:
    """Return whether a text is where links are in the way."""
    node = text.parent
    while node is not None:
        if isinstance(node, WITHOUT_LINKS):
            return True
        node = node.parent
    return False


def anchors(domain: StandardDomain) -> dict[str, str]:
    """Return the anchors of the words: "graph break, break" is two, with one."""
    found = {}
    for title, anchor in [(title, labels) for (kind, title), (_, labels) in domain.objects.items() if kind == "term"]:
        if title not in AMBIGUOUS:
            found |= {word: anchor for word in title.split(", ") if word not in AMBIGUOUS}
    return found


def explanations(glossary: nodes.document) -> dict[str, str]:
    """Return the explanation of each word."""
    found = {}
    for item in glossary.findall(nodes.definition_list_item):
        text = item[-1].astext().replace("\n", " ")
        found |= {word: text for term in item.findall(nodes.term) for word in term.astext().split(", ")}
    return found
