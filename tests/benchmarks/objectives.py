"""Compare the step time of every objective with that of SFT, with the tokens that explain it."""

import tempfile
from pathlib import Path

from tests.benchmarks.setting import (
    BATCH_SIZE,
    build_recipe,
    pairs_are,
    shared_model,
    stepper,
    write_pairs,
)
from tests.benchmarks.timing import Row, interleave, ratio
from tests.benchmarks.torchtune_sft import MODES, record_slots

NUM_PAIRS = 512
INFONCE = {"loss__distance": "infonce", "loss__jepa_weight": 0.1}
SEVERAL = {"batch_size": BATCH_SIZE // 2, "gradient_accumulation_steps": 2}
# Of new pairs alone; then with as many replayed.
OBJECTIVES = {
    "cosine": {},
    "InfoNCE": INFONCE,
    "InfoNCE, two micro-batches": {**INFONCE, **SEVERAL},
    "cosine, two micro-batches": SEVERAL,
    "both directions": {"loss__direction": "both"},
    "predictor in front": {"predictor_position": "front"},
    "STP spans": {"views": "spans", "loss__jepa_weight": 0.02},
    "SIGReg": {"loss__sigreg_weight": 0.02},
    "VICReg": {"loss__variance_weight": 1.0, "loss__covariance_weight": 0.04},
    "replay by token loss": {
        **{"replay__weight": 1.0, "replay__score": "lm", "loss__jepa_weight": 0},
        "replay__selection": "uniform",
    },
}
LEAN = "STP spans", "replay by token loss"  # to cost what their tokens do


def benchmark(quick: bool) -> list[Row]:
    """Times of a step, over SFT's, and tokens a pair, over SFT's."""
    settings = {"SFT": MODES["SFT"]}
    settings |= {name: {"replay__weight": 0, **o} for name, o in OBJECTIVES.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = shared_model()
        pairs = write_pairs(folder / "pairs.jsonl", NUM_PAIRS)
        recipes = {
            objective: build_recipe(model, pairs, folder / str(i), **overrides)
            for i, (objective, overrides) in enumerate(settings.items())
        }
        slots: dict[str, list[tuple[int, int]]] = {name: [] for name in recipes}
        steps = {objective: stepper(recipe) for objective, recipe in recipes.items()}
        for step in steps.values():
            step()
        for objective, recipe in recipes.items():
            record_slots(recipe, slots[objective])
        times = interleave(steps, repeats=3 if quick else 9, warmup=1)
    tokens = {name: sum(real for real, _ in slots[name]) for name in slots}
    setting = f"{pairs_are()}, {BATCH_SIZE} pairs a step"
    rows = [times["SFT"].row(f"step of SFT, {setting}")]
    for objective in OBJECTIVES:
        share = tokens[objective] / tokens["SFT"]
        row = ratio(
            f"{objective} over SFT",
            times[objective],
            times["SFT"],
            target=f"<= {1.05 * share:.2f}" if objective in LEAN else "",
        )
        rows.append(row._replace(note=f"{share:.2f} times the tokens"))
    return rows
