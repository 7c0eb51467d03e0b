"""An invalid value gives a one-line error with the key, the value and what is allowed."""

import inspect
from dataclasses import MISSING, FrozenInstanceError, fields

import pytest

from erjepa.configs import Component, load, merged, read
from erjepa.configs.schema import KEYS, Config, Stop, Validation
from erjepa.configs.synonyms import SYNONYMS
from erjepa.replay import ReplaySettings


def tiny(*overrides):
    return load("tiny_synth", overrides)


def refusal(*overrides, name="tiny_synth"):
    """What the error about a config says."""
    with pytest.raises(ValueError) as error:
        load(name, overrides)
    return str(error.value)


INTEGER = "input should be a valid integer"
NUMBER = "input should be a valid number"
FINITE = "input should be a finite number"
COUNT = "input should be greater than or equal to 1"
WHOLE = "input should be greater than or equal to 0"
POSITIVE = "input should be greater than 0"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("batch_size=many", f'batch_size: {INTEGER}, got "many"'),
        ("batch_size=0", f"batch_size: {COUNT}, got 0"),
        ("batch_size=True", f"batch_size: {INTEGER}, got true"),
        ("batch_size=null", f"batch_size: {INTEGER}, got null"),
        ("gradient_accumulation_steps=0", f"gradient_accumulation_steps: {COUNT}, got"),
        ("epochs=0", f"epochs: {COUNT}, got 0"),
        ("epochs=1.5", f"epochs: {INTEGER}, got 1.5"),
        ("epochs=.inf", f"epochs: {INTEGER}, got Infinity"),
        ("log_every_n_steps=0", f"log_every_n_steps: {COUNT}, got 0"),
        ("num_predictor_tokens=-1", f"num_predictor_tokens: {WHOLE}, got -1"),
        ("num_workers=-1", f"num_workers: {WHOLE}, got -1"),
        ("stop.steps=-3", f"stop.steps: {COUNT}, got -3"),
        ("stop.flops=nan", f'stop.flops: {NUMBER}, got "nan"'),
        ("stop.flops=.nan", f"stop.flops: {FINITE}, got NaN"),
        ("stop=3", "stop is a section of keys, stop.KEY=VALUE, got 3"),
        ("clip_grad_norm=0", f"clip_grad_norm: {POSITIVE}, got 0"),
        ("dtype=fp16", "dtype: input should be 'bf16' or 'fp32', got \"fp16\""),
        ("trainable_dtype=bf16", "trainable_dtype=bf16: trainable weights are held in"),
        ("shuffle=1", "shuffle: input should be a valid boolean, got 1"),
        ("device=3", "device: input should be a valid string, got 3"),
        (
            "base_model={a: b}",
            'base_model: input should be a valid string, got {"a": "b"}',
        ),
        ("output_dir=${absent}", "Interpolation key 'absent' not found"),
        (
            "predictor_tokens=[a,1]",
            "predictor_tokens[1]: input should be a valid string, got 1",
        ),
        (
            "checkpoint_dir={a: 3}",
            "input should be a valid string or a valid array, got",
        ),
        ("checkpoint_at_flops=[many]", f"checkpoint_at_flops[0]: {NUMBER}, got"),
        ("checkpoint_at_flops=[2,1]", "checkpoint_at_flops must be an ascending list"),
        ("checkpoint_at_flops=[0,1]", "checkpoint_at_flops must be an ascending list"),
        ("row_length=64", "row_length=64 is shorter than max_seq_len=256"),
        ("~batch_size", "batch_size: field required"),
        (
            "loss.distance=dot",
            "loss.distance: input should be 'cosine', 'l2', 'mse' or 'inf",
        ),
        ("loss.temperature=0", f"loss.temperature: {POSITIVE}, got 0"),
        ("loss.jepa_every=0", f"loss.jepa_every: {COUNT}, got 0"),
        (
            "loss.direction=back",
            "loss.direction: input should be 'source_to_target', 'target",
        ),
        ("loss.sigreg_weight=-1", f"loss.sigreg_weight: {WHOLE}, got -1"),
        ("loss.sigreg_slices=0", f"loss.sigreg_slices: {COUNT}, got 0"),
        (
            "loss.sigreg_slices=1000000000",
            "input should be less than 100000, got 1000000000",
        ),
        (
            "predictor_position=end",
            "predictor_position: input should be 'behind' or 'front'",
        ),
        (
            "views=words",
            "views: input should be 'shared', 'standalone', 'spans' or 'pat",
        ),
        (
            "views=spans loss.direction=both",
            "loss.direction=both: views=spans compares parts of one text",
        ),
        ("loss.jepa_weight=-1", f"loss.jepa_weight: {WHOLE}, got -1"),
        ("replay.capacity=0", f"replay.capacity: {COUNT}, got 0"),
        ("replay.capacity=x", f'replay.capacity: {INTEGER}, got "x"'),
        ("replay.weight=-1", f"replay.weight: {WHOLE} or 'auto', got -1"),
        ("model.lora_rank=0", f"model.lora_rank: {COUNT}, got 0"),
        (
            "model.lora_dropout=1",
            "model.lora_dropout: input should be less than 1, got 1",
        ),
        ("model.num_layers=x", f'model.num_layers: {INTEGER}, got "x"'),
        ("dataset.size=x", f'dataset.size: {INTEGER}, got "x"'),
        (
            "dataset.split=dev",
            "dataset.split: input should be 'train' or 'test', got \"dev\"",
        ),
        *(
            (
                f"dataset={{_component_: erjepa.datasets.{builder}, {key}: x}}",
                f"dataset.{key}: input should be '{first}'",
            )
            for builder, key, first in (
                ("gsm8k_dataset", "split", "train"),
                ("nl_rx_dataset", "subset", "synth"),
                ("nq_open_dataset", "answers", "joined"),
                ("spider_dataset", "prompt", "bare"),
                ("spider_dataset", "split_by", "record"),
            )
        ),
        ("dataset.constructs=and", "dataset.constructs: input should be a valid array"),
        (
            "dataset={_component_: erjepa.datasets.paired_dataset, source: a, column_map: b}",
            "dataset.column_map: input should be an object",
        ),
        (
            "model.lora_attn_modules=[q]",
            "model.lora_attn_modules: [0]: input should be 'q_proj'",
        ),
        ("tokenizer.path=[3]", "tokenizer.path: input should be a valid string, got"),
        ("seed=-1", f"seed: {WHOLE}, got -1"),
        ("optimizer.lr=-1", f"optimizer.lr: {WHOLE}, got -1"),
        ("optimizer.betas=0.9,0.99", "optimizer.betas: input should be a valid array"),
        (
            "optimizer.betas=[0.9,1]",
            "optimizer.betas: [1]: input should be less than 1",
        ),
        (
            "optimizer.betas=[0.9]",
            "optimizer.betas: list should have at least 2 items",
        ),
        ("model=null", "model must be the dotted path of a component, model=PATH"),
        ("dataset=[a,b]", "dataset[0] must be the dotted path of a component"),
        ("dataset=[]", "dataset must be the dotted path of a component"),
        (
            "dataset=[{_component_: erjepa.datasets.synthetic_nl_rx_dataset, sise: 1}]",
            "unknown config key dataset[0].sise. Did you mean dataset[0].size?",
        ),
        (
            "eval_dataset=[{_component_: erjepa.datasets.paired_dataset}]",
            "needs eval_dataset[0].source, which has no default",
        ),
        ("dataset=erjepa.datasets.paired", "dataset=erjepa.datasets.paired is not "),
        (
            "dataset=erjepa.datasets.pared_dataset",
            "Did you mean erjepa.datasets.paired_dataset?",
        ),
        ("dataset=absent.x", "dataset=absent.x is not a component: No module named"),
        (
            "dataset=erjepa.datasets.paired_dataset",
            "dataset=erjepa.datasets.paired_dataset needs dataset.source, which has no",
        ),
        *(
            (
                f"dataset=erjepa.datasets.paired_dataset dataset.sorce=a.jsonl{source}",
                "unknown config key dataset.sorce. Did you mean dataset.source?",
            )
            for source in ("", " dataset.source=null")
        ),
        (
            "dataset=torchtune.datasets.alpaca_dataset ~dataset.size",
            "dataset=torchtune.datasets.alpaca_dataset gives no pairs of source and",
        ),
        (
            "lr_scheduler=torch.optim.lr_scheduler.ConstantLR",
            "has no parameter num_training_steps, which the recipe sets",
        ),
        ("validation.size=-1", f"validation.size: {COUNT} or greater than 0, got -1"),
        ("validation.size=False", f"validation.size: {INTEGER} or a valid number, got"),
        ("validation.size=1.5", f"validation.size: {INTEGER} or less than 1, got 1.5"),
        ("validation.size=-0.5", f"validation.size: {INTEGER} or greater than 0, got"),
        (
            "train_on_turns=first",
            "train_on_turns: input should be 'last' or 'all', got",
        ),
        (
            "train_end_of_turn=some",
            "train_end_of_turn: input should be 'all', 'new', 'replay' or 'none', got",
        ),
        (
            "replay.share=0.3 replay.selection=uniform train_end_of_turn=new",
            "train_end_of_turn=new treats replayed",
        ),
        ("ema_decay=0", f"ema_decay: {POSITIVE}, got 0"),
        ("ema_decay=1", "ema_decay: input should be less than 1, got 1"),
        ("validation.seed=-1", f"validation.seed: {WHOLE}, got -1"),
        ("validation.seed=null", f"validation.seed: {INTEGER}, got null"),
        ("validation.generate=-1", f"validation.generate: {WHOLE}, got -1"),
        ("validation.generate=null", f"validation.generate: {INTEGER}, got"),
        (
            "validation.size=9 validation.generate=10",
            "validation.generate=10 is more than validation.size=9",
        ),
        ("validation.generate=3", "validation.generate=3 needs pairs to validate on"),
        (
            "validation.size=9 eval_every_n_steps=0",
            f"eval_every_n_steps: {COUNT}, got 0",
        ),
        ("eval_every_n_steps=5", "eval_every_n_steps=5 needs pairs to validate on"),
        (
            "keep_best=True",
            "keep_best=True needs pairs to validate on; set validation.",
        ),
        (
            "stop.patience=2",
            "stop.patience=2 needs pairs to validate on; set validation.",
        ),
        ("validation.size=9 stop.patience=0", f"stop.patience: {COUNT}, got 0"),
        ("eval_split=dev", "eval_split: input should be 'test' or 'validation', got"),
        ("eval_split=validation", "eval_split=validation needs pairs to validate on"),
        (
            "resume_from_checkpoint=x",
            "resume_from_checkpoint: input should be a valid boolean or 'auto', got",
        ),
        ("keep_best=maybe", 'keep_best: input should be a valid boolean, got "maybe"'),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_values(overrides, message):
    overrides = [overrides] if ": " in overrides else overrides.split()
    said = refusal(*overrides)
    assert message in said and "\n" not in said


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("batchsize", "batch_size"),
        ("learning_rate", "optimizer.lr"),
        ("optimizer.learning_rate", "optimizer.lr"),
        ("capacity", "replay.capacity"),
        ("steps", "stop.steps"),
        ("replay.budgit", "replay.budget"),
        ("replay.beta", "replay.weight"),
        ("stop.step", "stop.steps"),
        ("model.lora_rnak", "model.lora_rank"),
        ("dataset.sise", "dataset.size"),
        ("profiler.enabeld", "profiler.enabled"),
        ("report_to", "metric_logger"),
        ("bf16", "dtype"),
        ("model_name_or_path", "checkpointer.checkpoint_dir"),
    ],
)
def test_unknown_keys(key, meant):
    assert refusal(f"{key}=1") == f"unknown config key {key}. Did you mean {meant}?"


