"""A slow version of ER-JEPA: one process, one pair at a time, a list as memory."""

from functools import partial

import torch

from erjepa.datasets import PairedDataset
from erjepa.datasets.pairs import Pair
from tests.reference.list_memory import ListMemory
from tests.reference.three_forwards import hidden_states, reference_loss


def embeddings(decoder, pairs, predictor_ids, predictor):
    """Source embeddings and JEPA errors of ``pairs``, without gradient."""
    by_id = dict(zip(predictor_ids, predictor, strict=True))
    sources, errors = [], []
    with torch.no_grad():
        for pair in pairs:
            source = list(pair.source)
            z_u = hidden_states(decoder, source, {})[-1]
            p = hidden_states(decoder, [*source, *predictor_ids], by_id)[-1]
            z_a = hidden_states(decoder, list(pair.target_view), {})[-1]
            sources.append(z_u)
            errors.append((1 - torch.cosine_similarity(p, z_a, dim=0)).item())
    return sources, errors


def replay_loss_at(parameters, update, replay_loss):
    """The loss of the replayed pairs with ``update`` added to the weights."""
    kept = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, part in zip(
            parameters, update.split([p.numel() for p in parameters]), strict=True
        ):
            p.add_(part.view_as(p))
        loss, *_ = replay_loss()
        for p, weight in zip(parameters, kept, strict=True):
            p.copy_(weight)
    return loss


def train_slowly(
    decoder: torch.nn.Module,
    dataset: PairedDataset,
    steps: list[list[int]],
    *,
    predictor_ids: list[int],
    selection: str,
    budget: int,
    neighbors: int,
    capacity: int,
    beta: float,
    projection: torch.Tensor,
    top_k: int,
    lr: float,
    warmup: int,
    num_training_steps: int,
    max_norm: float,
) -> tuple[list[dict], ListMemory]:
    """Train ``decoder`` on ``steps`` of example ids; return metrics per step, and the memory."""
    predictor = torch.nn.Parameter(
        decoder.tok_embeddings.weight[predictor_ids].detach().clone()
    )
    parameters = [p for p in decoder.parameters() if p.requires_grad] + [predictor]
    optimizer = torch.optim.AdamW(parameters, lr=lr, weight_decay=0.0)
    memory = ListMemory(
        capacity,
        on_revisit="refresh",
        score_update_rate=0.1,
        projection=projection,
        top_k=top_k,
    )
    objective = {"views": "shared", "predictor_ids": predictor_ids}
    metrics = []
    for step, ids in enumerate(steps):
        progress = (step - warmup) / max(1, num_training_steps - warmup)
        optimizer.param_groups[0]["lr"] = lr * (
            step / warmup if step < warmup else 1 - progress
        )

        new = [dataset[i] for i in ids]
        sources, errors = embeddings(decoder, new, predictor_ids, predictor)
        if selection == "content":
            slots = memory.content(
                sources, ids, budget=budget, neighbors=neighbors, fill=False
            )
        else:
            slots = memory.hard(ids, budget=budget)
        replayed = [Pair(-1, *memory.slots[n]["segments"]) for n in slots]
        _, replay_errors = embeddings(decoder, replayed, predictor_ids, predictor)

        loss, lm, jepa = reference_loss(
            decoder, new, predictor_rows=predictor, **objective
        )
        update = {}
        if replayed:
            replay_loss = partial(
                reference_loss,
                decoder,
                replayed,
                predictor_rows=predictor,
                **objective,
            )
            replay, *_ = replay_loss()
            ours, theirs = (
                torch.cat(
                    [
                        gradient.flatten()
                        for gradient in torch.autograd.grad(
                            part, parameters, retain_graph=True
                        )
                    ]
                )
                for part in (loss, replay)
            )
            update["gradient_cosine"] = torch.cosine_similarity(ours, theirs, dim=0)
            update["replay_gradient_norm"] = theirs.norm()
            along = ours * (theirs @ ours) / (ours @ ours)
            update["replay_gradient_outside"] = (theirs - along).norm()
            update["replay_loss_before"] = replay
            loss = loss + beta * replay
        optimizer.zero_grad()
        loss.backward()
        if replayed:
            rate = optimizer.param_groups[0]["lr"]
            update["replay_benefit_expected"] = -rate * beta * theirs @ theirs
            update["replay_benefit"] = replay_loss_at(
                parameters, -rate * (ours + beta * theirs), replay_loss
            ) - replay_loss_at(parameters, -rate * ours, replay_loss)
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        optimizer.step()
        if replayed:
            with torch.no_grad():
                update["replay_loss_after"], *_ = replay_loss()

        memory.refresh(slots, replay_errors)
        memory.write(ids, [pair.segments for pair in new], sources, errors)
        metrics.append(
            {
                "loss": loss.item(),
                "lm_loss": lm.item(),
                "jepa_loss": jepa.item(),
                "grad_norm": norm.item(),
                "replayed": len(slots),
                "memory_size": len(memory.slots),
                **{name: value.item() for name, value in update.items()},
            }
        )
    return metrics, memory
