"""A transformers model on packed rows equals the same model on each text alone.

Hidden states and logits of a tree equal those of its paths, also for layers with a window. The
loss and its gradients equal torchtune's on the same weights. Where rows have one text each, they
equal those of every text in a pass of its own. Prompts equal those of transformers' own template,
and answers those of ``generate``.
"""

import copy
import json
import random
import resource
import sys
from array import array
from contextlib import nullcontext
from dataclasses import replace
from itertools import islice, product
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
)
from torch.nn.attention.flex_attention import flex_attention
from torchtune.data import Message
from torchtune.models.convert_weights import hf_to_tune
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
)
from transformers.integrations.flex_attention import WrappedFlexAttention

from erjepa.checkpoints.served_chat import ServedChat
from erjepa.commands.doctor.checks import rank_of
from erjepa.commands.doctor.memory import LiveBytes, activation_bytes
from erjepa.configs import load
from erjepa.datasets import ChatTemplate, Pair
from erjepa.evaluation.generation import generate_greedy
from erjepa.models.transformers import (
    TransformersCheckpointer,
    TransformersDecoder,
    TransformersTokenizer,
    lora_decoder,
)
from erjepa.models.transformers import decoder as full_decoder
from erjepa.models.transformers.builders import empty_model
from erjepa.objective import JEPALoss, PackedDecoder
from erjepa.packing import PairCollator, attention_mask
from erjepa.training.model.build import build_model, checkpoint_layers
from erjepa.training.run.packed_rows import require_packable
from tests.harness.models import BASE_SHAPE, random_pairs, write_base
from tests.harness.transformers_models import (
    FAMILIES,
    MAMBA,
    STATEFUL,
    STRICT,
    TEMPLATE,
    VOCAB,
    random_model,
    write_folder,
)
from tests.reference.llm_jepa import llm_jepa_loss

CPU = torch.device("cpu")


def tree(prefix: int, *branches: int):
    """A row: a shared prefix, then branches; its tokens, ends, depths, and each path's columns."""
    length = prefix + sum(branches)
    tokens = torch.randint(
        3, VOCAB, (1, length), generator=torch.Generator().manual_seed(1)
    )
    end, depth, paths = [length] * prefix, list(range(prefix)), []
    for branch in branches:
        first = len(end)
        end += [first + branch] * branch
        depth += range(prefix, prefix + branch)
        paths.append([*range(prefix), *range(first, first + branch)])
    return tokens, torch.tensor([end]).int(), torch.tensor([depth]), paths


