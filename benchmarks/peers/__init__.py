"""This engine beside other engines for CPUs, on the same weights and requests."""
