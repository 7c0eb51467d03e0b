"""Make the embedded model: `python -m scripts.tiny_model`.

Trains the tokenizer and a model of about a million parameters on the unpaired text of
:mod:`scripts.tiny_model.corpus`, and writes both as a Hugging Face checkpoint. The
files in `erjepa/models/tiny/` were made by this command with its default values.
"""

import argparse
import itertools
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torchtune.data import Message
from torchtune.models.convert_weights import tune_to_hf
from torchtune.models.llama3 import Llama3Tokenizer, llama3_tokenizer
from torchtune.models.llama3_2 import llama3_2
from torchtune.modules import TransformerDecoder

from erjepa.tasks.nl_rx.grammar import SYSTEM_PROMPT
from scripts.tiny_model.corpus import Corpus
from scripts.tiny_model.tokenizer import (
    SPECIAL_TOKENS_FILE,
    TOKENIZER_FILE,
    VOCAB_SIZE,
    special_token_ids,
    write_tokenizer,
)

# Arguments of llama3_2, and those of lora_llama3_2 apart from LoRA's, in torchtune.
MODEL_ARGS = {
    "vocab_size": VOCAB_SIZE,
    "num_layers": 4,
    "num_heads": 4,
    "num_kv_heads": 2,
    "embed_dim": 128,
    "max_seq_len": 512,
    "intermediate_dim": 384,
    "norm_eps": 1e-5,
    "rope_base": 10_000,
    "scale_factor": 1,  # plain rotary embeddings
}

BATCH_SIZE = 32
BATCHES_SORTED = 16
LEARNING_RATE = 3e-3
WARMUP_STEPS = 100
WEIGHT_DECAY = 0.01
TOKENIZER_CHATS = 20_000


def _tokenizer_texts(seed: int) -> Iterator[str]:
    """Yield the text to train the tokenizer on: chats and the system prompt."""
    for chat in itertools.islice(Corpus(seed), TOKENIZER_CHATS):
        yield SYSTEM_PROMPT + "\n\n"
        for message in chat:
            yield from message.values()


def _batches(
    seed: int, tokenizer: Llama3Tokenizer
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (tokens, labels), each [batch, length]; ignored labels are -100.

    Only the last message of a chat has labels, with its end of turn. Chats of similar
    length share a batch, which reduces padding.
    """
    chats = iter(Corpus(seed))
    rng = random.Random(seed)
    while True:
        rows = []
        for chat in itertools.islice(chats, BATCH_SIZE * BATCHES_SORTED):
            messages = [Message(**message, masked=True) for message in chat]
            messages[-1].masked = False
            tokens, masked = tokenizer.tokenize_messages(messages)
            labels = [-100 if m else t for t, m in zip(tokens, masked, strict=True)]
            rows.append((torch.tensor(tokens[:-1]), torch.tensor(labels[1:])))
        rows.sort(key=lambda row: len(row[0]))
        batches = [rows[i : i + BATCH_SIZE] for i in range(0, len(rows), BATCH_SIZE)]
        rng.shuffle(batches)
        for batch in batches:
            inputs, targets = map(list, zip(*batch, strict=True))
            yield (
                nn.utils.rnn.pad_sequence(inputs, True, tokenizer.pad_id),
                nn.utils.rnn.pad_sequence(targets, True, -100),
            )


def _initialize(model: TransformerDecoder) -> None:
    """Initialize weights to keep the scale of activations; less for residual projections."""
    residual_scale = 1 / math.sqrt(2 * len(model.layers))
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            is_residual = name.endswith(("output_proj.weight", "w2.weight"))
            std = parameter.shape[1] ** -0.5 * (residual_scale if is_residual else 1)
            nn.init.normal_(parameter, std=std)


def pretrain(tokenizer: Llama3Tokenizer, steps: int, seed: int) -> TransformerDecoder:
    """Train a model from scratch, in float32 on the CPU.

    ``seed`` is that of the initialization and of the corpus.
    """
    torch.manual_seed(seed)
    model = llama3_2(**MODEL_ARGS)
    _initialize(model)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=(0.9, 0.95),
        weight_decay=WEIGHT_DECAY,
    )

    def schedule(step: int) -> float:
        warmup = min(1.0, (step + 1) / WARMUP_STEPS)
        return warmup * 0.5 * (1 + math.cos(math.pi * step / steps))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    batches = itertools.islice(_batches(seed, tokenizer), steps)
    for step, (tokens, labels) in enumerate(batches, start=1):
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 100 == 0 or step == steps:
            print(f"step {step}/{steps} loss {loss.item():.3f}", flush=True)
    return model


def write_checkpoint(model: TransformerDecoder, output_dir: Path) -> None:
    """Write `model.safetensors` (bfloat16) and `config.json` in Hugging Face's layout."""
    head_dim = MODEL_ARGS["embed_dim"] // MODEL_ARGS["num_heads"]
    weights = tune_to_hf(
        {name: weight.bfloat16() for name, weight in model.state_dict().items()},
        num_heads=MODEL_ARGS["num_heads"],
        num_kv_heads=MODEL_ARGS["num_kv_heads"],
        dim=MODEL_ARGS["embed_dim"],
        head_dim=head_dim,
    )
    weights = {name: weight.contiguous() for name, weight in weights.items()}
    save_file(weights, output_dir / "model.safetensors", metadata={"format": "pt"})

    special_tokens = special_token_ids()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": special_tokens["<|begin_of_text|>"],
        "eos_token_id": special_tokens["<|end_of_text|>"],
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": MODEL_ARGS["embed_dim"],
        "intermediate_size": MODEL_ARGS["intermediate_dim"],
        "max_position_embeddings": MODEL_ARGS["max_seq_len"],
        "mlp_bias": False,
        "num_attention_heads": MODEL_ARGS["num_heads"],
        "num_hidden_layers": MODEL_ARGS["num_layers"],
        "num_key_value_heads": MODEL_ARGS["num_kv_heads"],
        "rms_norm_eps": MODEL_ARGS["norm_eps"],
        "rope_scaling": None,
        "rope_theta": float(MODEL_ARGS["rope_base"]),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": VOCAB_SIZE,
    }
    (output_dir / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def make(output_dir: Path, steps: int, seed: int) -> None:
    """Train the tokenizer and the model, and write their files."""
    # tiktoken caches files by path, so it would read the old tokenizer.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    output_dir.mkdir(parents=True, exist_ok=True)
    write_tokenizer(_tokenizer_texts(seed), output_dir)
    tokenizer = llama3_tokenizer(
        str(output_dir / TOKENIZER_FILE), str(output_dir / SPECIAL_TOKENS_FILE)
    )
    write_checkpoint(pretrain(tokenizer, steps, seed), output_dir)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1600)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    make(args.output_dir, args.steps, args.seed)


if __name__ == "__main__":
    main()
