"""transformers and PEFT read the exported weights and compute the same, and vice versa.

Equal to the live model: the merged checkpoint in transformers; the base in transformers with the
adapter in PEFT. A run that starts from an adapter trained and saved by PEFT equals PEFT's model.
Greedy texts of the merged checkpoint in transformers equal ours.
"""

import pytest
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from erjepa.evaluation.model import load_model
from tests.harness.models import BASE_SHAPE, write_tokenizer
from tests.harness.runs import (
    at_start,
    evaluate,
    make_config,
    overrides_for,
    predictions,
    train,
)
from tests.harness.smollm2 import FOLDER as SMOLLM2
from tests.harness.smollm2 import real
from tests.harness.transformers_models import TOKENS, from_pretrained, logits_of


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A random Qwen 2 base: biases, and rotary halves apart."""
    folder = tmp_path_factory.mktemp("qwen")
    write_tokenizer(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=BASE_SHAPE["vocab_size"],
        hidden_size=BASE_SHAPE["embed_dim"],
        intermediate_size=BASE_SHAPE["intermediate_dim"],
        num_hidden_layers=BASE_SHAPE["num_layers"],
        num_attention_heads=BASE_SHAPE["num_heads"],
        num_key_value_heads=BASE_SHAPE["num_kv_heads"],
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model = Qwen2ForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


QWEN = [
    "model=torchtune.models.qwen2.lora_qwen2",
    "model.tie_word_embeddings=True",
    "model.norm_eps=1e-6",
    "model.rope_base=10000",
    "checkpointer.model_type=QWEN2",
]


@pytest.fixture(scope="module", params=["llama", "llama_dora", "qwen", "qwen_dora"])
def run(request, base, qwen, data, tmp_path_factory):
    """The base and the checkpoint of a finished run, and the logits of its live model."""
    output_dir = tmp_path_factory.mktemp(request.param)
    folder = qwen if request.param.startswith("qwen") else base
    overrides = overrides_for(
        folder, data, output_dir, stop__steps=4, optimizer__lr=3e-2
    )
    overrides.append(f"model.use_dora={request.param.endswith('dora')}")
    if folder is qwen:
        overrides = [o for o in overrides if "scale_factor" not in o] + QWEN
    (logits,) = train(
        make_config(overrides), 1, lambda recipe: logits_of(recipe._model.decoder)
    )
    return folder, output_dir / "epoch_0_step_4", logits, overrides


def test_the_run_moved_the_model(run):
    base, _, logits, _ = run
    assert (logits_of(from_pretrained(base)) - logits).abs().max() > 0.1


def test_evaluation_computes_the_same(run, tmp_path):
    _, checkpoint, logits, overrides = run
    cfg = make_config([*overrides, f"output_dir={tmp_path}"])
    scored = load_model(cfg, torch.device("cpu"), checkpoint)
    torch.testing.assert_close(logits_of(scored), logits, rtol=0, atol=1e-4)


def test_merged_checkpoint_in_transformers(run):
    _, checkpoint, logits, _ = run
    loaded = logits_of(from_pretrained(checkpoint))
    torch.testing.assert_close(loaded, logits, rtol=0, atol=1e-4)


def test_adapter_in_peft_and_back(run, tmp_path):
    """The adapter names its base; PEFT changes it, and a run starts from what PEFT saved."""
    base, checkpoint, logits, overrides = run
    model = AutoPeftModelForCausalLM.from_pretrained(
        checkpoint / "adapter", is_trainable=True, dtype=torch.float32
    )
    assert model.peft_config["default"].base_model_name_or_path == str(base)
    torch.testing.assert_close(logits_of(model), logits, rtol=0, atol=1e-4)

    model.train()(TOKENS, labels=TOKENS).loss.backward()
    parameters = [p for p in model.parameters() if p.requires_grad]
    torch.optim.AdamW(parameters, lr=3e-2).step()
    model.save_pretrained(tmp_path / "peft")
    theirs = logits_of(model)
    assert (theirs - logits).abs().max() > 0.1
    keys = [f"output_dir={tmp_path}/run", f"init_from={tmp_path}/peft"]
    cfg = make_config([*overrides, *keys])
    ours = at_start(cfg, 1, lambda recipe: logits_of(recipe._model.decoder))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def greedy_in_transformers(folder, prompts, max_new_tokens, stop_tokens):
    """New tokens of each prompt, without what ends them."""
    model = from_pretrained(folder)
    texts = []
    for prompt in prompts:
        output = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            eos_token_id=stop_tokens,
            pad_token_id=stop_tokens[0],
        )[0, len(prompt) :].tolist()
        texts.append(output[:-1] if output[-1] in stop_tokens else output)
    return texts


def trained_config(name, output_dir, *overrides):
    """A short fp32 run of a packaged config on the embedded pairs."""
    cfg = make_config(
        [
            f"output_dir={output_dir}",
            "dataset=erjepa.datasets.synthetic_nl_rx_dataset",
            "eval_dataset=erjepa.datasets.synthetic_nl_rx_dataset",
            "dataset.split=train",
            "eval_dataset.split=test",
            "dataset.size=64",
            "eval_dataset.size=50",
            "device=cpu",
            "dtype=fp32",
            "lr_scheduler.num_warmup_steps=0",
            *overrides,
        ],
        name,
    )
    return cfg, cfg.tokenizer.build()


def test_transformers_loads_the_weights_in_the_dtype_in_which_they_are_stored(tmp_path):
    """Not in bfloat16, that of the base."""
    cfg, _ = trained_config("tiny_synth", tmp_path, "stop.steps=1")
    train(cfg)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "epoch_0_step_1")
    assert model.dtype == torch.float32


@pytest.mark.slow
def test_greedy_tokens_of_the_embedded_base(tmp_path):
    cfg, tokenizer = trained_config(
        "tiny_synth", tmp_path, "dataset.size=800", "max_new_tokens=24"
    )
    train(cfg)
    assert evaluate(cfg).examples_per_second > 0
    prompts = cfg.eval_dataset.build(tokenizer)
    theirs = greedy_in_transformers(
        tmp_path / "epoch_0",
        [prompts.prompt(i) for i in range(50)],
        24,
        tokenizer.stop_tokens,
    )
    ours = [p["output"] for p in predictions(tmp_path, "epoch_0")]
    assert [tokenizer.decode(tokens) for tokens in theirs] == ours
    assert len(set(ours)) > 10


@real
@pytest.mark.slow
def test_smollm2_leaves(tmp_path):
    """Merged and adapter logits, and greedy text from a chat in transformers alone."""
    cfg, _ = trained_config(
        "smollm2_135m_synth",
        tmp_path,
        f"checkpointer.checkpoint_dir={SMOLLM2}",
        f"tokenizer.path={SMOLLM2}/tokenizer.json",
        "batch_size=4",
        "stop.steps=4",
        "max_new_tokens=24",
        "eval_batch_size=25",
        "row_length=null",
    )
    tokens = torch.randint(0, 49_152, (1, 60))

    def logits(model):  # of up to 36, which rounding in float32 changes by 1e-4
        return logits_of(model.double(), tokens).float()

    (ours,) = train(cfg, 1, lambda recipe: logits(recipe._model.decoder))
    checkpoint = tmp_path / "epoch_0_step_4"
    base = logits(from_pretrained(SMOLLM2))
    assert (base - ours).abs().max() > 0.1
    merged = logits(from_pretrained(checkpoint))
    torch.testing.assert_close(merged, ours, rtol=0, atol=1e-4)
    model = PeftModel.from_pretrained(from_pretrained(SMOLLM2), checkpoint / "adapter")
    torch.testing.assert_close(logits(model), ours, rtol=0, atol=1e-4)

    evaluate(cfg)
    written = predictions(tmp_path, "epoch_0_step_4")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    system = cfg.eval_dataset.build(cfg.tokenizer.build()).messages(0)[0]
    chats = [
        [
            {"role": "system", "content": system.text_content},
            {"role": "user", "content": p["prompt"]},
        ]
        for p in written
    ]
    prompts = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_dict=False
    )
    theirs = greedy_in_transformers(checkpoint, prompts, 24, [2, 0])
    assert tokenizer.batch_decode(theirs) == [p["output"] for p in written]
    assert len(written) == 50
