"""Random variables: Threefry keys in place of NumPy generators."""