def test_an_unknown_key_is_not_its_own_hint():
    """Where a component does not have the parameter that a synonym stands for."""
    said = r"unknown config key optimizer\.lr\. Known keys: "
    with pytest.raises(ValueError, match=said):
        tiny("optimizer=builtins.complex", "optimizer.lr=1")


def test_a_key_like_no_other_has_no_hint():
    shows = "`erjepa configs show NAME` shows every key."
    assert refusal("deepspeed=x") == f"unknown config key deepspeed. {shows}"
    assert "stop.hours. Known keys: flops, tokens, steps" in refusal("stop.hours=3")


@pytest.mark.parametrize("name", ["tickets.csv", "./tickets", "owner/tickets"])
def test_a_file_is_no_component(name, tmp_path):
    advice = (
        f"dataset={name} is not a component; to read a file or a dataset of the hub, set "
        f"dataset=erjepa.datasets.paired_dataset dataset.source={name}"
    )
    assert refusal(f"dataset={name}") == advice
    own = tmp_path / "own.yaml"
    own.write_text(f"defaults: tiny_synth\ndataset: {name}\n")
    assert refusal(name=str(own)) == advice


@pytest.mark.parametrize("key", ["dataset", "eval_dataset"])
def test_a_component_that_reads_no_source(key):
    assert refusal(f"{key}.source=own.jsonl", name="tiny_continual") == (
        f"{key}=erjepa.datasets.synthetic_nl_rx_dataset takes no source; to read a file or "
        f"a dataset of the hub, set {key}=erjepa.datasets.paired_dataset "
        f"{key}.source=own.jsonl"
    )


