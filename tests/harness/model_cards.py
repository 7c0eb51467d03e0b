"""Configs and settings for tests of model cards."""

from omegaconf import OmegaConf

import erjepa.configs

READING = {"share": 0.5, "right": 25, "examples": 50, "interval": [0.366, 0.634]}
SUMMARY = {
    "checkpoint": "run/epoch_1",
    "split": "test",
    "task": "nl_rx",
    "weights": "adapter",
    "pairs": "nl_rx_dataset(split=test)",
    "accuracy": 0.5,
    "primary": "exact_match",
    "exact_match": READING,
}


def config(**changes):
    cfg = OmegaConf.create(erjepa.configs.merged("smollm2_135m_turk"))
    for key, value in changes.items():
        OmegaConf.update(cfg, key.replace("__", "."), value)
    return OmegaConf.to_container(cfg)
