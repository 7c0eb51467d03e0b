"""Rules that select the slots to replay (appendix "Replay Selection Policies"); ``mixed`` and
``prioritized`` are this project's.

A selection takes a :class:`Request` and returns slots in the order of replay, repeats allowed.
``SELECTIONS.register`` gives it a name and declares what it needs; a function of another module is
named by its dotted path.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import cycle, islice

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, top_k_descending
from erjepa.replay.episodic_memory import EpisodicMemory
from erjepa.replay.registry import SELECTIONS
from erjepa.replay.settings import ReplaySettings

# Cosines computed at a time: 128 MiB, or those of 33 addresses with a million slots.
_CHUNK_COSINES = 1 << 25


@dataclass(frozen=True)
class Request:
    """The input of a selection.

    Args:
        memory: N slots in use.
        addresses: of the B pairs of the step; ``None`` if the memory has no addresses.
        eligible: which slots may be replayed, bool, shape [N].
        budget: maximum number of slots to return, R.
        settings: the keys of ``replay``.
        generator: on the CPU; the only source of randomness.
    """

    memory: EpisodicMemory
    addresses: Addresses | None
    eligible: Tensor
    budget: int
    settings: ReplaySettings
    generator: torch.Generator


@SELECTIONS.register("content")
def content(request: Request) -> list[int]:
    """Return Prefix_R(Unique(K_1 || .. || K_B)), where K_j are the slots most similar to address j.

    K_j has the min(kappa, eligible slots) highest cosines in descending order, ties to the lower
    slot. ``replay.neighbor_order=round_robin`` takes the nearest slot of every address first, then
    the second nearest of every address. With ``replay.fill`` the list is repeated up to R.
    """
    settings, budget = request.settings, request.budget
    chosen: dict[int, None] = {}
    if settings.neighbor_order == "round_robin":
        assert request.addresses is not None
        everything = settings.neighbors * len(request.addresses.values)
        if nearest := list(_neighbors(request, everything)):
            chosen = dict.fromkeys(torch.cat(nearest).T.flatten().tolist())
    else:
        for part in _neighbors(request, budget):
            chosen.update(dict.fromkeys(part.flatten().tolist()))
            if len(chosen) >= budget:
                break
    slots = list(chosen)[:budget]
    return fill_to(slots, budget) if settings.fill else slots


@SELECTIONS.register("uniform", needs_addresses=False)
def uniform(request: Request) -> list[int]:
    """Draw R eligible slots with equal probability: without replacement if there are at least R,
    else by R independent draws.
    """
    budget, generator = request.budget, request.generator
    slots = request.eligible.nonzero().flatten()
    count = slots.numel()
    if count == 0:
        return []
    if count >= budget:
        picks = torch.randperm(count, generator=generator, device="cpu")[:budget]
    else:
        picks = torch.randint(count, (budget,), generator=generator, device="cpu")
    return slots[picks.to(slots.device)].tolist()


@SELECTIONS.register("hard", needs_addresses=False)
def hard(request: Request) -> list[int]:
    """Return the R eligible slots with the largest scores, descending, ties to the lower slot; a
    shorter list is always repeated up to R.
    """
    count = min(request.budget, int(request.eligible.sum()))
    scores = request.memory.scores.masked_fill(~request.eligible, -torch.inf)
    slots = top_k_descending(scores[None], count)[0].tolist()
    return fill_to(slots, request.budget)


@SELECTIONS.register("mixed")
def mixed(request: Request) -> list[int]:
    """Select a fraction 1 - ``replay.mix`` of R by ``content``, then draw the rest from the other
    eligible slots, uniformly without replacement. The number to draw, mix times R, is rounded to
    the nearest integer, halves up; with ``replay.draw_by=origin`` R is that of each origin. Slots
    repeat only if ``replay.fill`` extends a short list.
    """
    settings, budget = request.settings, request.budget
    drawn = math.floor(Fraction(str(settings.mix)) * budget + Fraction(1, 2))
    slots: list[int] = []
    if drawn < budget:
        part = replace(settings, fill=False)
        slots = content(replace(request, budget=budget - drawn, settings=part))
    others = request.eligible.clone()
    others[slots] = False
    left = others.nonzero().flatten()
    picks = torch.randperm(left.numel(), generator=request.generator, device="cpu")
    slots += left[picks[:drawn].to(left.device)].tolist()
    return fill_to(slots, budget) if settings.fill else slots


@SELECTIONS.register("prioritized", needs_addresses=False)
def prioritized(request: Request) -> list[int]:
    """Draw R eligible slots with probability proportional to score^alpha (Schaul et al.,
    Prioritized Experience Replay, 2016, without its importance-sampling weights): one after the
    other without replacement if there are at least R, else by R independent draws.

    Drawing without replacement means taking the R largest of alpha log score + Gumbel noise.
    """
    budget = request.budget
    slots = request.eligible.nonzero().flatten().cpu()
    if slots.numel() == 0:
        return []
    scores = request.memory.scores.cpu()[slots].double()
    # A JEPA error may be rounded to 0 or below it.
    positive = scores.clamp(min=torch.finfo(torch.float32).tiny)
    enough = slots.numel() >= budget
    draws = torch.rand(
        1 if enough else budget,
        slots.numel(),
        generator=request.generator,
        dtype=torch.float64,
        device="cpu",
    )
    keys = request.settings.priority_exponent * positive.log()
    keys = keys - torch.log(-torch.log(draws))
    picks = top_k_descending(keys, budget if enough else 1).flatten()
    return slots[picks].tolist()


@SELECTIONS.register("current_batch", needs_addresses=False, of_memory=False)
def current_batch(request: Request) -> list[int]:
    """Return the first R pairs of the step itself, as indices into the step: a control."""
    return list(range(request.budget))


def _neighbors(request: Request, wanted: int) -> Iterator[Tensor]:
    """Yield the lists K_j of b addresses at a time, [b, min(kappa, eligible slots)], until the
    caller has its ``wanted`` distinct slots.
    """
    memory, addresses = request.memory, request.addresses
    assert addresses is not None
    per_address = min(request.settings.neighbors, int(request.eligible.sum()))
    if per_address == 0:
        return
    excluded = (~request.eligible).nonzero().flatten()
    # wanted / kappa addresses suffice if all find different slots, and twice as many take
    # hardly longer. More are compared only if slots are still missing.
    chunk = min(math.ceil(2 * wanted / per_address), _CHUNK_COSINES // len(memory))
    chunk = max(1, chunk)
    for start in range(0, len(addresses.values), chunk):
        part = addresses.rows(slice(start, start + chunk))
        cosines = memory.similarity(part).index_fill_(1, excluded, -torch.inf)
        yield top_k_descending(cosines, per_address)


def fill_to(slots: list[int], budget: int) -> list[int]:
    """Repeat a list until it has ``budget`` entries, unless it is empty: the paper's Fill_R."""
    return list(islice(cycle(slots), budget))
