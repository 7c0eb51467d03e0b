"""Episodic replay: the memory, and the rules for what it keeps and what is replayed.

Imports only the standard library, torch and pydantic; knows nothing of models, recipes or ranks.
"""

from erjepa.replay.episodic_memory import EpisodicMemory
from erjepa.replay.replay import EpisodicReplay, ReplayBatch, require_room, slot_bytes
from erjepa.replay.settings import ReplaySettings

__all__ = [
    "EpisodicMemory",
    "EpisodicReplay",
    "ReplayBatch",
    "ReplaySettings",
    "require_room",
    "slot_bytes",
]
