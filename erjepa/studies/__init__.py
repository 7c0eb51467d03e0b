"""Studies of the method: grids of runs, their results, statistics and reports.

``experiment`` and ``results`` define the files of an experiment's folder. ``grid`` runs the cells
and collects their results; ``report`` makes tables and figures with the functions of
``statistics``. Only the commands import this package.
"""
