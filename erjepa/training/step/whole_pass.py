"""Loss terms that depend on all pairs of a pass at once.

Such a term is a function of the embeddings of all pairs, which are spread over ranks and over
micro-batches whose activations are never in memory together. So its gradient is computed in two
stages (GradCache, Gao et al. 2021): first with respect to the embeddings, gathered without a graph,
the same on every rank; then each micro-batch multiplies its embeddings by its slice of that
gradient. By the chain rule, the sum of these products has the gradient of the term.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class WholePassTerm(NamedTuple):
    """The value and the gradient of a loss term of B pairs with V embeddings each."""

    value: Tensor  # scalar
    gradient: Tensor  # of the value with respect to the embeddings, [B, V, H]
    parts: dict[str, Tensor]  # unweighted terms in the value by name, each a scalar

    @classmethod
    def of(
        cls,
        function: Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]],
        embeddings: Tensor,
    ) -> "WholePassTerm":
        """Evaluate ``function`` (value and parts) and its gradient at ``embeddings``, [B, V, H]."""
        with torch.enable_grad():
            leaf = embeddings.detach().requires_grad_()
            value, parts = function(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        detached = {name: part.detach() for name, part in parts.items()}
        return cls(value.detach(), gradient, detached)

    def share(self, embeddings: Tensor, places: Tensor) -> Tensor:
        """Return the contribution of n of the pairs, scalar. Contributions and their gradients add
        up to the value and the gradient of the term.

        Args:
            embeddings: embeddings of the n pairs, with their graph, [n, V, H].
            places: indices of the n pairs among all B, int64 [n].
        """
        linear = (embeddings * self.gradient[places]).sum()
        share = self.value * (len(places) / len(self.gradient))
        return linear - linear.detach() + share
