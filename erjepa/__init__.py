"""ER-JEPA for torchtune: next-token loss, a JEPA loss and episodic replay in one recipe."""

import logging

__version__ = "0.1.0"

# torchao warns at every start that its C++ kernels, which are not used here, are not loaded.
logging.getLogger("torchao").addFilter(
    lambda record: "import of cpp extensions" not in record.getMessage()
)
