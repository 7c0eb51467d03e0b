"""Statistics over the results of runs; this package does not read an experiment's files."""
