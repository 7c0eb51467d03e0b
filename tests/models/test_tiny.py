"""The embedded base model loads in torchtune, and its script reproduces the files."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torchtune.data import Message
from torchtune.models.llama3 import llama3_tokenizer
from torchtune.models.llama3_2 import llama3_2, lora_llama3_2
from torchtune.training import FullModelHFCheckpointer

from erjepa.tasks.nl_rx.grammar import CLASSES, generate_pairs, generate_records
from scripts.tiny_model import __main__ as tiny
from scripts.tiny_model.corpus import Corpus

SHIPPED = Path(__file__).parents[2] / "erjepa" / "models" / "tiny"
FILES = ["config.json", "model.safetensors", "special_tokens.json", "tokenizer.model"]


def load_tokenizer(directory):
    return llama3_tokenizer(
        str(directory / "tokenizer.model"), str(directory / "special_tokens.json")
    )


def load_weights(directory, output_dir):
    checkpointer = FullModelHFCheckpointer(
        checkpoint_dir=str(directory),
        checkpoint_files=["model.safetensors"],
        model_type="LLAMA3_2",
        output_dir=str(output_dir),
    )
    return checkpointer.load_checkpoint()["model"]


@pytest.fixture(scope="module")
def remade(tmp_path_factory):
    """Made by the script in two steps."""
    directory = tmp_path_factory.mktemp("remade")
    tiny.make(directory, steps=2, seed=0)
    return directory


def test_shipped_files_are_small():
    assert sum(path.stat().st_size for path in SHIPPED.iterdir()) < 3_000_000


def test_shipped_model_loads_and_scores_every_token(tmp_path):
    model = llama3_2(**tiny.MODEL_ARGS)
    model.load_state_dict(load_weights(SHIPPED, tmp_path))
    tokenizer = load_tokenizer(SHIPPED)
    vocab_size = tiny.MODEL_ARGS["vocab_size"]
    assert tokenizer.vocab_size == vocab_size
    logits = model(torch.arange(vocab_size).view(2, -1))
    assert logits.shape == (2, vocab_size // 2, vocab_size)
    assert logits.isfinite().all()


def test_shipped_model_loads_under_lora(tmp_path):
    model = lora_llama3_2(
        ["q_proj", "k_proj", "v_proj", "output_proj"],
        apply_lora_to_mlp=True,
        lora_rank=4,
        lora_alpha=8,
        **tiny.MODEL_ARGS,
    )
    missing, unexpected = model.load_state_dict(
        load_weights(SHIPPED, tmp_path), strict=False
    )
    assert not unexpected
    assert missing and all(".lora_" in name for name in missing)


def test_shipped_model_has_learned_its_tasks(tmp_path):
    # Catches weights that load but were permuted, or a tokenizer of another run.
    model = llama3_2(**tiny.MODEL_ARGS)
    model.load_state_dict(load_weights(SHIPPED, tmp_path))
    tokenizer = load_tokenizer(SHIPPED)
    chats = (c for c in Corpus(seed=1) if c[0]["content"] == "Encode.")
    right = total = 0
    for chat in itertools.islice(chats, 50):
        messages = [Message(**m, masked=m["role"] != "assistant") for m in chat]
        tokens, masked = tokenizer.tokenize_messages(messages)
        with torch.no_grad():
            guesses = model(torch.tensor([tokens[:-1]]))[0].argmax(-1).tolist()
        for guess, token, m in zip(guesses, tokens[1:], masked[1:], strict=True):
            right += not m and guess == token
            total += not m
    assert right / total > 0.95


def test_config_describes_the_model():
    config = json.loads((SHIPPED / "config.json").read_text())
    with safe_open(SHIPPED / "model.safetensors", "pt") as weights:
        shapes = {k: tuple(weights.get_tensor(k).shape) for k in weights.keys()}
        dtypes = {weights.get_tensor(k).dtype for k in weights.keys()}
    dim, head_dim = config["hidden_size"], config["head_dim"]
    layer = "model.layers.{}.".format(config["num_hidden_layers"] - 1)
    assert dtypes == {getattr(torch, config["torch_dtype"])}
    assert config["tie_word_embeddings"] and "lm_head.weight" not in shapes
    assert shapes["model.embed_tokens.weight"] == (config["vocab_size"], dim)
    assert shapes[layer + "self_attn.q_proj.weight"] == (
        config["num_attention_heads"] * head_dim,
        dim,
    )
    assert shapes[layer + "self_attn.k_proj.weight"] == (
        config["num_key_value_heads"] * head_dim,
        dim,
    )
    assert shapes[layer + "mlp.gate_proj.weight"] == (config["intermediate_size"], dim)


def test_special_tokens_follow_the_base_tokens():
    tokenizer = load_tokenizer(SHIPPED)
    ids = sorted(tokenizer.special_tokens.values())
    assert ids == list(range(tokenizer.base_vocab_size, tokenizer.vocab_size))
    reserved = [n for n in tokenizer.special_tokens if "reserved_special_token" in n]
    assert len(reserved) >= 8


def test_tokenizer_round_trips():
    tokenizer = load_tokenizer(SHIPPED)
    texts = [text for p in generate_pairs(200, split="train") for text in p]
    for text in [*texts, "A tab\t, a newline\n and Ünïcode: 正则 🙂"]:
        tokens = tokenizer.encode(text, add_bos=False, add_eos=False)
        assert max(tokens) < tokenizer.base_vocab_size
        assert tokenizer.decode(tokens) == text


def test_tokenizer_is_short_on_pairs():
    tokenizer = load_tokenizer(SHIPPED)
    for record in generate_records(200, split="train"):
        messages = [Message(**m) for m in record["messages"]]
        assert len(tokenizer.tokenize_messages(messages)[0]) <= 80


def test_corpus_never_shows_a_pair():
    test_regexes = {r for _, r in generate_pairs(4983, split="test")}
    pairs = generate_pairs(16_000, split="train", seed=0)
    regex_of = dict(pairs)
    for chat in itertools.islice(Corpus(seed=0), 5000):
        contents = [message["content"] for message in chat]
        assert not test_regexes & set(contents)
        for content in contents:
            assert regex_of.get(content) not in contents
        text = "\n".join(contents)
        for regex, wordings in CLASSES.items():
            assert (
                regex == "."
                or regex not in text
                or not any(w in text for w in wordings)
            )


@pytest.mark.slow
def test_remaking_is_deterministic(remade, tmp_path):
    again, other = tmp_path / "again", tmp_path / "other"
    tiny.make(again, steps=2, seed=0)
    tiny.make(other, steps=2, seed=1)
    for name in FILES:
        assert (again / name).read_bytes() == (remade / name).read_bytes()
    name = "layers.0.attn.q_proj.weight"
    mine, others = (load_weights(one, tmp_path / "out")[name] for one in (again, other))
    assert mine.shape == others.shape and not torch.equal(mine, others)


def test_remade_tokenizer_is_the_shipped_one(remade):
    assert sorted(path.name for path in remade.iterdir()) == FILES
    for name in ("config.json", "special_tokens.json", "tokenizer.model"):
        assert (remade / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_command_line(monkeypatch):
    made = []
    monkeypatch.setattr(tiny, "make", lambda *arguments: made.append(arguments))
    argv = ["tiny", "--output-dir", "made", "--steps", "2", "--seed", "1"]
    monkeypatch.setattr("sys.argv", argv)
    tiny.main()
    assert made == [(Path("made"), 2, 1)]
