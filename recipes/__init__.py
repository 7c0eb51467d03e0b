"""The recipes of ER-JEPA. ``tune run erjepa_recipe --config NAME`` runs the training recipe."""
