"""Terms of a loss that look at all pairs of a pass at once, however these are cut.

Such a term is a function of the embeddings of all pairs, which lie on several ranks, and in
micro-batches whose activations are not there at the same time. So its gradient is taken in two
parts (GradCache, Gao et al. 2021): first that of the embeddings, gathered and without a graph,
the same on every rank; then each micro-batch multiplies its own embeddings by their part of it.
The sum of these products has the gradient of the term, to the last bit of the chain rule.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class WholePassTerm(NamedTuple):
    """A term of the loss of B pairs with V embeddings each.

    Args:
        value: scalar.
        gradient: of ``value`` with respect to the embeddings, [B, V, H].
    """

    value: Tensor
    gradient: Tensor

    @classmethod
    def of(
        cls, function: Callable[[Tensor], Tensor], embeddings: Tensor
    ) -> "WholePassTerm":
        """The term where the embeddings, [B, V, H], are those given."""
        with torch.enable_grad():
            leaf = embeddings.detach().requires_grad_()
            value = function(leaf)
            (gradient,) = torch.autograd.grad(value, leaf)
        return cls(value.detach(), gradient)

    def share(self, embeddings: Tensor, places: Tensor) -> Tensor:
        """The share of some of the pairs.

        Args:
            embeddings: of n pairs, with their graph, [n, V, H].
            places: of these among all pairs, int64 [n].

        Returns:
            Scalar; the shares of all pairs add up to the value, and so do gradients.
        """
        linear = (embeddings * self.gradient[places]).sum()
        share = self.value * (len(places) / len(self.gradient))
        return linear - linear.detach() + share
