"""``tune run erjepa_eval --config NAME`` runs the evaluation recipe."""
