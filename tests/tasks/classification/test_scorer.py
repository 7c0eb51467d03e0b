"""An answer is right if it equals the whole label."""

from erjepa.tasks.score import load_task, score_predictions


def test_exact_match_of_the_label():
    outputs = ["Sports", " Sports\n", "Sport", "sports", "World", ""]
    predictions = [{"target": "Sports", "output": output} for output in outputs]
    scored, summary = score_predictions(load_task("classification"), predictions)
    assert [p["exact_match"] for p in scored] == [True, True, *[False] * 4]
    assert (summary.task, summary.accuracy) == ("classification", 2 / 6)
