"""Reports on a graph: `explain` as text, dict, tree and HTML, and `stages`."""
