"""Displaying a memory: slots, neighbors, trajectories, flags and the page."""

import csv
import json
import math
import random
import re
import shutil

import pandas as pd
import pytest
import torch

from erjepa.checkpoints.example_errors import EXAMPLE_ERRORS
from erjepa.checkpoints.manifest import write_manifest
from erjepa.checkpoints.memory_file import write_memory
from erjepa.checkpoints.stored_memory import open_memory
from erjepa.commands.memory import main
from erjepa.commands.memory.page import page
from erjepa.commands.memory.reading import address_table, nearest, read_slots
from erjepa.commands.memory.show import summary
from erjepa.commands.memory.trajectories import (
    flags,
    read_contents,
    stay_hard,
    trajectories,
)
from erjepa.replay import EpisodicReplay, ReplaySettings
from tests.harness.data import write_jsonl

# Slots 0 and 1 have one source and two targets; 2 to 4 differ.
SOURCES = torch.tensor(
    [[1.0, 0, 0, 0], [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0.5, 1, 0]]
)
TARGETS = ["a", "b", "c", "</script><b>", "e"]
SCORES = [0.1, 0.5, 0.2, 0.4, 0.3]


def write_run(folder, address="dense", targets=TARGETS, replay_settings=()):
    """The memory of a run with five slots, the first from an earlier run."""
    settings = ReplaySettings(capacity=9, address=address, selection="uniform")
    replay = EpisodicReplay(settings, embed_dim=4, seed=0)
    ids = torch.tensor([3 - (1 << 32), 0, 1, 2, 3])
    segments = [([i],) * 5 for i in range(5)]
    replay.write(ids, segments, replay.encode(SOURCES), torch.tensor(SCORES))
    replay.memory.refresh([2, 2, 3], torch.tensor([0.2, 0.2, 0.4]))
    memory = folder / "epoch_0" / "memory"
    memory.mkdir(parents=True)
    about = {"tokenizer": "x", "origins": ["old", "new"], "inherited": 1}
    about["replay"] = dict(replay_settings)
    write_memory(memory, replay, about)
    (memory.parent / "progress.json").touch()
    rows = [
        {"where": f"f:{i}", "source": f"ask {i}", "target": target}
        for i, target in enumerate(targets)
    ]
    write_jsonl(memory / "texts.jsonl", rows)
    return folder


def test_slots_for_inherited_pairs_are_not_in_the_capacity(tmp_path):
    memory = read_contents(write_run(tmp_path, replay_settings={"capacity": 7}))
    said = "holds 5 pairs; its capacity is 7, and 2 slots for inherited pairs."
    assert summary(memory, 5)[0].endswith(said)


def test_slots_are_read(tmp_path):
    slots = read_slots(open_memory(write_run(tmp_path)))
    assert [*slots.origin] == ["old", "new", "new", "new", "new"]
    assert [*slots.replay_count] == [0, 0, 2, 1, 0]
    assert [*slots.score] == pytest.approx(SCORES)
    assert slots.target[3] == "</script><b>" and slots["where"][3] == "f:3"


