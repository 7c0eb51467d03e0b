"""Configs of experiments are validated completely before anything runs."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import erjepa.configs
from erjepa.studies.grid.cells import cells, training_command
from erjepa.studies.grid.config import load_experiment
from erjepa.studies.grid.output import record_experiment
from erjepa.studies.report.build import build_report

PACKAGED = erjepa.configs.config_names("experiments")

VALID = """
name: small
output_dir: /tmp/small
seeds: [1, 2]
datasets: {synth: tiny_synth}
methods:
  LLM-JEPA: {replay.weight: 0}
  ER-JEPA content:
  Matched: {replay.weight: 0, stop.tokens_of: ER-JEPA content}
"""


@pytest.fixture
def load(tmp_path):
    def load(text=VALID, *arguments):
        path = tmp_path / "small.yaml"
        path.write_text(text)
        return load_experiment(str(path), arguments)

    return load


def config_of_run(experiment, cell, folder):
    """The config that the command of a run loads."""
    command = training_command(experiment, cell, folder)
    start = command.index("--config") + 1
    return erjepa.configs.load(command[start], command[start + 1 :])


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_experiments(name, tmp_path):
    experiment = load_experiment(name)
    assert experiment.name == name
    seeds = list(experiment.seeds)
    assert seeds == [82, 23, 37, 84, 4][: len(seeds)] and len(seeds) >= 3
    assert experiment.overrides["save_adapter_weights_only"] is True
    constant = experiment.overrides.get("lr_scheduler.final_factor") == 1
    assert constant == (experiment.budgets is not None), "see matched_compute.yaml"

    # Configs allow the keys that the grid adds to those of a method.
    trained = [cell for cell in cells(experiment) if cell.budget_factor]
    for cell in (trained[0], trained[-1]):
        cfg = config_of_run(experiment, cell, tmp_path)
        assert cfg.keep_epochs == (experiment.budgets is None)

    # Every section of its report exists, takes what it is given, and says what it lacks.
    record_experiment(tmp_path, experiment)
    page = build_report(tmp_path).read_text()
    assert experiment.report and "is scored" in page


def test_the_papers_experiments():
    assert {"main", "matched_compute", "controls", "addressing", "capacity"} <= set(
        PACKAGED
    )
    main, compute = load_experiment("main"), load_experiment("matched_compute")
    assert list(main.datasets) == ["synth", "turk", "gsm8k", "spider", "nq_open"]
    assert main.nproc_per_node == 4 and main.budgets is None
    equal_steps = [i * compute.budgets[0] for i in range(1, 7)]
    assert list(compute.budgets) == pytest.approx(equal_steps)
    # In the paper's count 240.31 PFLOPs, of which four epochs take 219.667.
    assert compute.budgets[-1] == pytest.approx(240.31 / 219.667 * 21.1e15, rel=0.01)
    assert load_experiment("capacity").overrides["epochs"] == 4
    assert len(load_experiment("lambda_k").methods) == 20


def test_the_end_of_turn_and_the_methods():
    """Every method by every path that may train it; without replay two of them are doubles."""
    methods = load_experiment("stop_token").methods
    keys = ("replay.weight", "loss.jepa_weight", "replay.selection")
    found = {}
    for method in methods.values():
        paths = found.setdefault(tuple(map(method.get, keys)), [])
        paths.append(method["train_end_of_turn"])
    every = ["all", "new", "replay", "none"]
    assert found == {
        (0, 0, None): ["all", "none"],
        (0, None, None): ["all", "none"],
        (None, None, "uniform"): every,
        (None, None, "content"): every,
    }


@pytest.mark.parametrize(
    ("name", "trials"),
    [("tune_objectives", 6), ("tune_controls", 8), ("tune_replay", 5)],
)
def test_settings_are_tuned_on_validation_pairs_and_as_many_of_each_method(
    name, trials
):
    experiment = load_experiment(name)
    assert experiment.score_on == "validation"
    assert experiment.overrides["validation.size"] > 0
    tried = [name.partition(",")[0] for name in experiment.methods]
    assert ("SFT" in tried) == (name != "tune_replay")
    assert {tried.count(name) for name in tried} == {trials}
    settings = [str(keys) for keys in experiment.methods.values()]
    assert len(set(settings)) == len(settings)


def test_another_model_by_one_key():
    experiment = load_experiment("matched_compute", ["model=tiny", "budgets=[1e12]"])
    assert experiment.datasets == {"synth": "tiny_synth"}
    assert experiment.output_dir.endswith("matched_compute/tiny")
    assert experiment.budgets == [1e12]
    smollm2 = ["model=smollm2_135m", "nproc_per_node=1"]
    assert len(load_experiment("matched_compute", smollm2).budgets) == 6
    assert load_experiment("main", smollm2).datasets["turk"] == "smollm2_135m_turk"


def test_a_child_replaces_keys_and_adds_to_overrides(tmp_path, load):
    child = tmp_path / "child.yaml"
    load(VALID + "overrides: {epochs: 3, batch_size: 8}\n")
    child.write_text(
        "defaults: small\nname: child\nmethods: {SFT: {replay.weight: 0}}\n"
        "datasets: {other: tiny_synth}\noverrides: {epochs: 2, replay.budget: 4}\n"
    )
    experiment = load_experiment(str(child))
    assert experiment.name == "child" and experiment.seeds == [1, 2]
    assert experiment.methods == {"SFT": {"replay.weight": 0}}
    assert experiment.datasets == {"other": "tiny_synth"}
    expected = {"epochs": 2, "batch_size": 8, "replay.budget": 4}
    assert experiment.overrides == expected


def test_arguments(load):
    experiment = load(
        VALID,
        "seeds=[3]",
        "overrides.replay.weight=0.5",
        "overrides.epochs=2",
        "datasets={turk: tiny_synth}",
        "budgets=[1e12,2e12]",
    )
    assert experiment.seeds == [3]
    assert experiment.overrides == {"replay.weight": 0.5, "epochs": 2}
    assert experiment.datasets == {"turk": "tiny_synth"}
    assert experiment.budgets == [1e12, 2e12]


def test_an_order_names_some_of_the_datasets(load):
    text = VALID + "order: [c, a]\n"
    text = text.replace(
        "{synth: tiny_synth}", "{a: tiny_synth, b: tiny_synth, c: tiny_synth}"
    )
    assert list(load(text).datasets) == ["c", "a"]
    assert list(load(text, "order=[b]").datasets) == ["b"]
    others = load(text, "continual=True", "also_scored={b: tiny_synth}")
    assert list(others.also_scored) == ["b"]
    for order, message in (
        ("[a,x]", "unknown config key datasets.x. Known keys: a, b, c"),
        ("[a,a]", r"order: \['a', 'a'\] has duplicates"),
        ("a", "order: input should be a valid array"),
        ("[]", "order: .* at least 1 item"),
    ):
        with pytest.raises(ValueError, match=message):
            load(text, f"order={order}")


def test_all_keys_survive_a_round_trip(load, tmp_path):
    experiment = load()
    again = OmegaConf.to_yaml(OmegaConf.create(asdict(experiment)))
    assert load(again) == experiment
    assert experiment.methods["ER-JEPA content"] == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seed=[1]"], r"small.yaml: unknown config key seed. Did you mean seeds\?"),
        (["seeds=[]"], "seeds: value should have at least 1 item"),
        (["seeds=[1,1]"], r"seeds: \[1, 1\] has duplicates"),
        (["methods={}"], "methods: .* should have at least 1 item"),
        (
            ["methods={a b: {}, a_b: {}}"],
            "methods: 'a b' and 'a_b' have the same folder",
        ),
        (["datasets={a: tiny_synth, A: tiny_synth}"], "datasets: 'a' and 'A' have the"),
        *(
            ([f"datasets={{{name}: tiny_synth}}"], "datasets: .* cannot name a folder")
            for name in (
                *("/tmp/x", "../x", "..", ".", "a/b", "a\\b", "''", "' '"),
                *('"a\\nb"', '"\\e[2J"', "$a", "a=b", "x" * 101, "é" * 51),
            )
        ),
        *(
            ([f"methods={{{name}: {{}}}}"], "methods: .* cannot name a folder")
            for name in ("..", ".", "''", "x" * 101)
        ),
        *(
            ([argument], f"small.yaml: .*{argument.partition('=')[0]}")
            for argument in (
                *("nproc_per_node=0", "nproc_per_node=x", "nproc_per_node=null"),
                *("budgets=7", "budgets=[-1]", "budgets=[x]", "budgets=[2,1]"),
                *("output_dir=", "output_dir=[3]", "name=", "model=3"),
                *("devices=[-1]", "devices=x", "devices=[]"),
                *("seeds=[../x]", "seeds=[1.5]", "seeds=[null]", "seeds=1"),
                *("datasets=[a]", "datasets={a: 3}", "datasets={a: {databases: x}}"),
                *("methods=x", "methods={a: x}", "overrides=[a]"),
                *("report=[3]", "slurm=x", "continual=1", "report=x", "seeds=[-1]"),
                *("seeds=${x}", "name=${name}"),
            )
        ),
        (["seeds=[1"], r"small.yaml: seeds=\[1: while parsing a flow sequence"),
        (["=1"], "expected key=value"),
        (["score_on=train"], "score_on: input should be 'test' or 'validation'"),
        *(
            (
                [f"methods={{a: {{batch_size_times: {n}}}}}"],
                "a: batch_size_times: input",
            )
            for n in (0.5, 0)
        ),
        (["overrides.eval_split=validation"], "eval_split is set by the grid"),
        (["overrides.checkpoint=ema"], "checkpoint is set by the grid"),
        (["score_weights=[best]"], r"score_weights\[0\]: input should be 'last' or "),
        (["score_weights=[ema]"], "runs of .* average no weights; set overrides.ema_d"),
        (["score_on=validation"], "runs of .* hold out no pairs; set overrides.valid"),
        (["overrides.eval_dataset=null"], "datasets: synth: there is no eval_dataset"),
        (["devices=[0,1,2]", "nproc_per_node=2"], "cannot be split into groups of 2"),
        (["devices=[0,1,2,2]", "nproc_per_node=2"], "groups of 2 distinct devices"),
        (["methods={a: {stop.tokens_of: b}}"], "stop.tokens_of=b must be a method"),
        (["methods={a: {stop.tokens_of: a}}"], "stop.tokens_of=a must be a method"),
        (
            [
                "continual=True",
                "datasets={x: tiny_synth, y: tiny_synth}",
                "methods={a: {trains_on: all}, b: {stop.tokens_of: a}}",
            ],
            "stop.tokens_of=a must be a method that runs on every dataset",
        ),
        (
            ["overrides.epoch=2"],
            r"LLM-JEPA on synth \(tiny_synth\): .*epoch. Did you mean epochs\?",
        ),
        (
            ["overrides.replay.wieght=2"],
            r"LLM-JEPA on synth \(tiny_synth\): .*replay.wieght. Did you mean replay.weight\?",
        ),
        (
            ["overrides.optimizr.lr=2"],
            r"LLM-JEPA on synth \(tiny_synth\): unknown config key optimizr",
        ),
        (
            ["methods={a: {replai.weight: 0}}"],
            r"a on synth \(tiny_synth\): .*replai. Did you mean",
        ),
        (
            ["datasets={a: {config: tiny_synth, databass: x}}"],
            r"LLM-JEPA on a \(tiny_synth\): .*databass",
        ),
        (["overrides.seed=2"], "LLM-JEPA on synth: seed is set by the grid"),
        (["methods.LLM-JEPA=2"], "methods is replaced as a whole"),
        (["seeds[0]=3"], r"seeds\[0\]=3: expected key=value or section.key=value"),
        (["dataset.size=2"], "say overrides.dataset.size=2"),
        (["epochs=2"], "epochs is a key of runs; say overrides.epochs=2"),
        (["metods.x=2"], r"unknown config key metods. Did you mean methods\?"),
        (
            ["overrides.replay.weight=-1"],
            r"ER-JEPA content on synth \(tiny_synth\): replay.weight: .*-1",
        ),
        (
            ["methods={a: {}, b: {epochs: 0}}"],
            r"b on synth \(tiny_synth\): epochs: .*1, got 0",
        ),
        (
            ["methods={a: {optimizer.lr: fast}}"],
            r"a on synth \(tiny_synth\): optimizer.lr: .*fast",
        ),
        (
            ["datasets={a: {config: tiny_synth, batch_size: few}}"],
            r"LLM-JEPA on a \(tiny_synth\): batch_size: .*few",
        ),
        (
            ["methods={a: {~nothing: null}}"],
            r"a on synth \(tiny_synth\): ~nothing: the config has no",
        ),
        (["epochs"], "expected key=value"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_errors(load, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(VALID, *arguments)


def test_what_is_absent_is_listed(load):
    with pytest.raises(FileNotFoundError, match="no packaged config .*matched_compute"):
        load_experiment("mached_compute")
    with pytest.raises(FileNotFoundError, match="Did you mean tiny_matched_compute?"):
        load_experiment("tiny_match")
    with pytest.raises(FileNotFoundError, match="no packaged config .*tiny_synth"):
        load(VALID, "datasets={a: tiny_sinth}")
    with pytest.raises(ValueError, match="output_dir: field required"):
        load(VALID.replace("output_dir", "# "))


def test_errors_of_a_config_name_it(load, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("defaults: tiny_synth\nepoch: 2\n")
    with pytest.raises(
        ValueError, match=r"LLM-JEPA on a \(.*own\.yaml\): unknown config key epoch"
    ):
        load(VALID, f"datasets={{a: {path}}}")


def test_every_file_is_packaged():
    folder = Path(__file__).parents[3] / "configs" / "experiments"
    assert PACKAGED == sorted(path.stem for path in folder.glob("*"))


def test_a_key_of_one_dataset(load):
    both = VALID.replace(
        "{synth: tiny_synth}", "{synth: tiny_synth, other: tiny_synth}"
    )
    arguments = ["datasets.synth.dataset.size=9", "datasets.other={config: tiny_synth}"]
    arguments += ["datasets.other.dataset.size=8"]
    sizes = [keys["dataset.size"] for keys in load(both, *arguments).datasets.values()]
    assert sizes == [9, 8]


@pytest.mark.parametrize(
    "question",
    ["Which # is it?", "Topic: which one?", "true", "1e3", "None", "[a", "it's"],
)
def test_texts_reach_the_run_as_they_are(load, question, tmp_path):
    own = {"dataset": "erjepa.datasets.classification_dataset", "dataset.source": "a"}
    own |= {"dataset.question": question, "dataset.options": ["yes", "no"]}
    experiment = load(f"{VALID}overrides: {json.dumps(own)}")
    cfg = config_of_run(experiment, cells(experiment)[0], tmp_path)
    assert cfg.dataset.get("question") == question
