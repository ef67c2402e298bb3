"""Pure JAX functions of a PyMC model: its log density, its variables, the points where chains start."""
