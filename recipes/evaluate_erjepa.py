import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchtune import utils
from torchtune.modules.peft import get_adapter_params
from tqdm import tqdm

import erjepa.configs
from erjepa.checkpoints import checkpoint
from erjepa.checkpoints.model_card import write_model_card
from erjepa.configs import Config
from erjepa.evaluation.alignment import PairReader
from erjepa.evaluation.answers import batches_of_examples, generate_answers
from erjepa.evaluation.examples import SCORED, Examples, calls
from erjepa.evaluation.fitting import require_fit
from erjepa.evaluation.jobs import Job, JobFinder, weights_to_score
from erjepa.evaluation.model import empty_model, load_weights
from erjepa.evaluation.predictions import PredictionStore, folder_of
from erjepa.tasks.score import score_predictions
from erjepa.tasks.summary import Seen, mean_target_loss, reading_without
from erjepa.training.model.device import attention_of, device_of, run_device
from erjepa.training.model.distributed import gather_objects, on_rank_zero
from erjepa.training.run.process_group import process_group
from erjepa.training.run.signals import end_with_launcher
from erjepa.utils.command_line import leave
from erjepa.utils.escape import one_line
from erjepa.utils.summary import Summary

log = utils.get_logger("INFO")

EXIT_FORGOTTEN = 3  # exit code: accuracy fell by more than max_forgetting


class EvaluationRecipeERJEPA:
    """
    Answer every pair of ``eval_dataset`` with greedy decoding and score the answers with ``task``.
    ``eval_split=validation`` scores the training pairs that ``validation`` holds out instead.

    Reads the config of the training run, and scores one or more of:

    - the newest checkpoint of ``output_dir``, or those in ``checkpoint_dir``: the adapter, or all
      weights of a ``model`` without adapters;
    - with ``merged=True``, the merged weights, which are rounded to the base's precision;
    - with ``checkpoint=ema``, the averaged weights; with ``both``, the last and the averaged ones;
    - with ``base_only=True``, the base model.

    A continued run is also scored on the datasets of earlier runs and compared with their answers,
    unless ``eval_earlier=False``. With ``alignment=True``, predictions include the cosines of
    their pair's embeddings; with ``target_loss=True``, the loss of their target.

    Writes ``predictions.jsonl`` and ``summary.json`` to ``output_dir/evaluation/NAME``; further
    datasets have folders next to it. An interrupted evaluation resumes when it is started again.
    Examples are divided among the ranks; each rank holds the whole model.

    Raises:
        FileNotFoundError: if there is no checkpoint to score.
        ValueError: with ``max_forgetting``, if an earlier dataset cannot be compared.
    """

    def __init__(self, cfg: Config) -> None:
        self._cfg = cfg
        self._world_size, self._rank = utils.get_world_size_and_rank()

    def setup(self) -> None:
        """Load the tokenizer and the examples, and build the model without its weights."""
        cfg, device = self._cfg, device_of(self._cfg)
        reads_targets = cfg.alignment or cfg.target_loss
        attention = attention_of(cfg, device) if reads_targets else None
        cfg = self._cfg = erjepa.configs.require_files(cfg)
        self._tokenizer = tokenizer = cfg.tokenizer.build()
        # A run may be adding checkpoints.
        weights = on_rank_zero(lambda: weights_to_score(cfg))
        self._jobs = JobFinder(cfg, tokenizer).find(weights)
        self._model = empty_model(cfg, device)
        self._loaded: tuple[Path | None] | None = None  # path of the loaded weights
        self._reader = collator = None
        if attention is not None:
            self._reader = PairReader(cfg, self._model, tokenizer, attention)
            collator = self._reader.collator
        for job in self._jobs:
            require_fit(job.examples, self._model.max_seq_len, collator)

    def evaluate(self) -> list[Summary]:
        """Score every checkpoint. Rank 0 writes the results and returns them."""
        summaries = [self._evaluate(job) for job in self._jobs]
        return [summary for summary in summaries if summary is not None]

    def forgotten(self, summaries: Sequence[Summary]) -> str:
        """Return a text, the same on every rank, that names the earlier datasets on which accuracy
        fell by more than ``max_forgetting``; empty if there are none.
        """
        limit, lines = self._cfg.max_forgetting, []
        for summary in summaries:
            before = summary.before
            if limit is not None and before and -before.difference > limit:
                lines.append(
                    f"max_forgetting={limit}: on {summary.pairs}, {before.lost} of "
                    f"{before.examples} answers were lost and {before.gained} gained."
                )
        return on_rank_zero(lambda: "\n".join(lines))

    def _evaluate(self, job: Job) -> Summary | None:
        """Generate the missing answers and score all of them. Return the summary on rank 0."""
        cfg = self._cfg
        name = checkpoint.name_of_scores(job.path, cfg.eval_split, merged=cfg.merged)
        of_weights = Path(cfg.output_dir) / "evaluation" / name
        section, key = job.examples.section, SCORED[cfg.eval_split]
        folder = on_rank_zero(lambda: folder_of(of_weights, section, key))
        store = PredictionStore(folder, on_rank_zero(job.settings), rank=self._rank)
        done = on_rank_zero(store.open)
        new, seconds = self._answer(job, store, done)
        if self._rank != 0:
            return None
        known = {**done, **new}
        predictions = [known[i] for i in job.examples.ids]
        scored, summary = self._score(job, predictions)
        rate = len(new) / seconds if new else None
        summary = summary.model_copy(update={"examples_per_second": rate})
        store.finish(scored, summary)
        write_model_card(Path(cfg.output_dir))
        log.info(f"{_log_line(summary)}; see {folder}.")
        return summary

    def _answer(
        self, job: Job, store: PredictionStore, done: Mapping[int, Any]
    ) -> tuple[dict[int, dict[str, Any]], float]:
        """Generate the missing answers. Return those of all ranks by example id, and the seconds of
        the slowest rank.

        Batches do not depend on ranks or interruptions, and a batch that lacks an answer is
        generated again as a whole, so the answers do not depend on them either.
        """
        examples = job.examples
        batches = batches_of_examples(
            examples.dataset, examples.ids, self._cfg.eval_batch_size
        )
        own = batches[self._rank :: self._world_size]
        missing = [ids for ids in own if not all(i in done for i in ids)]
        if missing:
            self._load(job.weights and job.weights.folder)
        start, new = time.perf_counter(), list[dict[str, Any]]()
        is_hidden = self._rank != 0 or not missing
        with tqdm(total=sum(map(len, missing)), disable=is_hidden) as progress:
            for ids in missing:
                predictions = self._generate(examples, ids)
                store.append(predictions)
                new += predictions
                progress.update(len(ids))
        seconds = time.perf_counter() - start
        found, times = zip(*gather_objects((new, seconds)), strict=True)
        return {p["id"]: p for part in found for p in part}, max(times)

    def _load(self, path: Path | None) -> None:
        """Load the weights in ``path``, or the base model for ``None``, unless loaded already."""
        if self._loaded == (path,):
            return
        load_weights(self._model, self._cfg, path)
        if self._cfg.alignment and self._reader and path is not None:
            self._reader.set_predictor(checkpoint.load_predictor(path))
        self._loaded = (path,)

    def _generate(self, examples: Examples, ids: list[int]) -> list[dict[str, Any]]:
        predictions = generate_answers(
            self._model,
            self._tokenizer,
            examples.dataset,
            ids,
            max_new_tokens=examples.cfg.max_new_tokens,
        )
        if self._reader is None:
            return predictions
        read = self._reader([examples.dataset[i] for i in ids])
        return [one | more for one, more in zip(predictions, read, strict=True)]

    def _score(
        self, job: Job, predictions: Sequence[dict[str, Any]]
    ) -> tuple[list[dict[str, Any]], Summary]:
        """Return the scored predictions and their summary."""
        path, examples, before = job.path, job.examples, job.before
        scored, summary = score_predictions(examples.task, predictions)
        trained = "adapter" if get_adapter_params(self._model) else "full"
        weights = "base" if path is None else "merged" if self._cfg.merged else trained
        if path is not None and path.name == checkpoint.EMA:
            weights = f"averaged {weights}"
        fields = {
            "checkpoint": str(path or "base"),
            "weights": weights,
            "split": self._cfg.eval_split,
            "pairs": calls(examples.section),
            "cut": sum(not p["finished"] for p in predictions),
            "target_loss": mean_target_loss(predictions),
            **_unseen(job.seen, scored, summary.primary),
            "before": before and before.compare(examples.task, scored),
        }
        return scored, summary.model_copy(update=fields)


