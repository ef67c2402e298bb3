"""Makes Jaxprs of basic operations, for compilers that have no factorizations, Fourier transforms, and others."""
