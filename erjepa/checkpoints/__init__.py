"""What a run leaves on the disk: checkpoints, the memory in them, cards, locks, room."""