def _unseen(
    seen: Seen | None, scored: Sequence[Mapping[str, Any]], primary: str
) -> dict[str, Any]:
    """Return metrics on the examples whose pair or target does not occur in the training data."""
    if seen is None:
        return {}
    return {
        "targets_in_train": len(seen.targets),
        "unseen_pairs": reading_without(scored, seen.pairs, primary),
        "unseen_targets": reading_without(scored, seen.targets, primary),
    }


def _log_line(summary: Summary) -> str:
    """Format a summary as one line for the log."""
    share = f"{summary.primary} {summary.accuracy:.1%}"
    examples = summary.readings[summary.primary].examples
    parts = "".join(
        f", {part.share:.1%} of the {part.examples} of {one_line(part.origin)}"
        for part in summary.by_origin or []
    )
    line = (
        f"{share} of {examples} for {summary.checkpoint} on "
        f"{one_line(summary.pairs or '')}{parts}"
    )
    if (before := summary.before) is None:
        return line
    low, high = before.interval
    return (
        f"{line}; {before.checkpoint} had {before.accuracy:.1%} of {before.examples}: "
        f"{before.kept} kept, {before.gained} gained, {before.lost} lost, "
        f"{100 * before.difference:+.1f} points (95% interval {100 * low:+.1f} to "
        f"{100 * high:+.1f})"
    )


@erjepa.configs.parse
def recipe_main(cfg: Config) -> None:
    """Entry point for the recipe.

    Configurable parameters are read in the following order:
        - Parameters specified in config (a path, or a name such as ``llama3_2_1b_synth``)
        - Overwritten by arguments from the command-line
    """
    end_with_launcher()
    with process_group(run_device(cfg), cfg.step_timeout):
        recipe = EvaluationRecipeERJEPA(cfg)
        recipe.setup()
        forgotten = recipe.forgotten(recipe.evaluate())
    if forgotten:
        leave(forgotten, EXIT_FORGOTTEN)


if __name__ == "__main__":
    sys.exit(recipe_main())
