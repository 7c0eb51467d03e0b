"""The command for grids of runs."""