@pytest.mark.parametrize(
    ("family", "attention"),
    [
        *product(FAMILIES, ["dense", "flex"]),
        pytest.param("llama", "compiled flex", marks=pytest.mark.slow),
    ],
)
def test_a_tree_is_read_as_its_paths(family, attention, monkeypatch):
    model = random_model(family)
    if attention == "flex":
        monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda _: flex_attention)
    attention = attention.removeprefix("compiled ")
    if attention == "flex" and (
        not model._supports_flex_attn or family == "gpt_oss"  # its sinks need a GPU
    ):
        pytest.skip("no FlexAttention on a CPU")
    # Whole blocks for FlexAttention, longer than every window.
    tokens, end, depth, paths = tree(60, 40, 28)
    with torch.no_grad():
        expected = [model(tokens[:, path], use_cache=False).logits[0] for path in paths]
        decoder = TransformersDecoder(model)
        decoder.attend_by(attention)
        hidden = decoder.body(decoder.tok_embeddings(tokens), end, depth, attention)
        found = decoder.logits(hidden[0])
    for path, logits in zip(paths, expected, strict=True):
        torch.testing.assert_close(found[path], logits, rtol=0, atol=3e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_a_tree_are_those_of_its_paths(family):
    """Every weight's, of the next-token loss of all paths."""
    model = random_model(family)
    tokens, end, depth, paths = tree(20, 14, 9)
    weights = [p for p in model.parameters() if p.requires_grad]

    def gradients(logits):
        losses = [
            torch.nn.functional.cross_entropy(of_path[:-1], tokens[0, path][1:])
            for of_path, path in zip(logits, paths, strict=True)
        ]
        return torch.autograd.grad(sum(losses), weights)

    expected = gradients(
        [model(tokens[:, path], use_cache=False).logits[0] for path in paths]
    )
    decoder = TransformersDecoder(model)
    decoder.attend_by("dense")
    hidden = decoder.body(decoder.tok_embeddings(tokens), end, depth, "dense")
    found = decoder.logits(hidden[0])
    for mine, theirs in zip(
        gradients([found[p] for p in paths]), expected, strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


BY_LAYER = {  # embeddings of tokens for each layer
    **{"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8, "laurel_rank": 8},
    **{"vocab_size_per_layer_input": VOCAB, "activation_sparsity_pattern": [0.0] * 3},
    **{"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
    "head_dim": 8,
}
LINEAR = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "head_dim": 8},
    **{"linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4},
    **{"num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "shared_expert_intermediate_size": 16,
}
# Gemma 4 looks up the tokens of embeddings in its table.
MIXES = [family for family in STATEFUL if family != "gemma4_text"]


def perturbed(family, attention="dense", **extra):
    """A model whose weights that are zero at first count too, and three pairs."""
    decoder = TransformersDecoder(random_model(family, **extra))
    for weight in decoder.parameters():
        weight.data += 0.05 * torch.randn_like(weight)
    pairs = random_pairs(3)
    return PackedDecoder(decoder, attention=attention), pairs


@pytest.mark.parametrize(
    ("family", "extra", "message"),
    [
        *((family, {}, "differ by") for family in MIXES),
        ("bamba", {"attn_layer_indices": [1], **MAMBA}, "differ by"),
        ("qwen3_next", LINEAR, "differ by"),
        ("gemma3n_text", BY_LAYER, "differ by"),
        ("mamba", {}, "NAME cannot read the rows of this run: The size"),
    ],
)
def test_a_model_that_mixes_the_texts_of_a_row_reads_a_text_per_row(
    family, extra, message
):
    model, pairs = perturbed(family, **extra)
    assert not model.decoder.reads_packed_rows
    with pytest.raises(ValueError, match=message):
        require_packable(model, pairs, CPU, "NAME")
    model.attend_by("causal")
    require_packable(model, pairs, CPU, "NAME")


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe"])
@pytest.mark.parametrize("attention", ["dense", "causal"])
def test_a_model_that_attends_under_a_mask_reads_any_rows(family, attention):
    model, pairs = perturbed(family, attention)
    assert model.decoder.reads_packed_rows
    require_packable(model, pairs, CPU, "NAME")


def test_the_remedy_is_named(monkeypatch):
    model, pairs = perturbed("lfm2")
    with pytest.raises(ValueError, match="rounding .*; set attention=causal, a text"):
        require_packable(model, pairs, CPU, "NAME")
    body = TransformersDecoder.body

    def sees_later_tokens(*arguments):
        hidden = body(*arguments)
        return hidden + hidden[:, -1:]

    monkeypatch.setattr(TransformersDecoder, "body", sees_later_tokens)
    model.attend_by("causal")
    with pytest.raises(ValueError, match="differ by .*; choose another model"):
        require_packable(model, pairs, CPU, "NAME")


def test_a_model_without_layers_is_refused():
    with pytest.raises(ValueError, match="BloomModel has no layers"):
        TransformersDecoder(random_model("bloom"))


@pytest.mark.parametrize("family", STATEFUL)
@pytest.mark.parametrize("num_batches", [1, 2])
def test_the_loss_and_its_gradients_of_rows_of_one_text(family, num_batches):
    """Equal those of every text in a pass of its own, by the model's own functions."""
    model = random_model(family)
    reads_tokens, ids = family == "gemma4_text", [94, 95]
    packed = PackedDecoder(
        TransformersDecoder(model),
        num_trained_tokens=0 if reads_tokens else 2,
        attention="causal",
    )
    pairs = random_pairs(5)
    weights = [p for p in packed.parameters() if p.requires_grad]
    if not reads_tokens:
        torch.nn.init.normal_(packed.predictor, std=0.5)

    def last_hidden(text, predictor=()):
        tokens = torch.tensor([[*text, *predictor]])
        if not predictor or reads_tokens:
            return model.base_model(input_ids=tokens).last_hidden_state[0, -1]
        of_text = model.get_input_embeddings()(tokens[:, : len(text)])
        embeddings = torch.cat([of_text, packed.predictor[None]], dim=1)
        return model.base_model(inputs_embeds=embeddings).last_hidden_state[0, -1]

    lm, jepa = [], []
    for pair in pairs:
        full = torch.tensor([*pair.source, *pair.bridge, *pair.target])
        logits, n = model(full[None]).logits[0].float(), len(pair.target)
        lm.append(F.cross_entropy(logits[-n - 1 : -1], full[-n:], reduction="sum"))
        p, z = last_hidden(pair.source, ids), last_hidden(pair.target_view)
        jepa.append(1 - F.cosine_similarity(p, z, dim=0))
    labels = sum(len(pair.target) for pair in pairs)
    expected = sum(lm) / labels + 0.7 * sum(jepa) / len(pairs)
    gradients = torch.autograd.grad(expected, weights, allow_unused=True)

    collator = PairCollator(predictor_ids=ids, pad_id=0, attention="causal")
    loss_fn, found = JEPALoss(jepa_weight=0.7), 0.0
    for batch in collator.split(pairs, num_batches):
        found += loss_fn(packed(batch), batch, labels, len(pairs))[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    mine = torch.autograd.grad(found, weights, allow_unused=True)
    for gradient, other in zip(mine, gradients, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", STATEFUL)
def test_layers_of_every_kind_are_recomputed(family):
    """OLMo Hybrid has a class for layers with attention, and one for those without."""
    model = PackedDecoder(TransformersDecoder(random_model(family)), attention="causal")
    batch = PairCollator(views="none", attention="causal")(random_pairs(4))
    loss_fn = JEPALoss(jepa_weight=0)

    def gradient():
        model.zero_grad()
        loss_fn(model(batch), batch, batch.num_labels, 4)[0].backward()
        return model.decoder.tok_embeddings.weight.grad

    expected = gradient()
    checkpoint_layers(model.train())
    layers = model.decoder.layers
    assert all(isinstance(layer, CheckpointWrapper) for layer in layers)
    torch.testing.assert_close(gradient(), expected)


@pytest.mark.parametrize(
    ("family", "extra"),
    [(family, {}) for family in STATEFUL]
    + [
        ("lfm2", {"conv_bias": True}),
        ("falcon_h1", {"mamba_proj_bias": True}),
        ("granitemoehybrid", {"mamba_proj_bias": True}),
        ("nemotron_h", {"use_bias": True}),
        ("recurrent_gemma", {"lru_width": 32, "attention_window_size": 16}),
    ],
)
def test_answers_of_padded_prompts_are_those_of_each_alone(family, extra):
    model = random_model(family, **extra)
    for weight in model.parameters():  # biases start at zero
        weight.data += 0.1 * torch.randn_like(weight)
    decoder = TransformersDecoder(model)
    decoder.attend_by("causal")
    limits = {"max_new_tokens": 8, "stop_tokens": []}
    prompts = [[5, 6, 7, 8, 9], [40, 41], [3, 77, 5, 9, 60, 61, 62]]
    alone = [decoder.generate_greedy([p], **limits)[0] for p in prompts]
    assert decoder.generate_greedy(prompts, **limits) == alone


def test_adapters_are_for_layers_that_are_called(tmp_path):
    """In training, Mamba's fused kernels read the weight of ``out_proj``."""
    folder = str(write_folder(tmp_path, "falcon_h1"))
    names = {n.split(".")[-3] for n in adapter_names(lora_decoder(folder))}
    assert "in_proj" in names and "out_proj" not in names
    with pytest.raises(ValueError, match="out_proj is not a linear layer .* that adap"):
        lora_decoder(folder, lora_target_modules=["out_proj"])


def adapter_names(decoder):
    return [name for name, _ in decoder.named_parameters() if "lora_a" in name]


def test_stored_constants_are_loaded_and_saved(tmp_path):
    """Such as the factor of each layer in Gemma 4, a buffer."""
    folder = write_folder(tmp_path / "base", "gemma4_text")
    name = "model.layers.1.layer_scalar"
    weights = load_file(folder / "model.safetensors")
    weights[name] = torch.full_like(weights[name], 0.25)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    decoder, loaded = lora_decoder(str(folder)), checkpointer.load_checkpoint()["model"]
    assert float(loaded[name]) == 0.25
    assert not decoder.get_parameter(name).requires_grad
    checkpointer.save_checkpoint({"model": loaded}, 0)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "epoch_0")
    assert float(again.model.layers[1].layer_scalar) == 0.25


def test_stored_constants_of_other_types_are_refused(tmp_path, monkeypatch):
    """Such as the table of experts by token in DeepSeek-V4."""
    from_config = AutoModelForCausalLM.from_config

    def with_table(*args, **kwargs):
        model = from_config(*args, **kwargs)
        model.model.layers[0].register_buffer(
            "table", torch.zeros(3, dtype=torch.int64)
        )
        return model

    folder = str(write_folder(tmp_path, "llama"))
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", with_table)
    with pytest.raises(ValueError, match="layers.0.table, a buffer of torch.int64"):
        lora_decoder(folder)


def test_trained_predictor_tokens_are_for_layers_that_read_embeddings(tmp_path):
    folder = write_folder(tmp_path, "gemma4_text")
    overrides = [f"model.path={folder}", "device=cpu", "dtype=fp32"]
    cfg = load("hf_continual", overrides)
    with pytest.raises(ValueError, match="train_predictor_tokens=True trains embedd"):
        build_model(cfg, CPU, 1, "dense")
    frozen = replace(cfg, train_predictor_tokens=False)
    for attention in ("dense", "flex"):  # rows of one text need no blocks
        cut = replace(frozen, row_length=None)
        assert build_model(cut, CPU, 1, attention)[0].attention == "causal"
    as_set = replace(frozen, attention="dense")
    assert build_model(as_set, CPU, 1, "dense")[0].attention == "dense"


def test_constants_are_not_fine_tuned(tmp_path):
    folder = str(write_folder(tmp_path, "gemma4_text"))
    message = "layer_scalar, a constant .*; train adapters: set model=erjepa.models"
    with pytest.raises(ValueError, match=message):
        full_decoder(folder)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer"),
        dist.DistBackendError("NCCL communicator was aborted"),
    ],
)
def test_a_full_gpu_or_a_lost_rank_is_no_fault_of_the_model(monkeypatch, error):
    pairs, model = random_pairs(1), random_model("llama")
    model = PackedDecoder(TransformersDecoder(model))

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(model, "forward", fail)
    with pytest.raises(type(error)):
        require_packable(model, pairs, CPU, "NAME")


@pytest.mark.parametrize("family", ["llama", "lfm2"])
def test_a_state_is_noticed_in_long_texts_in_bfloat16(family):
    """It changes few of their tokens, and rounding changes all."""
    extra = {"layer_types": ["conv", "full_attention", "conv"]}
    extra = {"initializer_range": 0.1, **(extra if family == "lfm2" else {})}
    rng = random.Random(0)
    segments = (array("i", rng.choices(range(3, 90), k=200)) for _ in range(20))
    pairs = [Pair(i, *islice(segments, 5)) for i in range(2)]
    model = PackedDecoder(TransformersDecoder(random_model(family, **extra).bfloat16()))
    refused = pytest.raises(ValueError, match="differ by")
    with refused if family == "lfm2" else nullcontext():
        require_packable(model, pairs, CPU, "NAME")


def test_a_state_is_noticed_that_reaches_one_token():
    extra = {"layer_types": ["full_attention"] * 2 + ["conv"], "conv_L_cache": 2}
    model, pairs = perturbed("lfm2", **extra)
    with pytest.raises(ValueError, match="differ by"):
        require_packable(model, pairs, CPU, "NAME")


@pytest.mark.parametrize(("every", "is_refused"), [(20, False), (2, True)])
def test_rounding_may_carry_single_tokens_far(monkeypatch, every, is_refused):
    """As in fine-tuned models in bfloat16, whose kernels for a mask round in another way."""
    body = TransformersDecoder.body

    def far(*arguments):
        hidden = body(*arguments)
        if arguments[-1] == "dense":
            hidden[:, ::every] *= -1
        return hidden

    monkeypatch.setattr(TransformersDecoder, "body", far)
    model, pairs = perturbed("llama")
    with pytest.raises(ValueError, match="differ by") if is_refused else nullcontext():
        require_packable(model, pairs, CPU, "NAME")


def test_a_text_of_longrope_has_the_original_positions():
    """A longer one would change the frequencies of all texts in its row."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4}
    rope |= {"long_factor": [4.0] * 4}
    positions = {"original_max_position_embeddings": 90, "initializer_range": 0.5}
    model = random_model("phi3", rope_parameters=rope, **positions)
    tokens, _, _, (path, _) = tree(60, 40, 28)
    with torch.no_grad():
        alone = model(tokens[:, path[:90]]).logits
        longer = model(tokens[:, path]).logits[:, :90]
    assert (longer - alone).abs().max() > 0.01
    assert TransformersDecoder(model).max_seq_len == 90


def test_a_leak_in_the_mask_is_found_whoever_leaks(monkeypatch):
    from torchtune.models.llama3_2 import llama3_2

    def leaky(end, dtype, attention, **_):
        return attention_mask(torch.full_like(end, end.shape[1]), dtype, attention)

    torch.manual_seed(0)
    model = PackedDecoder(llama3_2(**BASE_SHAPE))
    pairs = random_pairs(3)
    require_packable(model, pairs, CPU, "NAME")
    monkeypatch.setattr("erjepa.objective.backend.attention_mask", leaky)
    with pytest.raises(ValueError, match="model: NAME .* differ by"):
        require_packable(model, pairs, CPU, "NAME")
    assert model.attention == "dense" and model.training


# ---------------------------------------------------------------- beside torchtune


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A Llama of torchtune's and of transformers', with the same weights and adapters."""
    from torchtune.models.llama3_2 import lora_llama3_2

    folder = write_base(tmp_path_factory.mktemp("llama"))
    names = {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    }
    theirs = lora_decoder(str(folder), lora_rank=4, lora_alpha=8)
    base = TransformersCheckpointer(str(folder), str(folder / "out")).load_checkpoint()
    weights = dict(base["model"])
    generator = torch.Generator().manual_seed(0)
    adapters = {
        name: 0.1 * torch.randn(p.shape, generator=generator)
        for name, p in theirs.named_parameters()
        if "lora" in name
    }
    assert {name.split(".")[-3] for name in adapters} == names
    theirs.load_state_dict(weights | adapters)

    heads = {"num_heads": BASE_SHAPE["num_heads"], "dim": BASE_SHAPE["embed_dim"]}
    heads["num_kv_heads"] = BASE_SHAPE["num_kv_heads"]
    ours = lora_llama3_2(
        **BASE_SHAPE,
        lora_attn_modules=["q_proj", "k_proj", "v_proj", "output_proj"],
        apply_lora_to_mlp=True,
        lora_rank=4,
        lora_alpha=8,
    )
    converted = hf_to_tune(weights, **heads)
    head_dim = heads["dim"] // heads["num_heads"]
    renamed = {
        **{"model.": "", "self_attn": "attn", "o_proj": "output_proj"},
        **{"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"},
    }
    for name, weight in adapters.items():
        kind = name.split(".")[-3]
        if kind in ("q_proj", "k_proj") and "lora_b" in name:  # rotary halves
            weight = weight.view(-1, 2, head_dim // 2, weight.shape[1])
            weight = weight.transpose(1, 2).reshape(-1, weight.shape[-1])
        for theirs_name, ours_name in renamed.items():
            name = name.replace(theirs_name, ours_name)
        converted[name] = weight
    ours.load_state_dict(converted)
    return ours, theirs


def test_the_loss_and_its_gradients_are_torchtunes(both):
    pairs = random_pairs(6)
    collator = PairCollator(predictor_ids=[94, 95], pad_id=0)
    batch, loss_fn = collator(pairs), JEPALoss()
    found = []
    for decoder in both:
        decoder.zero_grad()
        model = PackedDecoder(decoder, num_trained_tokens=2)
        with torch.no_grad():
            rows = torch.linspace(-1, 1, model.predictor.numel())
            model.predictor.copy_(rows.view_as(model.predictor))
        loss, _ = loss_fn(model(batch), batch, batch.num_labels, batch.num_pairs)
        loss.backward()
        norms = [
            p.grad.norm() for n, p in decoder.named_parameters() if "v_proj.lora" in n
        ]
        found.append(torch.stack([loss.detach(), model.predictor.grad.norm(), *norms]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_attention_dropout_is_refused_with_flex_attention():
    """transformers would refuse it in the first step, since it is applied in training only."""
    model = random_model("llama")
    model.config.attention_dropout = 0.1
    decoder = TransformersDecoder(model)
    with pytest.raises(ValueError, match="attention_dropout=0.1.*set attention=dense"):
        decoder.attend_by("flex")
    decoder.attend_by("dense")


def test_training_goes_on_with_its_attention_after_answers(monkeypatch):
    """Answers are generated without the masks of packed rows, such as in a validation."""
    monkeypatch.setattr(WrappedFlexAttention, "__call__", lambda _: flex_attention)
    decoder = TransformersDecoder(random_model("llama"))
    tokens, end, depth, _ = tree(60, 40, 28)
    decoder.attend_by("flex")

    @torch.no_grad()
    def hidden():
        embedded = decoder.tok_embeddings(tokens)
        return decoder.body(embedded, end, depth, "flex")

    expected = hidden()
    prompts = [[3, 4, 5], [6, 7]]
    limits = {"max_new_tokens": 2, "stop_tokens": [1]}
    assert decoder.generate_greedy(prompts, **limits)
    assert torch.equal(hidden(), expected)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_memory_on_a_gpu_is_forecast_as_torchtunes(both, checkpointing):
    """No scores of attention, which fused kernels do not keep; recomputed layers as such."""
    collator = PairCollator(row_length=512, predictor_ids=[94, 95])
    batch = collator(random_pairs(40))
    overrides = [f"enable_activation_checkpointing={checkpointing}"]
    cfg, found = load("tiny_synth", overrides), []
    for decoder in both:
        model = PackedDecoder(copy.deepcopy(decoder), num_trained_tokens=2)
        model.attention = "flex"  # as built for a GPU
        gpu = torch.device("cuda")
        with rank_of(1):
            found.append(sum(activation_bytes(cfg, model, JEPALoss(), batch, gpu)))
    masks = 2 * 4 * batch.end.numel() * batch.end.shape[1]  # counted as dense
    assert 0.7 * found[0] < found[1] < 1.3 * found[0] + masks


@pytest.mark.parametrize("family", ["qwen3_moe", *STATEFUL])
def test_memory_is_forecast_as_it_is_counted(family):
    """On the meta device as on the CPU, where experts are computed apart."""
    model = PackedDecoder(TransformersDecoder(random_model(family)), attention="causal")
    batch = PairCollator(views="none", attention="causal")(random_pairs(20))
    known, loss_fn = [*model.parameters(), *model.buffers()], JEPALoss(jepa_weight=0)
    with LiveBytes(known) as live:
        loss_fn(model(batch), batch, batch.num_labels, 20)[0].backward()
    weights = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    with rank_of(1):
        found = sum(activation_bytes(load("tiny_synth"), model, loss_fn, batch, CPU))
    assert 0.95 < found / (live.peak - weights) < 1.25


def test_the_loss_and_its_gradients_are_those_of_llm_jepas_code(both):
    _, decoder = both
    predictor_ids, pairs = [94, 95], random_pairs(6)
    batch = PairCollator(views="standalone", predictor_ids=predictor_ids)(pairs)
    model = PackedDecoder(decoder)  # whose predictor tokens are not trained
    ours, _ = JEPALoss(0.5, 2.0)(model(batch), batch, batch.num_labels, batch.num_pairs)
    theirs = llm_jepa_loss(
        decoder._held["model"],
        pairs,
        predictor_ids=predictor_ids,
        pad_id=0,
        lm_weight=0.5,
        jepa_weight=2.0,
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    adapter = [p for name, p in decoder.named_parameters() if "lora" in name]
    for one, two in zip(
        torch.autograd.grad(ours, adapter),
        torch.autograd.grad(theirs, adapter),
        strict=True,
    ):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-7)


# ------------------------------------------------------------------ the tokenizer


def chat(*contents: str, system: str | None = None) -> list[Message]:
    roles = ["user", "assistant"] * len(contents)
    turns = zip(roles, contents, strict=False)
    messages = [Message(role=role, content=content) for role, content in turns]
    start = [Message(role="system", content=system)] if system else []
    return [*start, *messages]


@pytest.mark.parametrize("system", [None, "Convert."])
@pytest.mark.parametrize("template", [TEMPLATE, STRICT], ids=["default", "strict"])
def test_segments_are_those_of_the_models_own_template(tmp_path, template, system):
    if template is STRICT and system:
        pytest.skip("the template has no system message")
    folder = write_folder(tmp_path, "llama", template)
    tokenizer = TransformersTokenizer(str(folder))
    messages = chat("ask", "say", "ask more", "answer", system=system)
    source, bridge, target, source_view, target_view = (
        list(part) for part in ChatTemplate(tokenizer)(messages)
    )
    auto = AutoTokenizer.from_pretrained(folder)
    as_dicts = [{"role": m.role, "content": m.text_content} for m in messages]
    prompt = auto.apply_chat_template(
        as_dicts[:-1], add_generation_prompt=True, return_dict=False
    )
    whole = auto.apply_chat_template(as_dicts, return_dict=False)
    assert source + bridge == prompt
    assert prompt + target == whole[: len(prompt + target)]
    assert auto.decode(target) == "answer<|im_end|>"
    bos = "<|end|>" if template is STRICT else ""
    name = "model" if template is STRICT else "assistant"
    assert auto.decode(source_view) == (
        f"{bos}<|im_start|>user\nask<|im_end|>\n<|im_start|>{name}\nsay<|im_end|>\n"
        "<|im_start|>user\nask more"
    )
    assert auto.decode(target_view) == f"{bos}<|im_start|>{name}\nanswer"


# As Qwen3's: an empty thought before the last answer alone.
THINKING = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{% if loop.last and message['role'] == 'assistant' %}<think>

</think>

{% endif %}{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
<think>

</think>

{% endif %}"""
# As Phi-3's: an end of text after a chat that asks for no answer.
ENDED = """\
{%- for message in messages %}<|im_start|>{{ message['role'] }}
{{ message['content'] }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% else %}<|end|>{% endif %}"""


# As Llama 2's: a space before the token that ends a turn.
SPACED = ENDED.replace("<|im_end|>", " <|im_end|>")


@pytest.mark.parametrize(
    ("template", "thought"),
    [(THINKING, "<think>\n\n</think>\n\n"), (ENDED, ""), (SPACED, "")],
    ids=["thinking", "ended", "spaced"],
)
def test_templates_that_render_the_end_of_a_chat_differently(
    tmp_path, template, thought
):
    tokenizer = TransformersTokenizer(str(write_folder(tmp_path, "llama", template)))
    assert tokenizer.default_system_message == ""
    parts = ChatTemplate(tokenizer)(chat("ask", "answer"))
    source, bridge, target, source_view, target_view = (
        tokenizer.decode(list(part), skip_special_tokens=False) for part in parts
    )
    asked, answers = "<|im_start|>user\nask", f"<|im_start|>assistant\n{thought}"
    assert source == source_view == asked
    space = " " if template is SPACED else ""
    assert bridge == f"{space}<|im_end|>\n{answers}"
    assert target == "answer<|im_end|>"
    assert tokenizer.decode(tokenizer.stop_tokens, False) == "<|im_end|>"
    assert target_view == f"{answers}answer"


@pytest.mark.parametrize("thought", ["<think>\n", "<think>\n\n</think>\n\n"])
def test_the_target_follows_what_only_prompts_have(tmp_path, thought):
    """As DeepSeek-R1's, or with ``enable_thinking: False``, a thought that chats do not have."""
    template = TEMPLATE.replace("{% endif %}", thought + "{% endif %}")
    template = template.replace(thought, "", 1)  # not after the system message
    folder = write_folder(tmp_path, "llama", template)
    tokenizer = TransformersTokenizer(str(folder))
    messages = chat("ask", "say", "ask more", "answer", system="Convert.")
    parts = [list(part) for part in ChatTemplate(tokenizer)(messages)]
    source, bridge, target, source_view, target_view = map(
        AutoTokenizer.from_pretrained(folder).decode, parts
    )
    past = "<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\nsay<|im_end|>\n"
    answers = f"<|im_start|>assistant\n{thought}"
    assert source == (
        f"<|im_start|>system\nConvert.<|im_end|>\n{past}<|im_start|>user\nask more"
    )
    assert bridge == f"<|im_end|>\n{answers}"
    assert target == "answer<|im_end|>"
    assert source_view == f"{past}<|im_start|>user\nask more"
    assert target_view == f"{answers}answer"
    asked = [{"role": m.role, "content": m.text_content} for m in messages[:-1]]
    assert ServedChat(folder).tokens(asked) == parts[0] + parts[1]


def test_a_target_that_becomes_one_token_with_the_prompt_is_refused(tmp_path):
    folder = write_folder(tmp_path, "llama")
    values = json.loads((folder / "tokenizer.json").read_text())
    values["model"]["vocab"]["\u010a\u010a"] = 259  # two line breaks
    values["model"]["merges"] = [["\u010a", "\u010a"]]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    template = ChatTemplate(TransformersTokenizer(str(folder)))
    assert template(chat("ask", "answer"))
    with pytest.raises(ValueError, match="target begins with white space, .* remove"):
        template(chat("ask", "\n\nanswer"))


def test_rows_behind_the_vocabulary_are_reserved(tmp_path):
    tokenizer = TransformersTokenizer(str(write_folder(tmp_path, "llama")))
    reserved = [i for n, i in tokenizer.special_tokens.items() if "reserved" in n]
    assert reserved == list(range(tokenizer.vocab_size, VOCAB))


def test_a_tokenizer_without_an_end_of_text_pads(tmp_path):
    folder = write_folder(tmp_path, "llama")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"eos_token": None, "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = TransformersTokenizer(str(folder))
    assert tokenizer.pad_id == 0
    assert tokenizer.decode(tokenizer.stop_tokens, False) == "<|im_end|>"


# ------------------------------------------------------------- answers and files


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(f, marks=[] if f in ("llama", "qwen3_moe") else pytest.mark.slow)
        for f in FAMILIES
    ],
)
def test_answers_are_those_of_generate_alone(tmp_path, family):
    folder = write_folder(tmp_path, family)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    decoder = TransformersDecoder(AutoModelForCausalLM.from_pretrained(folder)).eval()
    prompts = [list(range(5, 5 + n)) for n in (3, 14, 9)]

    def alone(prompt, stops):
        return model.generate(
            torch.tensor([prompt]),
            do_sample=False,
            max_new_tokens=12,
            eos_token_id=stops,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()

    stops = [2, alone(prompts[0], None)[4]]  # ends the first answer early
    found = generate_greedy(decoder, prompts, max_new_tokens=12, stop_tokens=stops)
    for prompt, answer in zip(prompts, found, strict=True):
        expected = alone(prompt, stops)
        if expected[-1] in stops:
            expected.pop()
        assert answer == expected
    assert len(found[0]) < 12


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen3_moe"])
def test_weights_are_read_and_written_as_transformers_has_them(tmp_path, family):
    folder = write_folder(tmp_path / "base", family)
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    weights = checkpointer.load_checkpoint()["model"]
    expected = dict(AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)

    doubled = {name: 2 * weight for name, weight in weights.items()}
    checkpointer.save_checkpoint({"model": doubled}, epoch=0)
    written = AutoModelForCausalLM.from_pretrained(tmp_path / "out" / "epoch_0")
    for name, weight in written.named_parameters():
        assert torch.equal(weight, doubled[name]), name
    assert AutoTokenizer.from_pretrained(tmp_path / "out" / "epoch_0").chat_template


def test_all_chat_templates_are_copied(tmp_path):
    templates = {"default": TEMPLATE, "tool_use": "tools"}
    folder = write_folder(tmp_path / "base", "llama", templates)
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    checkpointer.save_checkpoint(checkpointer.load_checkpoint(), epoch=0)
    written = AutoTokenizer.from_pretrained(tmp_path / "out" / "epoch_0")
    assert written.chat_template == templates


def test_a_model_that_exceeds_the_memory_is_described(tmp_path):
    """The experts of a layer of DeepSeek-V3 are two tensors of tens of gigabytes."""
    AutoConfig.for_model("deepseek_v3").save_pretrained(tmp_path)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    used = pages * resource.getpagesize()
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**32, unlimited[1]))
    try:
        model = empty_model(str(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, unlimited)
    assert sum(weight.numel() for weight in model.parameters()) > 6e11


@pytest.mark.parametrize("weight", [None, torch.ones(48, 32).to(torch.float8_e4m3fn)])
def test_missing_and_quantized_weights_are_refused(tmp_path, weight):
    folder = write_folder(tmp_path / "base", "llama")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    if weight is not None:
        weights["model.layers.1.mlp.up_proj.weight"] = weight
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    said = "base has no weights for" if weight is None else "base: .* is quantized to"
    with pytest.raises(ValueError, match=said):
        checkpointer.load_checkpoint()


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    folder = write_folder(tmp_path, "llama")
    for path in folder.glob("token*"):
        path.unlink()
    with pytest.raises(ValueError, match=f"tokenizer.path={folder} has no tokenizer"):
        TransformersTokenizer(str(folder))


def test_a_layer_that_is_not_there_is_named(tmp_path):
    folder = write_folder(tmp_path, "llama")
    with pytest.raises(
        ValueError, match="wqkv is not a linear layer .* down_proj, gate"
    ):
        lora_decoder(str(folder), lora_target_modules=["q_proj", "wqkv"])


def test_an_export_is_not_called_quantized(tmp_path):
    """transformers dequantizes weights in MXFP4, gpt-oss's, on a machine without its kernels."""
    folder = write_folder(tmp_path / "base", "llama")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config))
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    checkpointer.save_checkpoint(checkpointer.load_checkpoint(), epoch=0)
    written = json.loads((tmp_path / "out" / "epoch_0" / "config.json").read_text())
    assert "quantization_config" not in written


def test_an_export_keeps_what_the_base_generates_with_and_the_weights_dtype(tmp_path):
    folder = write_folder(tmp_path / "base", "llama")
    generation = {"eos_token_id": [2, 77], "temperature": 0.6, "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    weights = checkpointer.load_checkpoint()["model"]
    weights = {name: weight.bfloat16() for name, weight in weights.items()}
    checkpointer.save_checkpoint({"model": weights}, epoch=0)
    out = tmp_path / "out" / "epoch_0"
    assert json.loads((out / "generation_config.json").read_text()) == generation
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(out).dtype == torch.bfloat16


def test_the_adapter_of_a_model_that_only_reads_images_with_texts(tmp_path):
    """In the hub's layout, which transformers converts on loading."""
    folder = write_folder(tmp_path / "base", "llama")
    vision = {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    vision |= {"hidden_size": 16, "intermediate_size": 16, "patch_size": 14}
    text = random_model("llama").config.to_dict()
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            text_config=text,
            vision_config={"model_type": "clip_vision_model", **vision},
            image_token_index=VOCAB - 1,
        )
    )
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder)
    weights = {
        name.replace("model.language_model.", "language_model.model.").replace(
            "lm_head.", "language_model.lm_head."
        ): weight
        for name, weight in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    checkpointer = TransformersCheckpointer(str(folder), str(tmp_path / "out"))
    content = checkpointer.load_checkpoint()
    name = "model.layers.0.self_attn.q_proj"
    content["adapter"] = {f"{name}.lora_a.weight": torch.ones(4, 32)}
    content["adapter_config"] = {"target_modules": ["q_proj"]}
    checkpointer.save_checkpoint(content, epoch=0)
    (stored,) = load_file(tmp_path / "out" / "epoch_0" / "adapter_model.safetensors")
    inner = "model.language_model.layers.0.self_attn.q_proj"
    assert stored == f"base_model.model.{inner}.lora_A.weight"
    assert model.get_submodule(inner)


def test_a_router_gets_no_adapter(tmp_path):
    decoder = lora_decoder(str(write_folder(tmp_path, "phimoe")), lora_rank=4)
    adapted = {n.split(".")[-3] for n, _ in decoder.named_parameters() if "lora" in n}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj"}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "t5"}, "t5 is not a decoder that generates text"),
        (
            {"model_type": "next_month"},
            "knows no model_type next_month; pip install -U",
        ),
    ],
)
def test_a_folder_without_a_decoder_is_refused(tmp_path, keys, message):
    (tmp_path / "config.json").write_text(json.dumps(keys))
    with pytest.raises(ValueError, match=message):
        lora_decoder(str(tmp_path))


def test_a_transformers_too_old_is_refused_in_one_line(monkeypatch):
    for name in [n for n in sys.modules if n.startswith("erjepa.models.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("erjepa.models.transformers")
    monkeypatch.setitem(sys.modules, "transformers.initialization", None)
    with pytest.raises(
        ValueError, match="is not a component: .*pip install -U 'erjepa"
    ):
        load("hf_continual")


DATED = "{{ strftime_now('%d %b %Y') }}" + TEMPLATE


@pytest.mark.parametrize("template", [DATED, {"default": DATED, "tool_use": "tools"}])
def test_prompts_do_not_change_from_day_to_day(tmp_path, template):
    tokenizer = TransformersTokenizer(str(write_folder(tmp_path, "llama", template)))
    tokens, _ = tokenizer.tokenize_messages(chat("ask"))
    assert tokenizer.decode(tokens).startswith("26 Jul 2024")


def test_a_template_without_an_assistants_turn_is_refused(tmp_path):
    template = "{{ messages[0]['content'] }}"
    folder = write_folder(tmp_path, "llama", template)
    with pytest.raises(ValueError, match="leaves out the last message of a chat"):
        TransformersTokenizer(str(folder))


def test_weights_are_those_that_transformers_reads(tmp_path):
    """Files of another revision, or beside the model, are not."""
    folder = write_folder(tmp_path / "base", "llama")
    expected = load_file(folder / "model.safetensors")
    other = {name: torch.zeros_like(weight) for name, weight in expected.items()}
    save_file(other, folder / "model_old.safetensors")
    read = TransformersCheckpointer(str(folder), str(tmp_path / "out")).load_checkpoint
    for _ in range(2):
        weights = read()["model"]
        assert all(w.equal(expected[name]) for name, w in weights.items())
        random_model("llama").save_pretrained(folder, max_shard_size="20KB")
        (folder / "model.safetensors").unlink(missing_ok=True)
        save_file(other, folder / "model-00009-of-00009.safetensors")
        shards = sorted(folder.glob("model-*.safetensors"))[:-1]
        expected = {n: w for shard in shards for n, w in load_file(shard).items()}
    shards[0].unlink()
    with pytest.raises(ValueError, match=f"{shards[0].name} cannot be read"):
        read()
