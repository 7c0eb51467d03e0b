"""The recipes of ER-JEPA. ``tune run erjepa_recipe --config NAME`` runs the training recipe."""

import erjepa  # noqa: F401  before torchao, whose warning it filters
