"""Terms of a loss that depend on all pairs of a pass at once, however these are cut.

Such a term is a function of the embeddings of all pairs, which lie on several ranks, and in
micro-batches whose activations are not there at the same time. So its gradient is taken in two
parts (GradCache, Gao et al. 2021): first that of the embeddings, gathered and without a graph,
the same on every rank; then each micro-batch multiplies its own embeddings by their part of it.
The sum of these products has the gradient of the term, by the chain rule.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class WholePassTerm(NamedTuple):
    """A term of the loss of B pairs with V embeddings each."""

    value: Tensor  # scalar
    gradient: Tensor  # of the value with respect to the embeddings, [B, V, H]
    parts: dict[str, Tensor]  # what the value is a weighted sum of, each a scalar

    @classmethod
    def of(
        cls,
        function: Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]],
        embeddings: Tensor,
    ) -> "WholePassTerm":
        """The term, with its parts, where the embeddings, [B, V, H], are those given."""
        with torch.enable_grad():
            leaf = embeddings.detach().requires_grad_()
            value, parts = function(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        detached = {name: part.detach() for name, part in parts.items()}
        return cls(value.detach(), gradient, detached)

    def share(self, embeddings: Tensor, places: Tensor) -> Tensor:
        """The share of n of the pairs, scalar; shares and their gradients add up to those of the
        term.

        Args:
            embeddings: with their graph, [n, V, H].
            places: of the pairs among all, int64 [n].
        """
        linear = (embeddings * self.gradient[places]).sum()
        share = self.value * (len(places) / len(self.gradient))
        return linear - linear.detach() + share
