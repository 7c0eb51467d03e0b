"""Which answers of an interrupted or repeated evaluation can be used again."""

import os
from types import SimpleNamespace

import pytest

from erjepa.configs import load
from erjepa.evaluation.jobs import Job, Weights


@pytest.fixture
def settings(tmp_path):
    """Returns the settings of a checkpoint's evaluation with overrides."""
    (tmp_path / "adapter_model.pt").write_bytes(b"weights")

    def settings(*overrides):
        cfg = load("tiny_synth", list(overrides))
        examples = SimpleNamespace(cfg=cfg, digest="0123")
        job = Job(tmp_path, examples, None, None, Weights.at(tmp_path))
        return {**job.settings(), "scoring": None}  # which decides no answers

    return settings


VALIDATION = ("eval_split=validation", "validation.size=5")
ALIGNMENT = ("alignment=True",)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        *(
            ((), key)
            for key in (
                *("model.lora_rank=2", "checkpointer.checkpoint_dir=x", "merged=True"),
                *("tokenizer.path=x", "dtype=bf16", "max_new_tokens=3"),
                *("eval_dataset.size=3", "eval_batch_size=3", "target_loss=True"),
                *("base_adapters=[x]", "alignment=True"),
            )
        ),
        *((VALIDATION, f"{key}=3") for key in ("validation.size", "validation.seed")),
        (VALIDATION, "dataset.size=30"),
        *(
            (ALIGNMENT, key)
            for key in (
                *("views=standalone", "num_predictor_tokens=3"),
                *("loss.direction=both", "predictor_tokens=[<a>]"),
            )
        ),
    ],
)
def test_answers_with_other_settings_are_not_used(settings, given, changed):
    assert settings(*given, changed) != settings(*given)


def test_answers_of_other_weights_are_not_used(settings, tmp_path):
    before = settings()
    (tmp_path / "adapter_model.pt").write_bytes(b"other weights")
    assert settings() != before


def test_answers_of_a_copy_are_used(settings, tmp_path):
    """As after ``cp -r`` of a run, or on another node."""
    before = settings()
    os.utime(tmp_path / "adapter_model.pt", (1, 1))
    assert settings() == before


def test_a_large_file_that_changed_is_noticed(settings, tmp_path):
    weights = bytearray(3 << 20)
    (tmp_path / "adapter_model.pt").write_bytes(weights)
    before = settings()
    weights[1 << 20 : 2 << 20] = b"x" * (1 << 20)
    (tmp_path / "adapter_model.pt").write_bytes(weights)
    assert settings() != before


def test_answers_over_another_base_are_not_used(settings, tmp_path):
    base = tmp_path / "base"
    base.mkdir()
    (base / "model.safetensors").write_bytes(b"weights")
    key = f"checkpointer.checkpoint_dir={base}"
    before = settings(key)
    (base / "model.safetensors").write_bytes(b"other weights")
    assert settings(key) != before


def test_what_has_no_effect_on_answers(settings):
    for key in (
        "output_dir=copy",
        "views=standalone",
        "epochs=3",
        "primary=exact_match",
        "dataset.size=3",
    ):
        assert settings(key) == settings()