def test_texts_that_nothing_verifies_are_marked(tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(write_run(tmp_path / "run") / "epoch_0" / "memory", copy)

    def second_line():
        return summary(read_contents(copy), 5)[1]

    assert second_line().startswith("The texts of texts.jsonl are not verified: ")
    assert second_line().endswith("Training uses the tokens.")
    (copy / "texts.jsonl").unlink()
    assert second_line() == ""
    run = tmp_path / "run"
    write_manifest(run / "epoch_0")
    assert summary(read_contents(run), 5)[1] == ""


def test_without_texts_tokens_are_shown(tmp_path):
    (write_run(tmp_path) / "epoch_0" / "memory" / "texts.jsonl").unlink()
    slots = read_slots(open_memory(tmp_path))
    assert [*slots.source] == [f"[{i}]" for i in range(5)]
    assert [*slots["where"]] == ["old[3]", *(f"new[{i}]" for i in range(4))]


def test_datasets_of_one_name_are_numbered(tmp_path, capsys):
    about = write_run(tmp_path) / "epoch_0" / "memory" / "memory.json"
    written = json.loads(about.read_text()) | {"origins": ["f", "f"]}
    about.write_text(json.dumps(written))
    slots = read_slots(open_memory(tmp_path))
    assert [*slots.origin] == ["f (1)", *["f (2)"] * 4]
    assert [*slots["where"]] == ["f (1):0", *(f"f (2):{i}" for i in range(1, 5))]
    slots_of_both = read_contents(tmp_path)
    slots_of_both.slots = slots_of_both.slots[::-1]  # the oldest is still the first
    lines = summary(slots_of_both, 5)
    assert [line.split(":")[0].strip() for line in lines[3:5]] == [
        *("1 from f (1)", "4 from f (2)")
    ]
    assert '"about": "5 pairs: 1 of f (1), 4 of f (2)"' in page(slots_of_both)
    (about.parent / "texts.jsonl").unlink()
    assert read_slots(open_memory(tmp_path))["where"][0] == "f (1)[3]"


@pytest.mark.parametrize("address", ["dense", "sparse"])
def test_neighbors(tmp_path, address):
    table, addresses = address_table(open_memory(write_run(tmp_path, address)))
    cosines = nearest(table, addresses.rows(torch.tensor([3])), 5)
    if address == "dense":  # sparse ones of four numbers keep a single one
        assert [*cosines.index] == [3, 4, 0, 1, 2]
        assert [*cosines] == pytest.approx([1, 1.25**-0.5, 0, 0, 0])
    assert {*cosines.index} == {*range(5)} and cosines[3] == pytest.approx(1)


def test_trajectories_count_what_is_learned_and_lost():
    low, high = math.log(2) - 0.01, math.log(2) + 0.01
    found = visited({7: [low, low, low, high, low, high], 8: [low]})
    assert [*found.forgotten] == [2, 0] and [*found.learned] == [False, True]
    assert [*found.visits] == [6, 1] and [*found.error] == [high, low]
    assert found.late_error[7] == pytest.approx((high + low + high) / 3)


def visited(errors):
    """The trajectories of examples, whose visits come in turns."""
    visits = [
        (step, example, error)
        for example, found in errors.items()
        for step, error in enumerate(found)
    ]
    columns = ["step", "example", "lm_loss"]
    frame = pd.DataFrame(sorted(visits), columns=columns)
    return trajectories(frame.astype({"lm_loss": float}))


def test_what_stays_hard_is_suspect():
    found = {i: [2.0, 0.1 + 0.01 * i, 0.1, 0.1] for i in range(20)}
    found |= {20: [3.0, 2.5, 2.5, 2.5], 21: [9.0, 9.0, 9.0], 22: [0.1, 0.1, 3.0, 0.2]}
    # 21 was seen three times; 22 was hard for a time.
    assert [*stay_hard(visited(found))] == [20]
    assert stay_hard(visited({})).empty


@pytest.mark.parametrize("visits", [2, 4, 8])
@pytest.mark.parametrize("share", [0.0, 0.05])
def test_few_are_suspect_where_all_labels_are_right(visits, share):
    """Errors are lognormal, those of wrong labels ten times as large."""
    rng = random.Random(0)
    wrong, found = set(range(round(800 * share))), {}
    for i in range(800):
        late = rng.lognormvariate(*((0.3, 0.4) if i in wrong else (-2.2, 0.65)))
        found[i] = [late * (1 + 3 * 0.3**v) for v in range(visits)]
    hard = {*stay_hard(visited(found))}
    assert len(hard - wrong) <= 8
    assert len(hard & wrong) >= 0.9 * len(wrong) or visits < 4


def test_flags(tmp_path):
    slots = read_slots(open_memory(write_run(tmp_path)))
    slots.loc[1, "target"] = slots.target[0]
    other = "slot {} has the same source and another target"
    others = [other.format(3), other.format(3), "", other.format(0), ""]
    prompts = [b"a", b"a", b"b", b"a", b"c"]
    assert [*flags(slots, prompts, hard=[])] == others
    found = flags(slots, prompts, hard=[2, 3])  # those of slots 3 and 4
    assert [*found] == [*others[:3], f"stays hard; {others[3]}", "stays hard"]


def test_likeness_alone_is_not_suspect(tmp_path):
    """Slots 0 and 1 have one address and two targets, and other tokens."""
    assert not read_contents(write_run(tmp_path)).slots["flags"].any()


def log_visits(folder):
    with (folder / EXAMPLE_ERRORS).open("w") as file:
        file.write("step,example,replayed,lm_loss,jepa_loss\n")
        for step in (1, 2):
            for example in range(4):
                file.write(f"{step},{example},{step - 1},{0.9 / step},0.1\n")
        file.write("3,0,1,0.")  # killed


def test_the_command(tmp_path, capsys):
    log_visits(write_run(tmp_path))
    files = ["--csv", str(tmp_path / "m.csv"), "--html", str(tmp_path / "m.html")]
    main([str(tmp_path), "--top", "2", *files])
    out = capsys.readouterr().out
    assert f"{tmp_path}/epoch_0/memory holds 5 pairs; its capacity is 9.\n" in out
    assert "1 from old: mean score 0.1000, 0.00 replays" in out
    assert "Learned: 4 of 4 examples, after 0 forgetting events." in out
    head, *hardest = out.partition("The hardest:\n")[2].splitlines()[:3]
    assert head.split() == ["slot", "score", "replays", "pair"]
    assert [line.split()[0] for line in hardest] == ["1", "3"]
    replayed = out.partition("The most replayed:\n")[2].splitlines()[1:3]
    assert [line.split()[0] for line in replayed] == ["2", "3"]
    assert "Never replayed, 3 in all" in out and "Suspect" not in out
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [row["source"] for row in rows] == [f"ask {i}" for i in range(5)]
    main([str(tmp_path), "--neighbors", "3", "--top", "1"])
    lines = capsys.readouterr().out.splitlines()
    assert "ask 3" in lines[1] and "ask 4" in lines[4] and len(lines) == 5
    assert lines[3].split() == ["cosine", *lines[0].split()]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["run", "--neighbors", "5"], "slots 0 to 4"),
        (["none", "--neighbors", "0"], "none/epoch_0/memory holds no addresses; a run"),
        (["run", "--top", "-1"], "--top -1: must be at least 1"),
        (["run", "--csv", "no/m.csv"], "--csv no/m.csv: no is not a folder"),
        (["run", "--csv", "mine.csv"], "--csv mine.csv exists; choose another name"),
        *(
            (["run", option, file], f"{option} {file} is a run's own; choose a file")
            for option, file in (
                ("--csv", "run/epoch_0/memory/texts.jsonl"),
                ("--csv", "run/epoch_0/memory/new.csv"),
                ("--html", "run/epoch_0/model.safetensors"),
                ("--csv", "run/example_errors.csv"),
                ("--csv", "link.csv"),
            )
        ),
        (
            ["broken"],
            "example_errors.csv:2: expected step, example, replayed, lm_loss, ",
        ),
    ],
)
def test_errors_are_one_line(tmp_path, monkeypatch, arguments, message, capsys):
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path / "run")
    (run / "epoch_0" / "progress.json").touch()
    (tmp_path / "link.csv").symlink_to(run / "epoch_0" / "memory" / "texts.jsonl")
    (tmp_path / "mine.csv").touch()
    write_run(tmp_path / "none", address="none")
    log = write_run(tmp_path / "broken") / EXAMPLE_ERRORS
    log.write_text("step,example,replayed,lm_loss,jepa_loss\n1,2,\xff\n")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit):
        main(arguments)
    *_, said = capsys.readouterr().err.splitlines()
    assert message in said
    assert before == {path: path.read_bytes() for path in before}


