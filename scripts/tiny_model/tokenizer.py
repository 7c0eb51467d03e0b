"""Train a small tokenizer and write it in the files that torchtune reads.

The format is that of Llama 3: a byte-level BPE with one base64 token and its rank per
line (tiktoken), and a `tokenizer.json` fragment with the special tokens, for
``torchtune.models.llama3.llama3_tokenizer(path, special_tokens_path)``.
"""

import base64
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer
from torchtune.models.llama3._tokenizer import CL100K_PATTERN, LLAMA3_SPECIAL_TOKENS

TOKENIZER_FILE = "tokenizer.model"
SPECIAL_TOKENS_FILE = "special_tokens.json"

BASE_VOCAB_SIZE = 640
NUM_SPECIAL_TOKENS = 32
VOCAB_SIZE = BASE_VOCAB_SIZE + NUM_SPECIAL_TOKENS


def special_token_ids() -> dict[str, int]:
    """Return the ids of Llama 3's first special tokens by name: those after the base tokens.

    The first are all that ``Llama3Tokenizer`` needs, the others reserved ones.
    """
    names = list(LLAMA3_SPECIAL_TOKENS)[:NUM_SPECIAL_TOKENS]
    return {name: BASE_VOCAB_SIZE + i for i, name in enumerate(names)}


def _character_bytes() -> dict[str, int]:
    """Map the printable characters of GPT-2's byte-level BPE back to bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    characters = {chr(b): b for b in printable}
    return characters | {chr(256 + i): b for i, b in enumerate(others)}


def write_tokenizer(texts: Iterable[str], output_dir: Path) -> None:
    """Train the tokenizer on texts and write its two files.

    Raises:
        ValueError: if the text is too small for ``BASE_VOCAB_SIZE`` tokens.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Sequence(
        [
            Split(Regex(CL100K_PATTERN), behavior="isolated"),
            ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = BpeTrainer(
        vocab_size=BASE_VOCAB_SIZE,
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)

    ranks = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if len(ranks) != BASE_VOCAB_SIZE:
        raise ValueError(
            f"The text gave {len(ranks)} tokens of {BASE_VOCAB_SIZE}; train on more."
        )
    characters = _character_bytes()
    lines = []
    for token, rank in ranks:
        encoded = base64.b64encode(bytes(characters[c] for c in token)).decode()
        lines.append(f"{encoded} {rank}\n")
    (output_dir / TOKENIZER_FILE).write_text("".join(lines))

    added_tokens = [
        {"id": i, "content": name} for name, i in special_token_ids().items()
    ]
    special_tokens = json.dumps({"added_tokens": added_tokens}, indent=1) + "\n"
    (output_dir / SPECIAL_TOKENS_FILE).write_text(special_tokens)
