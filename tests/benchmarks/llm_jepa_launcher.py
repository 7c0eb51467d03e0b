"""Run LLM-JEPA's ``finetune.py`` one step per request, on a GPU if there is one.

    python llm_jepa_launcher.py CHECKOUT MODEL [arguments of finetune.py]

Runs in LLM-JEPA's own Python environment and imports nothing of this project. Writes ``ready`` to
standard output before the first step, then takes one step per line of standard input and writes
its duration in seconds. MODEL has a tokenizer in Llama 3's format, which is converted to Hugging
Face's.
"""

import fcntl
import json
import os
import runpy
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers.convert_slow_tokenizer import TikTokenConverter

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}"
    "<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
)


def main() -> None:
    checkout, model, *arguments = sys.argv[1:]
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    on_gpu = torch.cuda.is_available()

    class StepOnCommand(transformers.TrainerCallback):
        seconds = None

        def on_step_begin(self, args, state, control, **kwargs):
            channel.write("ready\n" if self.seconds is None else f"{self.seconds}\n")
            if not sys.stdin.readline():
                os._exit(0)
            self.start = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            if on_gpu:
                torch.cuda.synchronize()
            self.seconds = time.perf_counter() - self.start

    # Processes that start side by side share MODEL.
    with (Path(model) / "special_tokens.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (Path(model) / "tokenizer_config.json").exists():
            convert_tokenizer(Path(model))
    if not on_gpu:
        torch.cuda.current_device = lambda: 0
    check = transformers.TrainingArguments.__post_init__

    def check_quietly(self):
        self.use_cpu, self.save_strategy, self.disable_tqdm = not on_gpu, "no", True
        check(self)

    transformers.TrainingArguments.__post_init__ = check_quietly
    prepare = transformers.Trainer.__init__

    def prepare_with_callback(self, *args, **kwargs):
        prepare(self, *args, **kwargs)
        self.add_callback(StepOnCommand())

    transformers.Trainer.__init__ = prepare_with_callback
    sys.argv = ["finetune.py", "--model_name", model, *arguments]
    runpy.run_path(str(Path(checkout) / "finetune.py"), run_name="__main__")


def convert_tokenizer(model: Path) -> None:
    """Write MODEL's tokenizer for ``AutoTokenizer``; predictor tokens take reserved places.

    So LLM-JEPA has no tokens to add, and the vocabulary keeps its size.
    """
    added = json.loads((model / "special_tokens.json").read_text())["added_tokens"]
    names = [token["content"] for token in sorted(added, key=lambda t: t["id"])]
    needed = [f"<|predictor_{i}|>" for i in range(1, 11)] + ["<|perception|>"]
    names[-len(needed) :] = needed
    converter = TikTokenConverter(
        str(model / "tokenizer.model"), additional_special_tokens=names
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(),
        bos_token="<|begin_of_text|>",
        eos_token="<|eot_id|>",
        pad_token="<|finetune_right_pad_id|>",
        additional_special_tokens=needed,
        chat_template=TEMPLATE,
    ).save_pretrained(model)


if __name__ == "__main__":
    main()
