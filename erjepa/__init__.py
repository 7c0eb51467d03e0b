"""ER-JEPA for torchtune: next-token loss, a JEPA loss and episodic replay in one recipe."""

import logging

__version__ = "0.1.0"

# Lines that torchao and torchtune log at every start, and that concern no user.
_SILENT = (
    "Skipping import of cpp extensions",
    "Setting manual seed to local seed",
    " Profiling disabled.",
)
for _name in ("torchao", "torchtune.utils._logging"):
    logging.getLogger(_name).addFilter(
        lambda record: not record.getMessage().startswith(_SILENT)
    )
