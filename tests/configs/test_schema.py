"""A value that makes no sense is one line: the key, the value, what is allowed."""

import inspect

import pytest
from omegaconf import OmegaConf

from erjepa.configs import complete, load
from erjepa.configs.schema import SYNONYMS, Run, Stop, Validation
from erjepa.replay import ReplaySettings


def tiny(*overrides):
    return complete(load("tiny_synth", overrides))


COUNT = "a whole number of at least 1"
WHOLE = "a whole number of at least 0"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("batch_size=many", f"batch_size must be {COUNT}, got 'many'"),
        ("batch_size=0", f"batch_size must be {COUNT}, got 0"),
        ("batch_size=True", f"batch_size must be {COUNT}, got True"),
        ("batch_size=null", f"batch_size must be {COUNT}, got null"),
        ("epochs=1.5", f"epochs must be {COUNT}, got 1.5"),
        ("epochs=.inf", f"epochs must be {COUNT}, got inf"),
        ("log_every_n_steps=0", f"log_every_n_steps must be {COUNT}, got 0"),
        ("num_predictor_tokens=-1", f"num_predictor_tokens must be {WHOLE}, got -1"),
        ("num_workers=-1", "num_workers must be a whole number of at least 0, got -1"),
        ("stop.steps=-3", f"stop.steps must be {COUNT} or null, got -3"),
        (
            "stop.flops=nan",
            "stop.flops must be a finite number above 0 or null, got 'nan'",
        ),
        (
            "stop.flops=.nan",
            "stop.flops must be a finite number above 0 or null, got nan",
        ),
        (
            "stop.flops=.inf",
            "stop.flops must be a finite number above 0 or null, got inf",
        ),
        ("stop=3", "stop has keys of its own, stop.KEY=VALUE, got 3"),
        (
            "clip_grad_norm=-1",
            "clip_grad_norm must be a finite number above 0 or null, got -1",
        ),
        (
            "clip_grad_norm=0",
            "clip_grad_norm must be a finite number above 0 or null, got 0",
        ),
        ("dtype=fp16", "dtype must be one of bf16, fp32, got 'fp16'"),
        ("trainable_dtype=bf16", "trainable_dtype=bf16: what is trained is held in"),
        ("shuffle=1", "shuffle must be True or False, got 1"),
        ("device=3", "device must be text or null, got 3"),
        ("output_dir=a: b", "output_dir must be text, got {'a': 'b'}"),
        ("output_dir=${absent}", "Interpolation key 'absent' not found"),
        ("predictor_tokens=[a,1]", "predictor_tokens must be a list of texts or null"),
        ("checkpoint_dir=3", "checkpoint_dir must be text or a list of texts or null"),
        ("checkpoint_at_flops=[many]", "checkpoint_at_flops must be a list of numbers"),
        ("checkpoint_at_flops=[2,1]", "checkpoint_at_flops must be an ascending list"),
        ("checkpoint_at_flops=[0,1]", "checkpoint_at_flops must be an ascending list"),
        ("row_length=64", "row_length=64 is shorter than max_seq_len=256"),
        ("~batch_size", "the config has no batch_size, which has no default"),
        ("loss.distance=dot", "loss.distance must be one of cosine, l2, mse, infonce"),
        ("loss.temperature=0", "loss.temperature must be a finite number above 0"),
        ("loss.jepa_every=0", f"loss.jepa_every must be {COUNT}, got 0"),
        (
            "loss.direction=back",
            "loss.direction must be one of source_to_target, target",
        ),
        (
            "loss.sigreg_weight=-1",
            "loss.sigreg_weight must be a finite number of at le",
        ),
        (
            "loss.sigreg_slices=0",
            f"loss.sigreg_slices must be {COUNT} and below 100000, got 0",
        ),
        ("loss.sigreg_slices=1000000000", "and below 100000, got 1000000000"),
        ("predictor_position=end", "predictor_position must be one of behind, front"),
        ("views=words", "views must be one of shared, standalone, spans, patches, got"),
        (
            "views=spans loss.direction=both",
            "loss.direction=both: views=spans compares parts of one path",
        ),
        ("replay.capacity=0", "replay.capacity must be at least 1, got 0"),
        ("replay.capacity=x", "replay.capacity must be a whole number, got 'x'"),
        ("replay.weight=-1", "replay.weight must be a finite number of at least 0"),
        ("model.lora_rank=0", f"model.lora_rank must be {COUNT}, got 0"),
        ("model.lora_dropout=1", "of at least 0 and below 1, got 1"),
        ("model.num_layers=x", "model.num_layers must be a whole number, got 'x'"),
        ("dataset.size=x", "dataset.size must be a whole number, got 'x'"),
        ("dataset.split=dev", "dataset.split must be one of train, test, got 'dev'"),
        ("tokenizer.path=3", "tokenizer.path must be text, got 3"),
        ("seed=-1", "seed must be a whole number of at least 0 and below 4294967296"),
        (
            "optimizer.lr=-1",
            "optimizer.lr must be a finite number of at least 0, got -1",
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
        ("dataset=erjepa.datasets.paired", "dataset=erjepa.datasets.paired is no "),
        ("dataset=absent.x", "dataset=absent.x is no component: No module named"),
        (
            "dataset=erjepa.datasets.paired_dataset",
            "dataset=erjepa.datasets.paired_dataset needs dataset.source, which has no",
        ),
        (
            "dataset=torchtune.datasets.alpaca_dataset ~dataset.size",
            "dataset=torchtune.datasets.alpaca_dataset gives no pairs of source and",
        ),
        (
            "lr_scheduler=torch.optim.lr_scheduler.ConstantLR",
            "takes no num_training_steps, which the recipe gives it",
        ),
        ("validation.size=0", f"validation.size must be {COUNT} or null, got 0"),
        ("validation.size=0.1", f"validation.size must be {COUNT} or null, got 0.1"),
        ("validation.size=True", f"validation.size must be {COUNT} or null, got True"),
        ("validation.seed=-1", "validation.seed must be a whole number of at least 0"),
        ("validation.seed=null", "at least 0, got null"),
        ("validation.generate=-1", "validation.generate must be a whole number"),
        ("validation.generate=null", "at least 0, got null"),
        (
            "validation.size=9 validation.generate=10",
            "validation.generate=10 is more than validation.size=9",
        ),
        ("validation.generate=3", "validation.generate=3 needs pairs to validate on"),
        (
            "validation.size=9 eval_every_n_steps=0",
            f"eval_every_n_steps must be {COUNT}",
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
        ("validation.size=9 stop.patience=0", f"stop.patience must be {COUNT} or null"),
        ("keep_best=maybe", "keep_best must be True or False, got 'maybe'"),
    ],
    ids=lambda text: text.partition(" ")[0],
)
def test_values(overrides, message):
    overrides = [overrides] if ": " in overrides else overrides.split()
    with pytest.raises(ValueError) as error:
        tiny(*overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


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
    ],
)
def test_unknown_keys(key, meant):
    with pytest.raises(ValueError) as error:
        tiny(f"{key}=1")
    assert str(error.value) == f"unknown config key {key}. Did you mean {meant}?"


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
    whole = load("tiny_synth")
    optional = {
        name: parameter.default
        for name, parameter in inspect.signature(Run).parameters.items()
        if parameter.default is not parameter.empty
    }
    short = OmegaConf.masked_copy(whole, [key for key in whole if key not in optional])
    cfg = complete(short)
    assert cfg.keys() == inspect.signature(Run).parameters.keys()
    assert cfg.stop == dict.fromkeys(("flops", "tokens", "steps", "patience"))
    assert cfg.validation == {"size": None, "seed": 0, "generate": 0}
    assert cfg.replay.weight == 0 and cfg.replay.capacity == 10_000
    sections = {"stop", "validation", "replay"}
    assert all(cfg[key] == optional[key] for key in optional.keys() - sections)
    assert complete(cfg) == cfg


def test_a_profiler_needs_no_component():
    whole = load("tiny_synth", ["~profiler"])
    whole.profiler = {"enabled": False}
    component = complete(whole).profiler._component_
    assert component == "torchtune.training.setup_torch_profiler"


def test_synonyms_are_no_keys_and_mean_one():
    sections = {"replay": ReplaySettings, "stop": Stop, "validation": Validation}
    for meant in SYNONYMS.values():
        section, _, key = meant.partition(".")
        assert section in inspect.signature(Run).parameters
        if section in sections:
            assert key in inspect.signature(sections[section]).parameters
        elif key:
            assert key in load("tiny_synth")[section]
    assert not SYNONYMS.keys() & inspect.signature(Run).parameters.keys()


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
    assert complete(cfg) == cfg


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("init_from=b", "continue_from=a sets init_from, which is b; leave one"),
        ("replay.init_from=b", "continue_from=a sets replay.init_from, which is b"),
        ("replay.selection=current_batch", "current_batch never replays"),
    ],
)
def test_continue_from_what_cannot_be(override, message):
    with pytest.raises(ValueError, match=message):
        tiny("continue_from=a", override)
