"""Compare implementations of output projection plus cross-entropy, forward and backward.

The shape has the width of Llama-3.2-1B and a quarter of its vocabulary, with the labels of 16
pairs of NL-RX-SYNTH. "Plain" is what the recipe does: it computes the logits of all labels at once.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from tests.benchmarks.device import DEVICE
from tests.benchmarks.timing import Row, interleave, ratio

WIDTH, VOCABULARY, LABELS = 2048, 32_064, 240
CHUNKS = 8


def benchmark(quick: bool) -> list[Row]:
    """Times of the ways over that of the plain one, and what each saves for backward."""
    generator = torch.Generator().manual_seed(0)
    weight = 0.02 * torch.randn(VOCABULARY, WIDTH, generator=generator)
    weight = weight.to(DEVICE, torch.bfloat16)
    hidden = torch.randn(LABELS, WIDTH, generator=generator)
    hidden = hidden.to(DEVICE, torch.bfloat16).requires_grad_()
    labels = torch.randint(VOCABULARY, (LABELS,), generator=generator).to(DEVICE)

    def plain(hidden: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(hidden, weight)
        return F.cross_entropy(logits.float(), labels, reduction="none")

    def chunked(hidden: Tensor, labels: Tensor) -> Tensor:
        parts = zip(hidden.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
        return torch.cat([plain(*part) for part in parts])

    def recomputed(hidden: Tensor, labels: Tensor) -> Tensor:
        parts = zip(hidden.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
        return torch.cat(
            [checkpoint(plain, *part, use_reentrant=False) for part in parts]
        )

    ways = {"plain": plain, "chunked": chunked, "chunked, recomputed": recomputed}
    if hasattr(F, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions()
        ways["torch's linear_cross_entropy, chunked"] = lambda hidden, labels: (
            F.linear_cross_entropy(
                hidden, weight, labels, reduction="none", options=options
            )
        )

    def both_passes(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            hidden.grad = None
            loss(hidden, labels).sum().backward()

        return run

    times = interleave(
        {name: both_passes(loss) for name, loss in ways.items()},
        repeats=1 if quick else 3,
    )
    rows = []
    for name, loss in ways.items():
        saved = saved_bytes(lambda loss=loss: loss(hidden, labels), weight)
        note = f"saves {saved / 2**20:.0f} MiB for the backward pass"
        rows.append(
            times[name].row(f"head, {LABELS} labels, {name}", note=note)
            if name == "plain"
            else ratio(
                f"head, {name} over plain", times[name], times["plain"], note=note
            )
        )
    return rows


def saved_bytes(forward: Callable[[], Tensor], weight: Tensor) -> int:
    """Bytes that ``forward`` saves for its backward pass, ``weight`` left out."""
    saved = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    saved.pop(weight.untyped_storage().data_ptr(), None)
    return sum(saved.values())
