"""A slow, sequential version of the paper's episodic memory.

A list of one dict per slot, with dense addresses, argmin and brute-force sorting. The fast memory
is compared with it slot by slot.
"""

from collections import Counter

import torch

from erjepa.replay.retention import marks


class ListMemory:
    """Memory of ``capacity`` slots with Phi given by ``projection`` [S, H] and ``top_k``;
    without a projection, addresses are the normalized embeddings.
    """

    def __init__(
        self,
        capacity,
        *,
        on_revisit,
        score_update_rate,
        projection=None,
        top_k=None,
        retention="score",
        reserved_slots=0,
        generator=None,
    ):
        self.capacity = capacity
        self.on_revisit = on_revisit
        self.rate = score_update_rate
        self.projection = projection
        self.top_k = top_k
        self.retention = retention
        self.reserved = reserved_slots
        self.generator = generator
        self.slots = []
        self.offered = self.offered_before = 0
        self.known = set()

    def address(self, embedding):
        if self.projection is None:
            address = embedding.clone()
        else:
            projected = self.projection @ embedding
            magnitude = projected.abs().tolist()
            by_magnitude = sorted(
                range(len(magnitude)), key=lambda i: (-magnitude[i], i)
            )
            address = torch.zeros_like(projected)
            for i in by_magnitude[: self.top_k]:
                address[i] = projected[i]
        norm = address.norm()
        return address / norm if norm > 0 else address

    def write(self, example_ids, pairs, embeddings, scores):
        for example, segments, embedding, score in zip(
            example_ids, pairs, embeddings, scores, strict=True
        ):
            new = {
                "example": example,
                "segments": [list(segment) for segment in segments],
                "address": self.address(embedding),
                "score": torch.tensor(score, dtype=torch.float32),
                "count": 0,
            }
            held = [n for n, m in enumerate(self.slots) if m["example"] == example]
            if held and self.on_revisit == "keep":
                continue
            elif held and self.on_revisit == "refresh":
                new["count"] = self.slots[held[0]]["count"]
                self.slots[held[0]] = new
            else:
                is_first = self.on_revisit == "append" or example not in self.known
                self.known.add(example)
                self.offered += is_first
                if len(self.slots) < self.capacity:
                    self.slots.append(new)
                elif self.retention in ("reservoir", "stratified") and not is_first:
                    continue
                elif (slot := self.gives_way(new)) is not None:
                    self.slots[slot] = new

    def gives_way(self, new):
        example, score = new["example"], new["score"]
        everyone = range(len(self.slots))
        inherited = [n for n in everyone if self.slots[n]["example"] < 0]
        offered, candidates = self.offered, list(everyone)
        if len(inherited) <= self.reserved:
            offered -= self.offered_before
            candidates = [n for n in everyone if n not in inherited]
        if self.retention == "score":
            return self.weakest(candidates)
        if self.retention == "reservoir":
            pick = torch.randint(offered, (1,), generator=self.generator).item()
            return candidates[pick] if pick < len(candidates) else None
        if self.retention == "stratified":
            return self.of_most_common_target(new, candidates)
        sizes = {}
        for owner in [example, *(m["example"] for m in self.slots)]:
            sizes[owner // 2**32] = sizes.get(owner // 2**32, 0) + 1
        present = sorted({self.slots[n]["example"] // 2**32 for n in candidates})
        largest = max(present, key=lambda origin: (sizes[origin], -origin))
        of_largest = [
            n for n in candidates if self.slots[n]["example"] // 2**32 == largest
        ]
        if self.retention == "balanced":
            return self.weakest(of_largest)
        slot = min(of_largest, key=lambda n: (self.slots[n]["score"], n))
        is_outdone = example // 2**32 == largest and score <= self.slots[slot]["score"]
        return None if is_outdone else slot

    def of_most_common_target(self, new, candidates):
        groups = {n: group(self.slots[n]) for n in candidates} | {None: group(new)}
        sizes = Counter(groups.values())
        common = [n for n in groups if sizes[groups[n]] == max(sizes.values())]
        number = {n: self.number(new if n is None else self.slots[n]) for n in common}
        # Of equal numbers the new pair gives way, then the lowest slot.
        return min(common, key=lambda n: (number[n], -1 if n is None else n))

    def number(self, slot):
        seed = self.generator.initial_seed()
        return marks([slot["segments"]], seed)[0, 1].item()

    def disown(self, origins):
        for slot in self.slots:
            slot["example"] -= origins * 2**32
        self.offered = self.offered_before = max(self.offered, len(self.slots))
        self.known = set()

    def weakest(self, candidates):
        weakest, lowest = None, None
        for n in candidates:
            slot = self.slots[n]
            priority = (slot["score"] / (1 + slot["count"])).item()
            if lowest is None or priority < lowest:
                weakest, lowest = n, priority
        return weakest

    def refresh(self, slots, errors):
        for n, error in zip(slots, errors, strict=True):
            slot = self.slots[n]
            error = torch.tensor(error, dtype=torch.float32)
            slot["score"] = (1 - self.rate) * slot["score"] + self.rate * error
            slot["count"] += 1

    def eligible(self, current_ids):
        return [n for n, m in enumerate(self.slots) if m["example"] not in current_ids]

    def content(
        self, embeddings, current_ids, *, budget, neighbors, fill, order="batch"
    ):
        eligible = self.eligible(current_ids)
        found = []  # (cue, rank among its neighbors, slot)
        for cue, embedding in enumerate(embeddings):
            address = self.address(embedding)
            cosine = {n: float(address @ self.slots[n]["address"]) for n in eligible}
            nearest = sorted(eligible, key=lambda n: (-cosine[n], n))[:neighbors]
            found += [(cue, rank, n) for rank, n in enumerate(nearest)]
        if order == "round_robin":
            found.sort(key=lambda entry: (entry[1], entry[0]))
        chosen = []
        for _, _, n in found:
            if n not in chosen:
                chosen.append(n)
        chosen = chosen[:budget]
        return self.fill(chosen, budget) if fill else chosen

    def mixed(
        self,
        embeddings,
        current_ids,
        *,
        budget,
        neighbors,
        fill,
        mix,
        generator,
        order="batch",
    ):
        drawn = int(mix * budget + 0.5)
        chosen = self.content(
            embeddings,
            current_ids,
            budget=budget - drawn,
            neighbors=neighbors,
            fill=False,
            order=order,
        )
        left = [n for n in self.eligible(current_ids) if n not in chosen]
        for pick in torch.randperm(len(left), generator=generator).tolist()[:drawn]:
            chosen.append(left[pick])
        return self.fill(chosen, budget) if fill else chosen

    def hard(self, current_ids, *, budget):
        eligible = self.eligible(current_ids)
        hardest = sorted(eligible, key=lambda n: (-self.slots[n]["score"].item(), n))
        return self.fill(hardest[:budget], budget)

    @staticmethod
    def fill(slots, budget):
        filled = list(slots)
        while filled and len(filled) < budget:
            filled += slots[: budget - len(filled)]
        return filled


def group(slot):
    return slot["example"] // 2**32, tuple(slot["segments"][-1])
