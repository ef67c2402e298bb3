"""What became of a graph: `explain` and its text, dict, tree and HTML forms; `stages`, the stage view."""