def test_a_source_without_a_component():
    said = refusal("eval_dataset.source=test.csv", name="smollm2_135m_continual")
    assert said == (
        "eval_dataset.source=test.csv needs eval_dataset, the component that reads it; to read "
        "a file or a dataset of the hub, set eval_dataset=erjepa.datasets.paired_dataset "
        "eval_dataset.source=test.csv"
    )


def test_eval_dataset_may_take_the_columns_of_dataset():
    names = {"input": "a", "output": "b"}
    given = ["dataset.column_map={input: a, output: b}"]
    given += [
        "eval_dataset=erjepa.datasets.paired_dataset",
        "eval_dataset.source=b.csv",
    ]
    given += ["eval_dataset.column_map=${dataset.column_map}"]
    cfg = load("smollm2_135m_continual", given)
    assert cfg.eval_dataset.get("column_map") == names


def test_what_the_recipe_gives_is_no_key():
    with pytest.raises(ValueError, match="unknown config key dataset.tokenizer"):
        tiny("dataset.tokenizer=x")


def test_right_values():
    cfg = tiny(
        *(
            "epochs=6.0",
            "replay.capacity=1e4",
            "max_steps_per_epoch=2",
            "stop.flops=1e9",
        ),
        *("validation.size=9", "validation.generate=9", "keep_best=True"),
        *(
            "checkpoint_dir=[a,b]",
            "checkpoint_at_flops=[1,2.5e9]",
            "clip_grad_norm=null",
        ),
    )
    assert (cfg.epochs, cfg.replay.capacity) == (6, 10_000)
    assert type(cfg.epochs) is type(cfg.replay.capacity) is int
    assert cfg.stop.flops == 1e9 and cfg.checkpoint_dir == ["a", "b"]


