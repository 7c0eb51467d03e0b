"""ER-JEPA for torchtune: next-token loss, a JEPA loss and episodic replay in one recipe."""

__version__ = "0.1.0"
