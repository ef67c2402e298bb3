"""The room that all rooms read: errors, options, marks, the table of rules, differences between releases of JAX."""
