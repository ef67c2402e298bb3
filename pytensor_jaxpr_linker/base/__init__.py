"""What every room reads and what reads no room: errors, options, marks, the table of rules, and what depends on the versions of others."""