def test_what_a_config_lacks_has_its_default():
    whole = merged("tiny_synth")
    default = {
        field.name: field.default
        for field in fields(Config)
        if field.name in KEYS and field.default is not MISSING
    }
    cfg = read({key: whole[key] for key in whole if key not in default})
    assert {key: getattr(cfg, key) for key in default} == default
    assert cfg.stop == Stop(None, None, None, None)
    assert cfg.validation == Validation(size=None, seed=0, generate=0)
    assert cfg.replay.weight == 0 and cfg.replay.capacity == 10_000
    assert cfg.as_dict().keys() == {*KEYS}
    assert read(cfg.as_written()) == read(cfg.as_dict()) == cfg


@pytest.mark.parametrize("section", ["stop", "validation", "replay", "profiler"])
def test_a_section_that_is_null_has_its_defaults(section):
    assert tiny(f"{section}=null") == tiny(f"~{section}")


@pytest.mark.parametrize("size", ["0", "0.0", "null"])
def test_no_pair_is_held_out(size):
    assert tiny(f"validation.size={size}").validation.size is None


def test_a_profiler_needs_no_component():
    cfg = read({**merged("tiny_synth"), "profiler": {"enabled": False}})
    assert cfg.profiler.path == "torchtune.training.setup_torch_profiler"


def test_a_config_is_frozen():
    with pytest.raises(FrozenInstanceError):
        tiny().epochs = 3


def test_components_are_made_of_their_arguments():
    counted = Component("collections.Counter", {"a": 1})
    assert counted.build(b=2) == {"a": 1, "b": 2}
    assert counted.with_arguments(a=3).build("bb", a=4) == {"a": 4, "b": 2}
    listed = Component("builtins.dict", {"a": [1]})
    listed.build()["a"].append(2)
    assert listed.arguments == {"a": [1]}, "it keeps its own"


def test_synonyms_are_no_keys_and_mean_one():
    sections = {"replay": ReplaySettings, "stop": Stop, "validation": Validation}
    for meant in SYNONYMS.values():
        section, _, key = meant.partition(".")
        assert section in KEYS
        if section in sections:
            assert key in inspect.signature(sections[section]).parameters
        elif key:
            assert key in merged("tiny_synth")[section]
    assert not SYNONYMS.keys() & {*KEYS}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ([], ("first", "first")),
        (["init_from=first"], ("first", "first")),
        (["replay.weight=0"], ("first", None)),
        (["~replay"], ("first", None)),
    ],
)
def test_continue_from_is_two_keys(overrides, expected):
    cfg = tiny("continue_from=first", *overrides)
    assert (cfg.init_from, cfg.replay.init_from) == expected
    assert read(cfg.as_written()) == cfg


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "init_from=b",
            "continue_from=a sets init_from, but init_from=b; set one of the two$",
        ),
        (
            "replay.init_from=b",
            r"replay.init_from=b; set one of the two, or both: replay.init_from=\[a,b\]",
        ),
        ("replay.init_from=[b,c]", r"or both: replay.init_from=\[a,b,c\]$"),
        ("replay.selection=current_batch", "current_batch never replays"),
    ],
)
def test_continue_from_what_cannot_be(override, message):
    with pytest.raises(ValueError, match=message):
        tiny("continue_from=a", override)


def test_continue_from_several_runs():
    said = refusal("continue_from=[a,b]")
    assert said.startswith("continue_from=[a,b] must be one run")
    assert said.endswith("also set replay.init_from=[a,b]")
    assert tiny("continue_from=a", "replay.init_from=[a,b]").init_from == "a"
