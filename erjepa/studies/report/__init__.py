"""Reports on experiments: results in, tables, figures and one page out.

``erjepa.studies.report.build.build_report(output)`` reads what an experiment left in its output
folder, finished or not, and writes ``OUTPUT/report/``. A section is a function that yields tables
and figures from ``Results`` under the decorator ``section``; it raises ``Unavailable`` with the
reason where results do not allow it.
"""
