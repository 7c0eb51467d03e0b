"""Predictions of an interrupted evaluation are kept and continued."""

from erjepa.evaluation.predictions import PredictionStore, folder_of
from erjepa.utils.summary import Reading, Summary, read_summary

RIGHT = Reading(share=1.0, right=1, examples=1, interval=(0.2, 1.0))
SUMMARY = Summary(task="nl_rx", accuracy=1.0, primary="exact_match", exact_match=RIGHT)
SETTINGS = {"model": "m", "max_new_tokens": 5}


def test_parts_of_all_ranks_are_found_again(tmp_path):
    for rank in (0, 1):
        store = PredictionStore(tmp_path, SETTINGS, rank)
        store.open()
        store.append([{"id": rank, "output": "x"}, {"id": rank + 10, "output": "y"}])
    assert sorted(PredictionStore(tmp_path, SETTINGS, 0).open()) == [0, 1, 10, 11]


def test_a_torn_line_is_left_out_and_does_not_spoil_the_next(tmp_path):
    store = PredictionStore(tmp_path, SETTINGS, 0)
    store.open()
    store.append([{"id": 1, "output": "x"}])
    with (tmp_path / "part_0.jsonl").open("a") as part:
        part.write('{"id": 2, "ou')
    store.append([{"id": 3, "output": "z"}])
    assert sorted(store.open()) == [1, 3]


def test_finish_replaces_parts_and_can_be_read_again(tmp_path):
    store = PredictionStore(tmp_path, SETTINGS, 0)
    store.open()
    store.append([{"id": 1, "output": "x"}])
    store.finish([{"id": 1, "output": "x", "right": True}], SUMMARY)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("predictions.jsonl", "settings.json", "summary.json"),
    ]
    assert read_summary(tmp_path) == SUMMARY
    assert store.open() == {1: {"id": 1, "output": "x", "right": True}}


def test_other_settings_start_anew(tmp_path):
    store = PredictionStore(tmp_path, SETTINGS, 0)
    store.open()
    store.append([{"id": 1, "output": "x"}])
    store.finish([{"id": 1, "output": "x"}], SUMMARY)
    other = PredictionStore(tmp_path, {**SETTINGS, "max_new_tokens": 6}, 0)
    assert other.open() == {}
    assert not (tmp_path / "predictions.jsonl").exists()


def test_each_dataset_has_a_folder(tmp_path):
    folder = tmp_path / "epoch_0"
    one, two = ({"_component_": "my.own_dataset", "size": size} for size in (1, 2))
    assert folder_of(folder, one, "eval_dataset") == folder
    PredictionStore(folder, {"eval_dataset": one}, rank=0).open()
    assert folder_of(folder, one, "eval_dataset") == folder
    beside = folder_of(folder, two, "eval_dataset")
    assert beside == folder_of(folder, dict(two), "eval_dataset") != folder
    assert beside.parent == tmp_path and beside.name.startswith("epoch_0_on_own_")
    both = folder_of(folder, [one, two], "eval_dataset")
    assert both.name.startswith("epoch_0_on_own+own_2_")
    named_before = beside.with_name(beside.name.replace("own", "other"))
    named_before.mkdir()
    assert folder_of(folder, two, "eval_dataset") == named_before
    (folder / "settings.json").write_text("{")  # just being written
    assert folder_of(folder, two, "eval_dataset") == folder
