"""Reports on experiments: results in, tables, figures and one page out.

``erjepa.report.build.build_report(output)``, or ``python -m erjepa.report OUTPUT``, reads what an
experiment left in its output folder, finished or not, and writes

    OUTPUT/report/index.html              one page with everything in it
    OUTPUT/report/tables/NAME.md .csv .tex
    OUTPUT/report/figures/NAME.png .svg

The key ``report`` of the experiment's config lists its sections in order, each a name or a
mapping with arguments; without it a report has all that the results allow:

    report:
      - accuracy
      - matched_compute
      - {section: accuracy, methods: [SFT, ER-JEPA content], title: With and without replay}

``python -m erjepa.report --sections`` lists the sections and their arguments. A part with the
role of a baseline is, unless it is named, the first method of its kind: SFT has neither JEPA
loss nor replay, LLM-JEPA no replay, ER-JEPA replays stored pairs.

To add a section, write a function that yields tables and figures from ``Results`` under the
decorator ``section``; it raises ``Unavailable`` with the reason where results do not allow it.
"""
