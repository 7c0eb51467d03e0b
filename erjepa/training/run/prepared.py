"""What a run makes before it loads weights."""

from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torchtune.modules.transforms import Transform

from erjepa.checkpoints.pair_texts import PairTexts
from erjepa.configs import Config
from erjepa.datasets import (
    PairedDataset,
    Split,
    build_dataset,
    hold_out,
    predictor_token_ids,
)
from erjepa.objective import JEPALoss, PackedDecoder
from erjepa.packing import Attention, PairCollator, Views, layout_of
from erjepa.replay import ReplaySettings
from erjepa.training.model.build import build_model
from erjepa.training.model.trainable import TrainableWeights


class PairCollators(NamedTuple):
    new: PairCollator
    replay: PairCollator


class PreparedRun:
    """The tokenizer, pairs, loss and empty model of a run, each made when it is first read.

    The model and the loss need no files of the base model, so a run can be described without.

    Args:
        cfg: config with a seed, from ``require_files`` if the pairs are read.
        device: device of the run, which need not exist.
        attention: of packed rows, see :func:`~erjepa.training.model.build.attention_for`.
    """

    def __init__(
        self, cfg: Config, device: torch.device, attention: Attention = "dense"
    ) -> None:
        self.cfg = cfg
        self.device = device
        self._attention = attention

    @cached_property
    def loss_fn(self) -> JEPALoss:
        return self.cfg.loss.build()

    @cached_property
    def tokenizer(self) -> Transform:
        return self.cfg.tokenizer.build()

    @cached_property
    def texts(self) -> PairTexts:
        return PairTexts(self.tokenizer)

    @cached_property
    def dataset(self) -> PairedDataset:
        return build_dataset(self.cfg.dataset, self.tokenizer)

    @cached_property
    def split(self) -> Split | None:
        """The pairs to train on and those to validate on; ``None``: all are trained on.

        Of the whole dataset: which pairs fit depends on the views, hence on the method.

        Raises:
            ValueError: if no pair is left to train on.
        """
        size, seed = self.cfg.validation.size, self.cfg.validation.seed
        return None if size is None else hold_out(self.dataset.pairs, size, seed)

    @cached_property
    def views(self) -> Views:
        """The layout of new pairs, ``none`` if nothing reads their embeddings."""
        replay = self.cfg.replay
        is_read = self.loss_fn.reads_embeddings or (
            replay.weight and (replay.score == "jepa" or replay.needs_addresses)
        )
        return self.cfg.views if is_read else "none"

    @property
    def slot_settings(self) -> ReplaySettings:
        """``replay`` of a run that replays; without addresses if no embeddings are computed."""
        settings = self.cfg.replay
        return replace(settings, address="none") if self.views == "none" else settings

    @property
    def num_predictor_tokens(self) -> int:
        """k; 0 if the layout has no predictor tokens."""
        has_predictor = self.views in ("shared", "standalone")
        return self.cfg.num_predictor_tokens if has_predictor else 0

    @cached_property
    def _built(self) -> tuple[PackedDecoder, TrainableWeights]:
        k = self.num_predictor_tokens
        return build_model(self.cfg, self.device, k, self._attention)

    @property
    def model(self) -> PackedDecoder:
        """The model on the meta device; its trainable weights require gradients."""
        return self._built[0]

    @property
    def trainable(self) -> TrainableWeights:
        return self._built[1]

    @cached_property
    def collators(self) -> PairCollators:
        cfg, tokenizer, vocab_size = self.cfg, self.tokenizer, self.model.vocab_size
        keeps_views = cfg.replay.score == "jepa" or (
            self.loss_fn.reads_embeddings and cfg.replay.views
        )
        predictor_ids = predictor_token_ids(
            tokenizer, self.num_predictor_tokens, vocab_size, cfg.predictor_tokens
        )

        def collator(views: Views, path: str) -> PairCollator:
            return PairCollator(
                **(layout_of(cfg) | {"views": views}),
                seed=cfg.drawn_seed,
                predictor_ids=predictor_ids,
                pad_id=tokenizer.pad_id,
                row_length=cfg.row_length,
                train_on_input=cfg.train_on_input,
                train_on_turns=cfg.train_on_turns,
                attention=self.model.attention,
                train_end_of_turn=cfg.train_end_of_turn in ("all", path),
            )

        replayed: Views = self.views if keeps_views else "none"
        return PairCollators(collator(self.views, "new"), collator(replayed, "replay"))
