"""Collation of pairs into the rows of one or more micro-batches.

Rows are prefix trees of several pairs or, for ``causal`` attention, one path each.
"""

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from erjepa.datasets.pairs import Pair
from erjepa.packing.batch import PackedBatch
from erjepa.packing.layout import (
    COMPARISONS,
    Direction,
    Path,
    PredictorPosition,
    Views,
    lay_out,
)
from erjepa.packing.mask import Attention
from erjepa.packing.rows import (
    balanced,
    cheapest,
    fill,
    fullest,
    halved_length,
    round_up,
    share,
)
from erjepa.packing.spans import STEPS
from erjepa.packing.tree import PrefixTree, prefix_tree, tree_size


@dataclass(kw_only=True)
class PairCollator:
    """Packs pairs into rows, each a prefix tree of its pairs' paths.

    Args:
        predictor_ids: the k predictor tokens of shared and standalone views.
        seed: of random spans and patches, which depend on the seed, the step and the example.
        row_length: maximum number of tokens in a row; ``None``: no limit.
        train_on_input: also predict the source, as LLM-JEPA's code does.
        train_on_turns: predict only the last assistant turn, which is the target, or all of them.
        train_end_of_turn: keep end-of-turn tokens among the labels.
        attention: ``flex``: rows have ``row_length`` tokens (halved as often as possible if each
            micro-batch has one row), and their number is one of few, so that compiled attention
            sees few shapes. ``dense``, which takes any shape: rows are trimmed to the fullest one,
            and their number is the cheapest. ``causal``: each path has a row of its own, and rows
            are as long as the longest path of their micro-batch.
    """

    views: Views = "shared"
    direction: Direction = "source_to_target"
    predictor_ids: Sequence[int] = ()
    predictor_position: PredictorPosition = "behind"
    seed: int = 0
    pad_id: int = 0
    row_length: int | None = None
    train_on_input: bool = False
    train_on_turns: Literal["last", "all"] = "last"
    train_end_of_turn: bool = True
    attention: Attention = "flex"

    def without_views(self) -> "PairCollator":
        """Return a copy for steps that train on the next-token loss only."""
        return replace(self, views="none")

    def length(self, pair: Pair) -> int:
        """Return the number of tokens of a row that holds only ``pair``, or its longest path."""
        if self.attention == "causal":
            return self.depth(pair)
        return tree_size([path.tokens for path in self._lay_out(pair)])

    def depth(self, pair: Pair) -> int:
        """Return the length of the longest path of ``pair``: the number of positions it needs."""
        return max(len(path.tokens) for path in self._lay_out(pair))

    def __call__(self, pairs: Sequence[Pair]) -> PackedBatch:
        """Pack ``pairs`` into one micro-batch; its outputs follow their order."""
        return self.split(pairs, 1)[0]

    def split(
        self, pairs: Sequence[Pair], num_batches: int, step: int = 0
    ) -> list[PackedBatch]:
        """Pack ``pairs`` into rows, those that share most tokens together, and distribute the rows
        over micro-batches.

        Without pairs the rows are all padding, so that every rank can run. In each micro-batch
        :attr:`PackedBatch.order` holds the indices of its pairs. Spans and patches are drawn anew
        for each ``step``.

        Raises:
            ValueError: if a pair takes more than ``row_length`` tokens.
        """
        forest = self._grow(pairs, step)
        if self.attention == "causal":
            return self._split_texts(forest, num_batches)
        order = sorted(range(len(pairs)), key=lambda i: forest.nodes[i][0][-1])
        sharing = share([forest.nodes[index] for index in order])
        sizes = sharing.sizes()
        row_length = self.row_length or (sizes[0][-1] if pairs else 1)
        for place, index in enumerate(order):
            self._require_fit(pairs[index], sizes[place][place])
        if self.attention == "dense":
            rows = cheapest(sizes, row_length, at_least=num_batches)
            row_length = fullest(sizes, rows) or 1
        else:
            fewest = len(fill(sizes, row_length))
            rows = balanced(sizes, row_length, max(fewest, num_batches))
            if len(rows) == num_batches:
                row_length = halved_length(fullest(sizes, rows), row_length)
        batches = [rows[i::num_batches] for i in range(num_batches)]
        if self.attention == "flex":
            for batch in batches:
                batch.extend([range(0)] * (round_up(len(batch)) - len(batch)))
        return [
            self._fill(
                forest,
                [_Row(sharing.nodes(r), order[r.start : r.stop]) for r in batch],
                row_length,
            )
            for batch in batches
        ]

    def _split_texts(self, forest: "_Forest", num_batches: int) -> list[PackedBatch]:
        """Give each path a row, and each micro-batch pairs of similar lengths."""
        lengths = [max(map(len, paths)) for paths in forest.nodes]
        for pair, length in zip(forest.pairs, lengths, strict=True):
            self._require_fit(pair, length)
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        cuts = [len(order) * i // num_batches for i in range(num_batches + 1)]
        batches = []
        for start, stop in pairwise(cuts):
            rows = []
            for index in order[start:stop]:
                *paths, last = forest.nodes[index]
                rows += [*(_Row(path, []) for path in paths), _Row(last, [index])]
            longest = max((len(row.nodes) for row in rows), default=1)
            rows = rows or [_Row(np.zeros(0, np.int64), [])]
            batches.append(self._fill(forest, rows, longest))
        return batches

    def _require_fit(self, pair: Pair, size: int) -> None:
        if self.row_length is not None and size > self.row_length:
            raise ValueError(
                f"example {pair.example_id} takes {size} tokens, more than a row of "
                f"{self.row_length}; raise row_length and max_seq_len."
            )

    def _lay_out(self, pair: Pair, step: int = 0) -> list[Path]:
        return lay_out(
            pair,
            self.views,
            len(self.predictor_ids),
            direction=self.direction,
            predictor_position=self.predictor_position,
            seed=f"{self.seed} {step} {pair.example_id}",
        )

    def _grow(self, pairs: Sequence[Pair], step: int) -> "_Forest":
        layouts = [self._lay_out(pair, step) for pair in pairs]
        tree = prefix_tree([path.tokens for layout in layouts for path in layout])
        paths = iter(tree.paths)
        nodes = [[next(paths) for _ in layout] for layout in layouts]
        return _Forest(pairs, tree, layouts, nodes)

    def _fill(
        self, forest: "_Forest", rows: Sequence["_Row"], row_length: int
    ) -> PackedBatch:
        pairs, tree = forest.pairs, forest.tree
        size = len(rows) * row_length
        tokens = np.full(size, self.pad_id, np.int64)
        input_pos = np.zeros(size, np.int64)
        end = np.tile(np.arange(1, row_length + 1, dtype=np.int32), len(rows))
        position = np.zeros(len(tree.tokens), np.int64)  # of each node of a row
        places: dict[int, list[np.ndarray]] = {}  # positions of each pair's paths
        num_tokens = area = 0
        for start, (nodes, complete) in zip(
            range(0, size, row_length), rows, strict=True
        ):
            position[nodes] = positions = np.arange(start, start + len(nodes))
            tokens[positions] = tree.tokens[nodes]
            input_pos[positions] = tree.depth[nodes]
            end[positions] = np.searchsorted(nodes, tree.end[nodes])
            num_tokens += len(nodes)
            area += int(tree.depth[nodes].sum()) + len(nodes)
            for index in complete:
                places[index] = [position[path] for path in forest.nodes[index]]
        predictor_pos = np.flatnonzero(tokens < 0)
        predictor_index = -1 - tokens[predictor_pos]
        tokens[predictor_pos] = np.array(self.predictor_ids, np.int64)[predictor_index]

        order = sorted(places)
        readouts = defaultdict[str, list[int]](list)
        steps: list[np.ndarray] = []
        labels, predicting, num_labels = array("i"), [np.zeros(0, np.int64)], []
        for index in order:
            before = len(labels)
            for path, positions in zip(
                forest.layouts[index], places[index], strict=True
            ):
                for name, at in path.readouts.items():
                    readouts[name].append(positions[at])
                if path.steps:
                    steps.append(positions[np.array(path.steps)])
                predicted = self._predicted(path, pairs[index])
                labels.extend(path.tokens[at] for at in predicted)
                predicting.append(positions[[at - 1 for at in predicted]])
            num_labels.append(len(labels) - before)
        label_pos, label_logit = np.unique(
            np.concatenate(predicting), return_inverse=True
        )
        comparisons = range(len(COMPARISONS[self.direction]))
        return PackedBatch(
            tokens=_int64(tokens).view(-1, row_length),
            input_pos=_int64(input_pos).view(-1, row_length),
            end=torch.from_numpy(end).view(-1, row_length),
            label_pos=_int64(label_pos),
            labels=_int64(labels),
            label_logit=_int64(label_logit),
            label_pair=_int64(np.repeat(np.arange(len(order)), num_labels)),
            source_pos=_int64(readouts["source"]),
            predicted_pos=_int64([readouts[f"predicted_{m}"] for m in comparisons]),
            target_pos=_int64([readouts[f"target_{m}"] for m in comparisons]),
            steps=_int64(steps).view(-1, 2, STEPS, 2),
            predictor_pos=_int64(predictor_pos),
            predictor_index=_int64(predictor_index),
            example_ids=_int64([pairs[index].example_id for index in order]),
            order=_int64(order),
            num_tokens=num_tokens,
            attention_area=area,
        )

    def _predicted(self, path: Path, pair: Pair) -> Sequence[int]:
        """Return the indices of the tokens of ``path`` that are labels."""
        if not path.labels:
            return []
        predicted: Sequence[int] = path.labels
        if self.train_on_input:
            predicted = range(1, len(path.tokens))
        elif self.train_on_turns == "all":
            predicted = [*pair.earlier_turns(), *path.labels]
        if self.train_end_of_turn:
            return predicted
        end_of_turn = path.tokens[path.labels[-1]]
        return [at for at in predicted if path.tokens[at] != end_of_turn]


class _Forest(NamedTuple):
    """All pairs as one tree, before it is cut into rows."""

    pairs: Sequence[Pair]
    tree: PrefixTree
    layouts: list[list[Path]]  # paths of each pair
    nodes: list[list[np.ndarray]]  # nodes of each pair's paths


class _Row(NamedTuple):
    nodes: np.ndarray  # of its tokens, in order
    pairs: Sequence[int]  # indices of the pairs whose last path it has


def _int64(values: Sequence | np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.int64))
