"""A checkpointer for model folders of transformers, as ``save_pretrained`` writes them."""

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torchtune import training
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from erjepa.checkpoints.peft_adapter import CONFIG, WEIGHTS, peft_name
from erjepa.models.transformers.builders import empty_model, text_model_in
from erjepa.utils.jsonl import parse_json

_WHOLE = "model.safetensors"
_TEMPLATES = "additional_chat_templates"
_WEIGHTS = (
    *(".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"),
    ".index.json",
)


class TransformersCheckpointer:
    """Reads a model of transformers and writes folders ``epoch_N``: the model and its tokenizer,
    which ``from_pretrained`` loads, and the adapter, if there is one, which PEFT loads.

    Args:
        checkpoint_files: weight files; ``None``: those that transformers reads.

    Attributes:
        repo_id: base model named in the configs of adapters.

    Raises:
        FileNotFoundError: if ``checkpoint_dir`` has no ``config.json``.
    """

    def __init__(
        self,
        checkpoint_dir: str,
        output_dir: str,
        checkpoint_files: list[str] | None = None,
    ) -> None:
        self._folder, self._output_dir = Path(checkpoint_dir), Path(output_dir)
        if not (self._folder / "config.json").is_file():
            raise FileNotFoundError(
                f"checkpointer.checkpoint_dir={checkpoint_dir} has no config.json; set it to "
                "the folder of a model of transformers"
            )
        self._files = checkpoint_files
        self._output_dir.mkdir(parents=True, exist_ok=True)
        self.repo_id: str | None = None

    def load_checkpoint(self) -> dict[str, Any]:
        """Return the weights by parameter name, memory-mapped if the files have the same names.

        Raises:
            ValueError: if a file is damaged, or weights are missing or quantized.
        """
        model = empty_model(str(self._folder))
        wanted = [name for name, _ in model.named_parameters()]
        tied = set(model.all_tied_weights_keys)
        stored = self._found()
        weights: dict[str, Tensor] = {}
        for name in wanted:
            if name in tied:
                continue
            # A model that also reads images stores its text model's weights under another name.
            keys = [
                key for key in stored if f".{_of_text_model(key)}".endswith(f".{name}")
            ]
            if len(keys) != 1:
                weights = self._converted({*wanted} - tied)
                break
            weights[name] = stored[keys[0]]
        for name, weight in weights.items():
            if not weight.is_floating_point() or weight.itemsize == 1:
                raise ValueError(
                    f"{self._folder}: {name} is quantized to {weight.dtype}; choose the model "
                    "with weights in bfloat16, float16 or float32"
                )
        return {training.MODEL_KEY: weights}

    def _found(self) -> dict[str, Tensor]:
        files, index = self._files, self._folder / f"{_WHOLE}.index.json"
        if files is None and (self._folder / _WHOLE).is_file():
            files = [_WHOLE]
        elif files is None and index.is_file():
            listed = parse_json(index.read_bytes(), str(index))
            files = sorted({*listed["weight_map"].values()})
        weights: dict[str, Tensor] = {}
        for file in files or ():
            try:
                weights |= load_file(self._folder / file)
            except (OSError, SafetensorError) as error:
                raise ValueError(
                    f"{self._folder / file} cannot be read: {error}"
                ) from None
        return weights

    def _converted(self, wanted: set[str]) -> dict[str, Tensor]:
        """Load weights that transformers renames or merges on loading."""
        with _no_progress_bars():
            model, found = AutoModelForCausalLM.from_pretrained(
                self._folder, dtype="auto", output_loading_info=True
            )
        if missing := sorted(found["missing_keys"]):
            raise ValueError(
                f"{self._folder} has no weights for {missing[0]} ({len(missing)} such); choose a "
                "folder with the whole model"
            )
        named = {_of_text_model(n): w for n, w in model.state_dict().items()}
        return {n: w for n, w in named.items() if n in wanted}

    def save_checkpoint(
        self, state_dict: dict[str, Any], epoch: int | str, adapter_only: bool = False
    ) -> None:
        """Write ``output_dir/epoch_{epoch}``: the model, unless ``adapter_only``, and the adapter,
        if there is one.
        """
        folder = self._output_dir / f"epoch_{epoch}"
        folder.mkdir(parents=True, exist_ok=True)
        if not adapter_only:
            # A copy, because save_pretrained empties it.
            weights = dict(state_dict[training.MODEL_KEY])
            dtype = next(w.dtype for w in weights.values() if w.is_floating_point())
            model = empty_model(str(self._folder)).to(dtype)  # for config.json
            with _no_progress_bars():
                model.save_pretrained(folder, state_dict=weights)
        # After save_pretrained, which makes a generation_config.json of config.json.
        for path in self._folder.iterdir():
            is_written = path.name == "config.json" and not adapter_only
            if path.is_file() and not (is_written or path.name.endswith(_WEIGHTS)):
                shutil.copy2(path, folder)
        if (named := self._folder / _TEMPLATES).is_dir():
            shutil.copytree(named, folder / _TEMPLATES, dirs_exist_ok=True)
        if training.ADAPTER_KEY in state_dict:
            adapter = state_dict[training.ADAPTER_KEY]
            torch.save(adapter, folder / "adapter_model.pt")
            config = {
                **state_dict[training.ADAPTER_CONFIG],
                "base_model_name_or_path": self.repo_id,
            }
            # PEFT loads the whole model, with its encoder of images.
            if whole := self._text_model:
                text, inner = whole
                adapter = {
                    f"{inner}{name.removeprefix(text)}": weight
                    for name, weight in adapter.items()
                }
                layers = "|".join(map(re.escape, config["target_modules"]))
                config["target_modules"] = rf"{re.escape(inner)}\.(.*\.)?({layers})"
            weights = {peft_name(name): weight for name, weight in adapter.items()}
            save_file(weights, folder / WEIGHTS)
            (folder / CONFIG).write_text(json.dumps(config))

    @cached_property
    def _text_model(self) -> tuple[str, str] | None:
        return text_model_in(str(self._folder))


def _of_text_model(name: str) -> str:
    return name.replace("language_model.", "")


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
