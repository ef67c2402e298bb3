"""`Module`: functions that share state."""
