"""Grids of runs: methods x seeds x datasets of one recipe, trained, scored and collected."""
