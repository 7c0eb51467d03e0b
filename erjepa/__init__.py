"""ER-JEPA for torchtune: next-token loss, a JEPA loss and episodic replay in one recipe."""

import logging

__version__ = "0.1.0"

# torchao says at every start that kernels which nothing here calls are not loaded.
logging.getLogger("torchao").addFilter(
    lambda record: "import of cpp extensions" not in record.getMessage()
)