def test_texts_are_escaped_for_a_spreadsheet_and_a_terminal(tmp_path, capsys):
    targets = [
        "=cmd|'/C calc'!A0",
        "@SUM(1)",
        "+1+1",
        "\x1b]0;x\x07\x00\u202e\ud800",
        "-0.5 kg",
    ]
    write_run(tmp_path, targets=targets)
    main([str(tmp_path), "--csv", str(tmp_path / "m.csv")])
    assert not {"\x1b", "\x07", "\x00", "\u202e"} & set(capsys.readouterr().out)
    rows = list(csv.DictReader((tmp_path / "m.csv").open()))
    assert [row["target"] for row in rows] == [
        *("'=cmd|'/C calc'!A0", "'@SUM(1)", "'+1+1", "?]0;x????", "'-0.5 kg")
    ]
    assert rows[0]["example"] == str(3 - (1 << 32))  # a number below 0 stays one


def test_an_error_that_is_not_finite_is_shown(tmp_path):
    log_visits(write_run(tmp_path))
    log = (tmp_path / EXAMPLE_ERRORS).read_text().replace("0.45", "nan")
    (tmp_path / EXAMPLE_ERRORS).write_text(log)
    data = data_of(page(read_contents(tmp_path)))
    errors = [row[data["columns"].index("error")] for row in data["rows"]]
    assert errors.count("nan") == 4


