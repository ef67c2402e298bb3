"""The samplers, each from a checked request to draws."""
