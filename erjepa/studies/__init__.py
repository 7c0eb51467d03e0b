"""Studies of the method: grids of runs, what they leave, their statistics and reports.

``experiment`` and ``results`` say what a grid's folder holds. ``grid`` runs and collects,
``report`` makes tables and figures by ``statistics``. Nothing outside of the commands imports it.
"""
