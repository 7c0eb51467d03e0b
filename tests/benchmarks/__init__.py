"""Benchmarks; ``python -m tests.benchmarks`` runs them all."""
