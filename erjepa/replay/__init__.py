"""Episodic replay: what the memory holds, where it holds it, and what is replayed.

Imports only the standard library and torch; knows nothing of models, recipes or ranks.
"""

from erjepa.replay.addresses import DenseAddresses, SparseAddresses
from erjepa.replay.memory import EpisodicMemory
from erjepa.replay.replay import Draw, EpisodicReplay
from erjepa.replay.validation import validate_replay

__all__ = [
    "DenseAddresses",
    "Draw",
    "EpisodicMemory",
    "EpisodicReplay",
    "SparseAddresses",
    "validate_replay",
]
