"""Reports on experiments: tables, figures and an HTML page.

``erjepa.studies.report.build.build_report(output)`` reads the results of an experiment, finished
or not, and writes ``OUTPUT/report/``. A section is a function with the decorator ``section`` that
yields tables and figures of a ``Results``; it raises ``Unavailable`` with the reason if the
results are insufficient.
"""
