"""Which slots are replayed: content, uniform or hard (appendix "Replay Selection
Policies"); content and uniform mixed, and prioritized by score, which are ours.

All selections have one signature, so a function of the same shape can take their place
by its dotted path:

    select(memory, addresses, eligible, *, budget, neighbors, fill, generator) -> list[int]

    memory     EpisodicMemory of N slots in use
    addresses  of the B current sources, from ``memory.address_table.encode``; None where the
               memory keeps none
    eligible   bool mask [N]: the slots that may be replayed in this step
    budget     R, the most slots to return
    neighbors  kappa, slots retrieved per address (content)
    fill       repeat a shorter list up to R (content)
    generator  CPU generator; the only source of randomness

They return slots in the order of their replay; a repeated slot is replayed repeatedly.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from erjepa.replay.addresses import Addresses, top_k_descending
from erjepa.replay.dotted import function_at
from erjepa.replay.memory import EpisodicMemory

# Cosines held at a time: at a million slots, 33 addresses and 128 MiB.
_CHUNK_COSINES = 1 << 25


def content(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
) -> list[int]:
    """Prefix_R(Unique(K_1 || .. || K_B)), K_j being the slots most similar to address j.

    K_j has the min(kappa, eligible slots) highest cosines in descending order, ties lower
    slot first. With ``fill`` the list is repeated up to the budget.
    """
    found: dict[int, None] = {}
    for nearest in _neighbors(memory, addresses, eligible, neighbors, budget):
        found.update(dict.fromkeys(nearest.flatten().tolist()))
        if len(found) >= budget:
            break
    slots = list(found)[:budget]
    return fill_to(slots, budget) if fill else slots


def content_round_robin(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
) -> list[int]:
    """As ``content``, but the nearest slot of every address comes first, then the second of
    every one, and so on, so that all count and not only those that fill the budget.
    """
    everything = neighbors * len(addresses.values)
    nearest = list(_neighbors(memory, addresses, eligible, neighbors, everything))
    in_turn = torch.cat(nearest).T.flatten().tolist() if nearest else []
    slots = list(dict.fromkeys(in_turn))[:budget]
    return fill_to(slots, budget) if fill else slots


def _neighbors(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    neighbors: int,
    wanted: int,
) -> Iterator[Tensor]:
    """The lists K_j, [b, min(kappa, eligible slots)], of b addresses at a time.

    ``wanted`` is how many distinct slots the caller looks for.
    """
    per_address = min(neighbors, int(eligible.sum()))
    if per_address == 0:
        return
    excluded = (~eligible).nonzero().flatten()
    # wanted / kappa addresses suffice when all find slots of their own, and twice as many
    # take hardly longer; those after them are compared only while there is room.
    chunk = min(math.ceil(2 * wanted / per_address), _CHUNK_COSINES // len(memory))
    for part in addresses.split(max(1, chunk)):
        cosines = memory.similarity(part).index_fill_(1, excluded, -torch.inf)
        yield top_k_descending(cosines, per_address)


def uniform(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
) -> list[int]:
    """R eligible slots with equal probability: without replacement when there are at
    least R of them, else R independent draws; none when there is none.
    """
    slots = eligible.nonzero().flatten()
    if slots.numel() == 0:
        return []
    if slots.numel() >= budget:
        picks = torch.randperm(slots.numel(), generator=generator, device="cpu")
        picks = picks[:budget]
    else:
        picks = torch.randint(
            slots.numel(), (budget,), generator=generator, device="cpu"
        )
    return slots[picks.to(slots.device)].tolist()


def hard(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
) -> list[int]:
    """The R eligible slots with the largest scores, descending, ties lower slot first;
    a shorter list is always repeated up to the budget.
    """
    count = min(budget, int(eligible.sum()))
    scores = memory.scores.masked_fill(~eligible, -torch.inf)
    return fill_to(top_k_descending(scores[None], count)[0].tolist(), budget)


def prioritized(
    memory: EpisodicMemory,
    addresses: Addresses | None,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
    exponent: float,
) -> list[int]:
    """R eligible slots drawn with probability proportional to score^alpha (Schaul et al.,
    Prioritized Experience Replay, 2016, without its weights of the loss): one after the other
    and without replacement when there are at least R of them, else R independent draws.

    Drawing without replacement is taking the R largest of alpha log score + Gumbel noise.

    Args:
        memory (EpisodicMemory): and the following: see the top of this file.
        exponent (float): alpha; 0 is uniform, and large is hard.
    """
    slots = eligible.nonzero().flatten().cpu()
    if slots.numel() == 0:
        return []
    scores = memory.scores.cpu()[slots].double()
    # A JEPA error may be rounded to 0 or below it.
    logits = exponent * scores.clamp(min=torch.finfo(torch.float32).tiny).log()
    enough = slots.numel() >= budget
    draws = torch.rand(
        1 if enough else budget,
        slots.numel(),
        generator=generator,
        dtype=torch.float64,
        device="cpu",
    )
    keys = logits - torch.log(-torch.log(draws))
    picks = top_k_descending(keys, budget if enough else 1).flatten()
    return slots[picks].tolist()


def mixed(
    memory: EpisodicMemory,
    addresses: Addresses,
    eligible: Tensor,
    *,
    budget: int,
    neighbors: int,
    fill: bool,
    generator: torch.Generator,
    mix: float,
    by_content: Callable[..., list[int]] = content,
) -> list[int]:
    """Content for a share 1 - mix of the budget, then slots drawn from the other eligible
    ones with equal probability, without replacement: what is like the present, and what is
    not. No slot comes twice, unless ``fill`` repeats a list that is too short.

    Args:
        memory (EpisodicMemory): and the following: see the top of this file.
        mix (float): share of the budget that is drawn; its number of slots is rounded to the
            nearest, halves up.
        by_content (Callable[..., list[int]]): ``content`` or ``content_round_robin``.
    """
    drawn = math.floor(mix * budget + 0.5)
    slots: list[int] = []
    if drawn < budget:
        slots = by_content(
            memory,
            addresses,
            eligible,
            budget=budget - drawn,
            neighbors=neighbors,
            fill=False,
            generator=generator,
        )
    others = eligible.clone()
    others[slots] = False
    left = others.nonzero().flatten()
    picks = torch.randperm(left.numel(), generator=generator, device="cpu")[:drawn]
    slots += left[picks.to(left.device)].tolist()
    return fill_to(slots, budget) if fill else slots


def fill_to(slots: list[int], budget: int) -> list[int]:
    """The paper's Fill_R: repeats a shorter list in its order until it has ``budget``
    entries; an empty list stays empty.
    """
    if not slots:
        return []
    return [slots[i % len(slots)] for i in range(max(budget, len(slots)))]


SELECTIONS: dict[str, Callable[..., list[int]]] = {
    "content": content,
    "uniform": uniform,
    "hard": hard,
    "mixed": mixed,
    "prioritized": prioritized,
}


def needs_addresses(name: str) -> bool:
    """Whether the selection of that name looks at addresses; one of the user's may."""
    return name not in ("uniform", "hard", "prioritized", "current_batch")


