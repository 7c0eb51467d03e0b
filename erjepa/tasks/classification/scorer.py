"""Classification: an answer is right if it is the label, character by character."""

from dataclasses import replace

from erjepa.tasks.exact_match.scorer import TASK as EXACT_MATCH

TASK = replace(EXACT_MATCH, name="classification")
