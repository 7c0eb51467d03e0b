"""Pairs into the rows of one or more micro-batches."""

from collections.abc import Sequence

import torch
from torch import Tensor

from erjepa.datasets.pairs import Pair
from erjepa.packing.batch import PADDING, PackedBatch
from erjepa.packing.layout import Segment, Views, attention_area, lay_out
from erjepa.packing.rows import few_sizes, fullest, level, tight


class PairCollator:
    """Packs pairs into rows.

    Args:
        views (Views): layout of a pair.
        predictor_ids (Sequence[int]): ids of the k predictor tokens.
        pad_id (int): id that fills the rows.
        row_length (int | None): most tokens of a row. ``None``: those of the longest pair.
        train_on_input (bool): predict the source too, as LLM-JEPA's code does, not the
            target alone.
        train_end_of_turn (bool): predict the end of turn, which ends a target and, with
            ``train_on_input``, every turn of the source.
        trim (bool): cut the rows of a micro-batch to the fullest one, which wastes least
            where shapes may vary. Else rows have ``row_length``, and their number is one of
            few, so that compiled attention meets few shapes.
    """

    def __init__(
        self,
        *,
        views: Views = "shared",
        predictor_ids: Sequence[int] = (),
        pad_id: int = 0,
        row_length: int | None = None,
        train_on_input: bool = False,
        train_end_of_turn: bool = True,
        trim: bool = False,
    ) -> None:
        self.views = views
        self.predictor_ids = list(predictor_ids) if views != "none" else []
        self._pad_id = pad_id
        self._row_length = row_length
        self._train_on_input = train_on_input
        self._train_end_of_turn = train_end_of_turn
        self._trim = trim

    def length(self, pair: Pair) -> int:
        """Tokens that ``pair`` takes in a row."""
        return _length(lay_out(pair, self.views, self.predictor_ids))

    def __call__(self, pairs: Sequence[Pair]) -> PackedBatch:
        """Pack ``pairs`` into one micro-batch, see :meth:`split`."""
        return self.split(pairs, 1)[0]

    def split(self, pairs: Sequence[Pair], num_batches: int) -> list[PackedBatch]:
        """Pack ``pairs`` together, then deal the rows into micro-batches.

        No pairs give rows of padding, so that all ranks can run.

        Args:
            pairs (Sequence[Pair]): any number; :attr:`PackedBatch.order` leads back to it.
            num_batches (int): number of micro-batches.

        Returns:
            list[PackedBatch]: the micro-batches.

        Raises:
            ValueError: if a pair is longer than ``row_length``.
        """
        lengths = [self.length(pair) for pair in pairs]
        row_length = self._row_length or max(lengths, default=1)
        for pair, length in zip(pairs, lengths, strict=True):
            if length > row_length:
                raise ValueError(
                    f"example {pair.example_id} takes {length} tokens, more than a row "
                    f"of {row_length}; raise row_length and max_seq_len."
                )
        deal = tight if self._trim else level
        rows = deal(lengths, row_length, at_least=num_batches)
        if self._trim:
            row_length = fullest(lengths, rows) or 1
        batches = [rows[i::num_batches] for i in range(num_batches)]
        if not self._trim:
            for batch in batches:
                batch.extend([] for _ in range(few_sizes(len(batch)) - len(batch)))
        return [self._fill(pairs, batch, row_length) for batch in batches]

    def _fill(
        self, pairs: Sequence[Pair], rows: Sequence[Sequence[int]], row_length: int
    ) -> PackedBatch:
        """One micro-batch with ``pairs[i]`` for each ``i`` of each row."""
        size = len(rows) * row_length
        tokens, input_pos = [self._pad_id] * size, [0] * size
        document, branch = [PADDING] * size, [0] * size
        label_pos, labels, label_pair = [], [], []
        readouts: dict[str, list[int]] = {"source": [], "predictor": [], "target": []}
        predictor_pos: list[list[int]] = []
        order: list[int] = []
        num_documents = num_tokens = area = 0
        for index, start in self._places(pairs, rows, row_length):
            pair = pairs[index]
            layout = lay_out(pair, self.views, self.predictor_ids)
            at = start
            for segment in layout:
                length = len(segment.tokens)
                span = slice(at, at + length)
                at = span.stop
                tokens[span] = segment.tokens
                input_pos[span] = range(segment.position, segment.position + length)
                document[span] = [num_documents + segment.document] * length
                branch[span] = [segment.branch] * length
                if segment.readout:
                    readouts[segment.readout].append(at - 1)
                if segment.readout == "predictor":
                    predictor_pos.append(list(range(span.start, span.stop)))
            num_documents += layout[-1].document + 1
            num_tokens += at - start
            area += attention_area(layout)

            # S Q A lie at the start of the pair, next to each other, in every layout.
            full_length = len(pair.source) + len(pair.bridge) + len(pair.target)
            first = 1 if self._train_on_input else full_length - len(pair.target)
            predicted = range(start + first, start + full_length)
            if not self._train_end_of_turn:
                end_of_turn = pair.target[-1]
                predicted = [at for at in predicted if tokens[at] != end_of_turn]
            label_pos.extend(position - 1 for position in predicted)
            labels.extend(tokens[position] for position in predicted)
            label_pair.extend([len(order)] * len(predicted))
            order.append(index)

        k = len(self.predictor_ids)
        return PackedBatch(
            tokens=torch.tensor(tokens).view(-1, row_length),
            input_pos=torch.tensor(input_pos).view(-1, row_length),
            document=_int32(document).view(-1, row_length),
            branch=_int32(branch).view(-1, row_length),
            label_pos=_int64(label_pos),
            labels=_int64(labels),
            label_pair=_int64(label_pair),
            source_pos=_int64(readouts["source"]),
            predicted_pos=_int64(readouts["predictor" if k else "source"]),
            target_pos=_int64(readouts["target"]),
            predictor_pos=_int64(predictor_pos).view(-1, k) if k else _int64([]),
            example_ids=_int64([pairs[index].example_id for index in order]),
            order=_int64(order),
            num_tokens=num_tokens,
            attention_area=area,
        )

    def _places(
        self, pairs: Sequence[Pair], rows: Sequence[Sequence[int]], row_length: int
    ) -> list[tuple[int, int]]:
        """Index and flat start of every pair, in the order of the pairs."""
        places = []
        for row, indices in enumerate(rows):
            start = row * row_length
            for index in indices:
                places.append((index, start))
                start += self.length(pairs[index])
        return sorted(places)


def _length(layout: Sequence[Segment]) -> int:
    return sum(len(segment.tokens) for segment in layout)


def _int64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _int32(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