def data_of(html):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = re.search(r'id="data">(.*?)</script>', html, re.S).group(1)
    return json.loads(text, parse_constant=refuse)


def test_the_page_shows_columns_that_say_something(tmp_path):
    memory = read_contents(write_run(tmp_path / "mine"))
    memory.slots["score"] = 10.0**-memory.slots.slot
    data = data_of(page(memory))
    assert data["title"] == "Memory of mine/epoch_0"
    assert data["about"] == "5 pairs: 1 of old, 4 of new"
    columns = ["origin", "where", "source", "target", "score", "replay_count"]
    assert data["columns"] == ["slot", *columns]  # nothing was logged or flagged
    assert sum(height > 0 for height in data["charts"][0]["heights"]) == 5
    memory.slots["where"] = memory.slots.origin + ":1"
    assert data_of(page(memory))["columns"] == ["slot", *columns[1:]]


def test_the_page_holds_its_data_and_nothing_else(tmp_path):
    log_visits(write_run(tmp_path))
    html = page(read_contents(tmp_path))
    assert html.count("</script>") == 2  # no text of a pair ends one
    assert not re.search(r"(?:src|href)=|https?:", html)
    data = data_of(html)
    column = data["columns"].index
    by_score = [row[column("score")] for row in data["rows"]]
    assert by_score == sorted(by_score, reverse=True) and len(by_score) == 5
    assert data["rows"][1][column("target")] == "</script><b>"
    charts = {chart["title"]: chart for chart in data["charts"]}
    assert sum(charts["Slots by score, logarithmic"]["heights"]) == 5
    counts = charts["Slots by replay count"]
    assert (counts["labels"], counts["heights"]) == (["0", "1", "2"], [3, 1, 1])
    assert charts["Replays by step"]["heights"] == [0, 4]


def test_the_visits_are_those_of_the_run(tmp_path):
    """Also of a checkpoint that was moved and linked, but not of a memory beside checkpoints."""
    run = write_run(tmp_path / "run")
    visits = "step,example,replayed,lm_loss,jepa_loss\n1,2,0,0.5,0.5\n"
    (run / EXAMPLE_ERRORS).write_text(visits)
    (run / "epoch_0").rename(tmp_path / "disk")
    (run / "epoch_0").symlink_to(tmp_path / "disk")
    assert len(read_contents(run).visits) == 1
    created = run / "created"
    shutil.copytree(tmp_path / "disk" / "memory", created / "memory")
    assert len(read_contents(created).visits) == 0
