r"""NL-RX: write the regex for a description of lines.

"lines with a number before a vowel" -> ``.*[0-9].*[AEIOUaeiou].*``. The descriptions are
generated (SYNTH) or paraphrased by people (TURK), the regexes are the same 10,000
(Locascio et al., Neural Generation of Regular Expressions from Natural Language, EMNLP
2016). Three verdicts:

    exact_match   the output, stripped, is the target's text; LLM-JEPA reports this share
    dfa_equal     output and target describe the same lines, the dataset's own metric
    llm_jepa      what LLM-JEPA's evaluation script says, to the letter

Known faults:
- 39 of the 2000 SYNTH test pairs also occur in its training file.
- Whole strings are a poor measure: ``a&b`` for ``b&a`` is wrong by ``exact_match``.
- DFA equality is a lenient one: 312 of the 2000 test regexes describe no line at all,
  such as ``(dog)&([0-9])``, and 86 describe every line, and each of them is equal to any
  other of its kind.
- The tool that the dataset is published with reads ``\b`` as the letter b. Here it is a
  word boundary (see ``regex_language``); 408 of the 2000 test regexes have one.

Invalid regexes are wrong, those beyond the bounds undecided. A regex within other
text, such as a sentence or a code fence, is not looked for.
"""

from erjepa.tasks.nl_rx.regex_language import languages_equal
from erjepa.tasks.nl_rx.regex_syntax import RegexSyntaxError, parse
from erjepa.tasks.task import Task, Verdicts, one_by_one, without_end

# The largest test regex takes 351 states and a fifth of a second.
MAX_STATES = 5000
SECONDS = 5.0
MAX_LENGTH = 2000  # letters; the longest regex of the dataset has 54


def _verdicts(target: str, output: str) -> Verdicts:
    gold, answer = target.strip(), output.strip()
    return {
        "exact_match": answer == gold,
        "dfa_equal": _dfa_equal(gold, answer),
        "llm_jepa": without_end(output) == target,  # which the script does not strip
    }


def _dfa_equal(gold: str, answer: str) -> bool | None:
    if answer == gold:
        return True  # whatever its size
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
