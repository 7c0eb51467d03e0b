"""Benchmarks: ``python -m tests.benchmarks`` runs all, see :mod:`tests.benchmarks.__main__`."""
