"""Takes ARIA roles off lists of citations: Docutils gives them a deprecated one, which checks of accessibility report."""


def setup(app):
    """Register the extension."""
    app.connect("html-page-context", without_roles)
    return {"version": "1", "parallel_read_safe": True}


def without_roles(app, name, template, context, doctree):
    """Remove the roles from a page."""
    if "citation-list" in context.get("body", ""):
        body = context["body"].replace('<div role="list" class="citation-list">', '<div class="citation-list">')
        context["body"] = body.replace(' role="doc-biblioentry"', "")
