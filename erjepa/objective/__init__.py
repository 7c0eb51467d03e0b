"""The objective: a decoder that reads packed pairs, its losses, and their cost in FLOPs."""

from erjepa.objective.backend import Backend
from erjepa.objective.collapse import rankme, retrieval_at_1
from erjepa.objective.decoder import PackedDecoder, PackedOutput
from erjepa.objective.distances import cosine_distance
from erjepa.objective.flops import StepFlops
from erjepa.objective.loss import JEPALoss

__all__ = [
    "Backend",
    "JEPALoss",
    "PackedDecoder",
    "PackedOutput",
    "StepFlops",
    "cosine_distance",
    "rankme",
    "retrieval_at_1",
]
