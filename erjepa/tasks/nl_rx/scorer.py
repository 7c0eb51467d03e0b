r"""NL-RX: write the regex for a description of lines.

"lines with a number before a vowel" -> ``.*[0-9].*[AEIOUaeiou].*``. The descriptions are
generated (SYNTH) or paraphrased by people (TURK); both subsets have the same 10,000 regexes
(Locascio et al., Neural Generation of Regular Expressions from Natural Language, EMNLP
2016). Verdicts:

    exact_match   the stripped output is the target; the accuracy that LLM-JEPA reports
    dfa_equal     output and target match the same lines; the dataset's own metric
    llm_jepa      the result of LLM-JEPA's evaluation script, to the letter

Known faults:
- 39 of the 2000 SYNTH test pairs also occur in its training file.
- ``exact_match`` is strict: ``a&b`` for ``b&a`` is wrong.
- ``dfa_equal`` is lenient: 312 of the 2000 test regexes match no line at all, such as
  ``(dog)&([0-9])``, and 86 match every line; all regexes of either kind are equal.
- The tool published with the dataset reads ``\b`` as the letter b. Here it is a
  word boundary (see ``regex_language``); 408 of the 2000 test regexes have one.

Invalid regexes are wrong, regexes that exceed the bounds are undecided. A regex is not extracted
from surrounding text, such as a sentence or a code fence.
"""

from erjepa.tasks.nl_rx.regex_language import languages_equal
from erjepa.tasks.nl_rx.regex_syntax import RegexSyntaxError, parse
from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

# The largest test regex takes 351 states and 0.2 seconds.
MAX_STATES = 5000
SECONDS = 5.0
MAX_LENGTH = 2000  # characters; the longest regex of the dataset has 54


def _verdicts(target: str, output: str) -> Verdicts:
    gold, answer = target.strip(), output.strip()
    return {
        "exact_match": answer == gold,
        "dfa_equal": _dfa_equal(gold, answer),
        "llm_jepa": without_end(output) == target,  # the script does not strip targets
    }


def _dfa_equal(gold: str, answer: str) -> bool | None:
    if answer == gold:
        return True  # even beyond the bounds
    if max(len(gold), len(answer)) > MAX_LENGTH:
        return None
    try:
        parse(gold)
    except (RegexSyntaxError, RecursionError):
        return None
    try:
        return languages_equal(gold, answer, max_states=MAX_STATES, seconds=SECONDS)
    except RegexSyntaxError:
        return False


TASK = Task(
    name="nl_rx", primary="exact_match", extract=str.strip, score=one_by_one(_verdicts)
)
