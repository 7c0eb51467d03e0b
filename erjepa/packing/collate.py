"""Packed rows of a micro-batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from erjepa.datasets.pairs import Pair
from erjepa.packing.layout import Segment, Views, attention_area, lay_out

PADDING = -1  # document of padding tokens


@dataclass
class PackedBatch:
    """Packed pairs. R rows of length L, n pairs, c label positions, k predictor tokens.

    Positions in the rows are flat: ``row * L + column``.

    Args:
        tokens (Tensor): token ids, padded, int64 [R, L].
        input_pos (Tensor): position ids, int64 [R, L].
        document (Tensor): document of each token, ``PADDING`` where none, int32 [R, L].
        branch (Tensor): branch of each token, 0 is the trunk, int32 [R, L].
        label_pos (Tensor): positions whose hidden state predicts a label, int64 [c].
        labels (Tensor): the token to predict there, int64 [c].
        label_pair (Tensor): which of the n pairs a label belongs to, int64 [c].
        source_pos (Tensor): positions of :math:`z^u`, int64 [n], or [0] without views.
        predicted_pos (Tensor): positions of :math:`p`, int64 [n] or [0].
        target_pos (Tensor): positions of :math:`z^a`, int64 [n] or [0].
        predictor_pos (Tensor): positions of the predictor tokens, int64 [n, k].
        example_ids (Tensor): int64 [n].
        num_tokens (int): tokens that are not padding.
        attention_area (int): pairs of (query, key) that the mask admits.
    """

    tokens: Tensor
    input_pos: Tensor
    document: Tensor
    branch: Tensor
    label_pos: Tensor
    labels: Tensor
    label_pair: Tensor
    source_pos: Tensor
    predicted_pos: Tensor
    target_pos: Tensor
    predictor_pos: Tensor
    example_ids: Tensor
    num_tokens: int
    attention_area: int

    @property
    def num_pairs(self) -> int:
        """Number of pairs, n."""
        return self.example_ids.numel()

    @property
    def num_labels(self) -> int:
        """Number of label positions, c."""
        return self.labels.numel()

    def to(self, device: torch.device) -> "PackedBatch":
        """The batch with its tensors on ``device``."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> "PackedBatch":
        """The batch in pinned memory; a data loader with ``pin_memory`` calls it."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "PackedBatch":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return PackedBatch(
            **{
                name: function(value) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )


class PairCollator:
    """Packs pairs into rows, best fit first.

    Args:
        views (Views): layout of a pair.
        predictor_ids (Sequence[int]): ids of the k predictor tokens.
        pad_id (int): id that fills the rows.
        row_length (int | None): length of every row. ``None``: that of the longest pair,
            which wastes least where shapes may vary.
        train_on_input (bool): predict the source too, as LLM-JEPA's code does, not the
            target alone.
    """

    def __init__(
        self,
        *,
        views: Views = "shared",
        predictor_ids: Sequence[int] = (),
        pad_id: int = 0,
        row_length: int | None = None,
        train_on_input: bool = False,
    ) -> None:
        self.views = views
        self.predictor_ids = list(predictor_ids) if views != "none" else []
        self._pad_id = pad_id
        self._row_length = row_length
        self._train_on_input = train_on_input

    def length(self, pair: Pair) -> int:
        """Tokens that ``pair`` takes in a row."""
        return _length(lay_out(pair, self.views, self.predictor_ids))

    def __call__(self, pairs: Sequence[Pair]) -> PackedBatch:
        """Pack ``pairs``; no pairs give one row of padding, so that all ranks can run.

        Args:
            pairs (Sequence[Pair]): n pairs; the outputs keep their order.

        Returns:
            PackedBatch: the rows.

        Raises:
            ValueError: if a pair is longer than ``row_length``.
        """
        layouts = [lay_out(pair, self.views, self.predictor_ids) for pair in pairs]
        lengths = [_length(layout) for layout in layouts]
        row_length = self._row_length or max(lengths, default=1)
        for pair, length in zip(pairs, lengths, strict=True):
            if length > row_length:
                raise ValueError(
                    f"example {pair.example_id} takes {length} tokens, more than a row "
                    f"of {row_length}; raise row_length and max_seq_len."
                )
        starts, num_rows = best_fit(lengths, row_length)

        size = num_rows * row_length
        tokens, input_pos = [self._pad_id] * size, [0] * size
        document, branch = [PADDING] * size, [0] * size
        label_pos, labels, label_pair = [], [], []
        readouts: dict[str, list[int]] = {"source": [], "predictor": [], "target": []}
        predictor_pos: list[list[int]] = []
        num_documents = 0
        for index, (pair, layout, start) in enumerate(
            zip(pairs, layouts, starts, strict=True)
        ):
            at = start
            for segment in layout:
                span = slice(at, at + len(segment.tokens))
                at = span.stop
                tokens[span] = segment.tokens
                end = segment.position + len(segment.tokens)
                input_pos[span] = range(segment.position, end)
                document[span] = [num_documents + segment.document] * len(
                    segment.tokens
                )
                branch[span] = [segment.branch] * len(segment.tokens)
                if segment.readout:
                    readouts[segment.readout].append(at - 1)
                if segment.readout == "predictor":
                    predictor_pos.append(list(range(span.start, span.stop)))
            num_documents += layout[-1].document + 1

            # S Q A lie at the start of the pair, next to each other, in every layout.
            full_length = len(pair.source) + len(pair.bridge) + len(pair.target)
            first = 1 if self._train_on_input else full_length - len(pair.target)
            predicted = range(start + first, start + full_length)
            label_pos.extend(position - 1 for position in predicted)
            labels.extend(tokens[predicted.start : predicted.stop])
            label_pair.extend([index] * len(predicted))

        k = len(self.predictor_ids)
        return PackedBatch(
            tokens=torch.tensor(tokens).view(num_rows, row_length),
            input_pos=torch.tensor(input_pos).view(num_rows, row_length),
            document=_int32(document).view(num_rows, row_length),
            branch=_int32(branch).view(num_rows, row_length),
            label_pos=_int64(label_pos),
            labels=_int64(labels),
            label_pair=_int64(label_pair),
            source_pos=_int64(readouts["source"]),
            predicted_pos=_int64(readouts["predictor" if k else "source"]),
            target_pos=_int64(readouts["target"]),
            predictor_pos=_int64(predictor_pos).view(-1, k) if k else _int64([]),
            example_ids=_int64([pair.example_id for pair in pairs]),
            num_tokens=sum(lengths),
            attention_area=sum(map(attention_area, layouts)),
        )


def best_fit(lengths: Sequence[int], row_length: int) -> tuple[list[int], int]:
    """Place items into rows, longest first, each where it leaves the least space.

    Args:
        lengths (Sequence[int]): lengths of the items, each at most ``row_length``.
        row_length (int): length of a row.

    Returns:
        tuple[list[int], int]: flat start of each item, and the number of rows (at least 1).
    """
    starts = [0] * len(lengths)
    used: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [r for r, u in enumerate(used) if u + lengths[item] <= row_length]
        if fitting:
            row = max(fitting, key=lambda r: used[r])
        else:
            row = len(used)
            used.append(0)
        starts[item] = row * row_length + used[row]
        used[row] += lengths[item]
    return starts, max(len(used), 1)


def _length(layout: Sequence[Segment]) -> int:
    return sum(len(segment.tokens) for segment in layout)


def _int64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _int32(values) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)
