"""Epochs of weighted datasets, built one example at a time."""

from itertools import product

import torch


def apportion(total, weights):
    """Of all whole numbers with the sum ``total``, those nearest to the shares by the sum of
    distances; of several the first in descending order.
    """
    shares = [total * weight / sum(weights) for weight in weights]
    options = [
        counts
        for counts in product(range(total, -1, -1), repeat=len(weights))
        if sum(counts) == total
    ]

    def distance(counts):
        return round(
            sum(abs(n - share) for n, share in zip(counts, shares, strict=True)), 9
        )

    return list(min(options, key=distance))


def epochs(sizes, counts, seed, num_epochs):
    """The indices of each epoch, ascending: each dataset is a deck, reshuffled when it is empty."""
    seeds = torch.Generator().manual_seed(seed)
    generators = [
        torch.Generator().manual_seed(number)
        for number in torch.randint(1 << 62, (len(sizes),), generator=seeds).tolist()
    ]
    decks = [[] for _ in sizes]
    dealt = []
    for _ in range(num_epochs):
        hand = []
        for dataset, count in enumerate(counts):
            for _ in range(count):
                if not decks[dataset]:
                    order = torch.randperm(
                        sizes[dataset], generator=generators[dataset]
                    )
                    decks[dataset] = order.tolist()
                hand.append(sum(sizes[:dataset]) + decks[dataset].pop(0))
        dealt.append(sorted(hand))
    return dealt
