"""Reports on experiments: results in, tables, figures and one page out.

``build_report(output)``, or ``python -m erjepa.report OUTPUT``, reads what an experiment left
in its output folder, finished or not, and writes

    OUTPUT/report/index.html              one page with everything in it
    OUTPUT/report/tables/NAME.md .csv .tex
    OUTPUT/report/figures/NAME.png .svg

The key ``report`` of the experiment's config lists its sections in order, each a name or a
mapping with arguments; without it a report has all that the results allow:

    report:
      - main
      - matched_compute
      - {section: bars, methods: [SFT, ER-JEPA content], title: With and without replay}

Every section takes ``title`` and, unless it is about all datasets together (*), ``datasets``;
all but ``outcomes`` take ``methods``.

    figure_1 *        accuracy by dataset beside accuracy over compute, of ``matched``
    main *            accuracy of every method on every dataset
    significance *    paired tests against ``reference``, by default LLM-JEPA
    readings          every reading of the answers
    matched_compute   accuracy at the budgets, and the area under its curve
    single_seeds      the same, a panel for each seed
    learning_curves   accuracy at the end of epochs
    token_matched     a method and those that stop at its tokens
    current_batch     replay of stored pairs against that of the current batch, paired
    dynamics          accuracy, corrected and lost predictions over checkpoints
    drops             accuracy that runs lose between checkpoints
    alignment         cosines and correctness over checkpoints, of one ``seed``
    corrections       errors of ``baseline`` that ``methods`` correct
    stops             right answers, right beginnings that run on, kinds of errors
    outcomes          what ``outcomes_of`` predicts where ``errors_of`` errs
    structures        accuracy by structure of the target regex
    lengths           accuracy by length of the target regex
    addressing        sparse and dense addresses
    capacity          accuracy over epochs and cost, by capacity of the memory
    lambda_k          accuracy by weight of the JEPA loss and predictor tokens
    cost              compute, tokens and time of runs
    examples          errors of ``baseline`` that ``improved`` corrects: ``right`` of them that
                      ``between`` has right, ``wrong`` that it has wrong
    bars              accuracy of some methods
    chosen            the best setting of each method on validation pairs

A part with the role of a baseline is, unless it is named, the first method of its kind: SFT has
neither JEPA loss nor replay, LLM-JEPA no replay, ER-JEPA replays stored pairs.

To add a section, write a function that yields tables and figures, and enter it in
``sections.py``.
"""

from erjepa.report.build import build_report

__all__ = ["build_report"]