# Which function `content` stands for: replay.neighbor_order.
NEIGHBOR_ORDERS: dict[str, Callable[..., list[int]]] = {
    "batch": content,
    "round_robin": content_round_robin,
}


def resolve_selection(
    name: str,
    neighbor_order: str = "batch",
    mix: float = 0.5,
    priority_exponent: float = 0.6,
) -> Callable[..., list[int]]:
    """The selection of that name, or the function at that dotted path.

    Args:
        name (str): "content", "uniform", "hard", "mixed", "prioritized" or e.g.
            "my_package.replay.newest".
        neighbor_order (str): "batch" or "round_robin": which function "content" is, in
            "mixed" too. The others know no order, and a function of the user's has its own.
        mix (float): share of the budget that "mixed" draws.
        priority_exponent (float): alpha of "prioritized".

    Returns:
        Callable[..., list[int]]: a function with the signature at the top of this file.

    Raises:
        ValueError: if there is no such name, or the path leads to no function.
    """
    if name == "content":
        return NEIGHBOR_ORDERS[neighbor_order]
    if name == "mixed":
        return partial(mixed, mix=mix, by_content=NEIGHBOR_ORDERS[neighbor_order])
    if name == "prioritized":
        return partial(prioritized, exponent=priority_exponent)
    if isinstance(name, str) and name in SELECTIONS:
        return SELECTIONS[name]
    return function_at("selection", name, [*SELECTIONS, "current_batch"])
