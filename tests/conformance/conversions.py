#!/usr/bin/env python3
"""Conversions between formats, judged by `pare verify`: mistakes that converters make are caught and named, and right conversions pass.

A mistake is made in the model and only then stored, so that a quantised file holds the wrong numbers, quantised well.
"""

import copy
import functools
import json
import os
import pathlib
import re
import sys
import tempfile
import types
import warnings
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import Report, pare

os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")
report = Report("conversions")
transformers = report.transformers()
[torch, peft, gguf] = report.peers("torch", "peft", "gguf")
import gguf_files
import gguf_writer
import pytorch_files
from safetensors.torch import load_file, save_file

TYPES = gguf_writer.TYPES
SIZES = dict(vocab_size=128, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
HEAD = 64
LAYER = "model.layers.1."
QUERY, KEY, VALUE, OUTPUT = (LAYER + f"self_attn.{letter}_proj.weight" for letter in "qkvo")
GATE, UP, DOWN = (LAYER + f"mlp.{name}_proj.weight" for name in ("gate", "up", "down"))
EMBEDDING = "model.embed_tokens.weight"


def rope(**more):
    return {"rope_type": "default", "rope_theta": 10000.0} | more


# ---- what is done to a state dict; a function of it and of the configuration


def each(pattern, make):
    """Every tensor whose name has the pattern, anew."""

    def change(state, config):
        for name in [name for name in state if re.search(pattern, name)]:
            state[name] = make(state[name].clone())

    return change


def both(*changes):
    return lambda state, config: [change(state, config) for change in changes]


def swapped(*pairs):
    def change(state, config):
        for a, b in pairs:
            state[a], state[b] = state[b], state[a]

    return change


def copied(*pairs):
    """Each first one gets the numbers of the second."""
    return lambda state, config: state.update({a: state[b] for a, b in pairs})


def setting(**keys):
    return lambda state, config: [setattr(config, key, value) for key, value in keys.items()]


def layers_changed(order):
    """The layers that are named, in this order."""

    def change(state, config):
        old = dict(state)
        for name in [name for name in state if name.startswith("model.layers.")]:
            del state[name]
        for new, layer in enumerate(order):
            inside = [(name, name.removeprefix(f"model.layers.{layer}.")) for name in old if name.startswith(f"model.layers.{layer}.")]
            state.update({f"model.layers.{new}.{rest}": old[name] for name, rest in inside})
        config.num_hidden_layers = len(order)

    return change


def noisy(weight):
    """Moved by one percent of the usual entry: what a step of training may do."""
    generator = torch.Generator().manual_seed(weight.numel())
    return weight + 0.01 * weight.square().mean().sqrt() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def heads_in_order(*order):
    return lambda weight: weight.reshape(-1, HEAD, *weight.shape[1:])[list(order)].reshape(weight.shape)


def columns_of_heads_in_order(*order):
    return lambda weight: heads_in_order(*order)(weight.T).T


def interleaved(weight):
    return gguf_writer.interleaved_halves(weight, weight.shape[0] // HEAD)


def in_halves(weight):
    """The way back."""
    return weight.reshape(-1, HEAD // 2, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def with_zeros(*place):
    def make(weight):
        weight[place] = 0
        return weight

    return make


def to_bfloat16(weight):
    return weight.to(torch.bfloat16).double()


def with_outliers(weight):
    weight.flatten()[torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(1))[:5]] *= 100
    return weight


def with_rows_swapped(weight):
    return weight[[1, 0, *range(2, len(weight))]]


def with_row_times(factor):
    def make(weight):
        weight[3] *= factor
        return weight

    return make


def gain_folded_and_kept(state, config):
    for letter in "qkv":
        name = LAYER + f"self_attn.{letter}_proj.weight"
        state[name] = state[name] * state[LAYER + "input_layernorm.weight"]


def head_of_another_step(state, config):
    config.tie_word_embeddings = False
    state["lm_head.weight"] = noisy(state[EMBEDDING])


# ---- an adapter, and what is done to what it adds

SCALE = 2.0  # lora_alpha / r
STRONG = 20.0  # of one that adds half as much as there is
ADAPTED = [f"model.layers.{layer}.self_attn.{letter}_proj" for layer in (0, 1) for letter in "qv"]


@functools.cache
def factors():
    """A and B of each module; what they add is about a twentieth of what they are added to."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda *shape: (0.032 * torch.randn(shape, generator=generator)).double()  # noqa: E731
    return {module: (draw(4, 256), draw(128 if "v_proj" in module else 256, 4)) for module in ADAPTED}


def added(sum_of=lambda a, b: b @ a, scale=SCALE, modules=ADAPTED):
    def change(state, config):
        for module in modules:
            state[module + ".weight"] = state[module + ".weight"] + scale * sum_of(*factors()[module])

    return change


def added_instead(*arguments, **options):
    """Of a model that has the adapter: what another way of adding makes."""
    return both(added(scale=-SCALE), added(*arguments, **options))


def by_columns(matrix):
    """Its numbers read in the other order of memory."""
    return matrix.T.reshape(matrix.shape)


def write_adapter(folder, scale):
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 4 * scale, "target_modules": ["q_proj", "v_proj"], "bias": "none"}))
    tensors = {f"base_model.model.{module}.lora_{letter}.weight": factor.float() for module, pair in factors().items() for letter, factor in zip("AB", pair)}
    save_file(tensors, folder / "adapter_model.safetensors")


# ---- models, and their reference folders

# The configuration, and what is done to the weights that were drawn.
BASES = {
    "llama": (lambda: transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-5), None),
    "llama, tied": (lambda: transformers.LlamaConfig(**SIZES, tie_word_embeddings=True), None),
    "llama, long": (lambda: transformers.LlamaConfig(**SIZES, rope_parameters=rope(rope_type="linear", factor=4.0)), None),
    "llama with adapter": (lambda: transformers.LlamaConfig(**SIZES, rms_norm_eps=1e-5), added()),
    "llama, bfloat16": (lambda: transformers.LlamaConfig(**SIZES), each("", to_bfloat16)),
    "llama, bfloat16 with strong adapter": (lambda: transformers.LlamaConfig(**SIZES), both(each("", to_bfloat16), added(scale=STRONG))),
    "llama, outliers": (lambda: transformers.LlamaConfig(**SIZES), each("proj|embed", with_outliers)),
    "llama, a matrix of zeros": (lambda: transformers.LlamaConfig(**SIZES), each(DOWN, torch.zeros_like)),
    "llama, rows of zeros": (lambda: transformers.LlamaConfig(**SIZES), each("proj|embed|lm_head", with_zeros(5))),
    "llama, small numbers": (lambda: transformers.LlamaConfig(**SIZES), each(UP, lambda weight: (1e-6 * weight).float().double())),
    "qwen2": (lambda: transformers.Qwen2Config(**SIZES), None),
    "gemma": (lambda: transformers.GemmaConfig(**SIZES, head_dim=HEAD), None),
    "gpt2": (lambda: transformers.GPT2Config(vocab_size=128, n_positions=64, n_embd=256, n_layer=2, n_head=4, n_inner=512), None),
}
FAMILIES = ["gpt2", "gemma", "gpt_neox", "falcon", "qwen2", "phi", "starcoder2"]  # of gguf_files, a width of 32


@functools.cache
def module_of(base):
    if base.startswith("small "):
        config, change = gguf_files.configurations(transformers)[base.removeprefix("small ")], None
        if hasattr(config, "intermediate_size"):
            config.intermediate_size = 64  # 48 is no whole number of blocks
    else:
        make, change = BASES[base]
        config = make()
    module = gguf_files.drawn(transformers, config)
    if change:
        state = dict(module.state_dict())
        change(state, module.config)
        module.load_state_dict(state)
    return module


def model_of(base, change=None):
    """A configuration and tensors: all that the writers ask of a model."""
    module = module_of(base)
    config, state = copy.deepcopy(module.config), dict(module.state_dict())
    config.architectures = [type(module).__name__]
    if change:
        change(state, config)
    return types.SimpleNamespace(config=config, state_dict=lambda: state)


def reference_of(base, work):
    """What stands before the candidate on the command line; each folder is written once."""
    if base.endswith("adapter"):
        plain, adapter = base.split(" with ")
        if not (work / adapter).exists():
            write_adapter(work / adapter, STRONG if "strong" in adapter else SCALE)
        return [*reference_of(plain, work), "--adapter", work / adapter]
    folder = work / f"reference {base}"
    if not folder.exists():
        copy.deepcopy(module_of(base)).to(torch.float32).save_pretrained(folder)
    return [folder]


def own_tensors(model, dtype):
    tied = getattr(model.config, "tie_word_embeddings", False)
    return {name: tensor.to(dtype).contiguous().clone() for name, tensor in model.state_dict().items() if not (tied and name == "lm_head.weight")}


def write_folder(model, folder, dtype=torch.float32, write=lambda state, folder: save_file(state, folder / "model.safetensors")):
    folder.mkdir()
    model.config.dtype = dtype
    model.config.save_pretrained(folder)
    write(own_tensors(model, dtype), folder)
    return folder


def write_gguf(model, path, kind, **options):
    gguf_writer.write(path, model, kind, **options)
    return path


def verified(reference, candidate):
    """How it ended, its document, and all that it said."""
    result = pare("verify", *reference, candidate, "--json", "--threads", "1")
    try:
        document = json.loads(result.stdout)
    except json.JSONDecodeError:
        document = {}
    return result.returncode, document, result.stdout + result.stderr


# ---- wrong conversions

STORED = {
    "float32": lambda model, work: write_folder(model, work / "folder"),
    "bfloat16": lambda model, work: write_folder(model, work / "folder", torch.bfloat16),
    "Q8_0": lambda model, work: write_gguf(model, work / "model.gguf", TYPES.Q8_0),
    "Q4_K": lambda model, work: write_gguf(model, work / "model.gguf", TYPES.Q4_K),
}
NO_KEY = dict.fromkeys(("Q8_0", "Q4_K"), "GGUF has no key for it: the name of the architecture says it")

# name: (model, mistake, words for what is no tensor, {stored type in which it cannot be made: why}).
WRONG = {
    "a square matrix transposed": ("llama", each(OUTPUT, lambda w: w.T), (), {}),
    "a square Conv1D not transposed": ("gpt2", each(r"h\.1\.attn\.c_proj\.weight", lambda w: w.T), (), {}),
    "gate and up swapped": ("llama", swapped((GATE, UP)), (), {}),
    "queries and keys interleaved": ("llama", each(r"[qk]_proj", interleaved), (), {}),
    "only the keys interleaved": ("llama", each(r"k_proj", interleaved), (), {}),
    "heads not permuted for GGUF": ("llama", each(r"[qk]_proj", in_halves), (), {}),
    "a tied head of another step": ("llama, tied", head_of_another_step, (), {}),
    "gains without their one": ("gemma", each("norm", lambda w: w - 1), (), {}),
    "an embedding that is scaled already": ("gemma", each("embed_tokens|lm_head", lambda w: 16 * w), (), {}),
    "another epsilon": ("llama", setting(rms_norm_eps=1e-6), ("epsilon",), {}),
    "another theta": ("llama", setting(rope_parameters=rope(rope_theta=500000.0)), ("theta",), {}),
    "scaled rotations forgotten": ("llama, long", setting(rope_parameters=rope()), ("rope",), {}),
    "a shorter context": ("llama", setting(max_position_embeddings=32), ("context",), {}),
    "another activation": ("gpt2", setting(activation_function="gelu"), ("activation",), NO_KEY),
    "biases of keys and values swapped": ("qwen2", swapped((KEY.replace("weight", "bias"), VALUE.replace("weight", "bias"))), (), {}),
    "a bias dropped": ("qwen2", each(QUERY.replace("weight", "bias"), torch.zeros_like), (), {}),
    "positions one row off": ("gpt2", each("wpe", lambda w: w.roll(1, 0)), (), {}),
    "a layer twice": ("llama", layers_changed([0, 0]), (), {}),
    "two layers in the other order": ("llama", layers_changed([1, 0]), (), {}),
    "the last layer dropped": ("llama", layers_changed([0]), ("layers", "blocks"), {}),
    "a stale shard": ("llama", each(LAYER, noisy), (), {}),
    "two heads of the queries swapped": ("llama", each(QUERY, heads_in_order(1, 0, 2, 3)), (), {}),
    "heads of keys and values swapped": ("llama", each(f"{KEY}|{VALUE}", heads_in_order(1, 0)), (), {}),
    "heads of the output reversed": ("llama", each(OUTPUT, columns_of_heads_in_order(3, 2, 1, 0)), (), {}),
    "keys and values swapped": ("llama", swapped((KEY, VALUE)), (), {}),
    "queries divided already": ("llama", each("q_proj", lambda w: w / HEAD**0.5), (), {}),
    "a gain folded and kept": ("llama", gain_folded_and_kept, (), {}),
    "a final norm of ones": ("llama", each(r"model\.norm", torch.ones_like), (), {}),
    "two norms swapped": ("llama", swapped((LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight")), (), {}),
    "an embedding one row off": ("llama", each(EMBEDDING, lambda w: w.roll(1, 0)), (), {}),
    "two rows of the embedding swapped": ("llama", each(EMBEDDING, with_rows_swapped), (), {}),
    "a column of zeros": ("llama", each(DOWN, with_zeros(slice(None), 7)), (), {}),
    "a matrix with the other sign": ("llama", each(OUTPUT, torch.neg), (), {}),
    "neurons permuted in the gate only": ("llama", each(GATE, lambda w: w.flip(0)), (), {}),
    "the numbers of another tensor": ("llama", copied((UP, "model.layers.0.mlp.gate_proj.weight")), (), {}),
    "one matrix of another step": ("llama", each(DOWN, noisy), (), {}),
    "an adapter without its scale": ("llama with adapter", added_instead(scale=1.0), (), {}),
    "an adapter with A by columns": ("llama with adapter", added_instead(lambda a, b: b @ by_columns(a)), (), {}),
    "an adapter with B by columns": ("llama with adapter", added_instead(lambda a, b: by_columns(b) @ a), (), {}),
    "an adapter transposed": ("llama with adapter", both(added(scale=-SCALE, modules=ADAPTED[::2]), added(lambda a, b: (b @ a).T, modules=ADAPTED[::2])), (), {}),
    "an adapter left out": ("llama with adapter", added(scale=-SCALE), (), {}),
    "an adapter left out of one module": ("llama with adapter", added(scale=-SCALE, modules=ADAPTED[3:]), (), {}),
    "an adapter merged twice": ("llama with adapter", added(), (), {}),
}

# How pare calls the modules of transformers.
OURS = {
    "embed_tokens": "embed.token",
    "wte": "embed.token",
    "wpe": "embed.position",
    "q_proj": "attention.query",
    "k_proj": "attention.key",
    "v_proj": "attention.value",
    "o_proj": "attention.output",
    "attn.c_proj": "attention.output",
    "gate_proj": "mlp.gate",
    "up_proj": "mlp.up",
    "down_proj": "mlp.down",
    "input_layernorm": "attention.norm",
    "post_attention_layernorm": "mlp.norm",
    "norm": "norm",
    "lm_head": "head",
}


def spellings(right, wrong):
    """All names of the tensors that the mistake changed: those of transformers, of GGUF and of pare."""
    names = set()
    for old, new in ((right.state_dict(), wrong.state_dict()), (gguf_writer.gguf_tensors(right), gguf_writer.gguf_tensors(wrong))):
        for name in old.keys() | new.keys():
            if name not in new or name not in old or not torch.equal(old[name], new[name]):
                names.add(name.rsplit(".", 1)[0])
    for name in [name for name in names if name.startswith(("model.", "transformer.", "lm_head"))]:
        block = re.search(r"\.(\d+)\.", name)
        module = next(OURS[key] for key in OURS if name == key or name.endswith("." + key))
        names.add(f"blocks.{block[1]}.{module}" if block else module)
    return names


def names_any(text, names):
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) for name in names)


def blamed(document):
    """What is said to be wrong. The relations of a proof name every tensor, and so count for nothing here."""
    quantised = (document.get("quantisation") or {}).get("tensors", [])
    parts = [document.get("error"), document.get("differences"), (document.get("proof") or {}).get("gaps"), (document.get("first_divergence") or {}).get("tap")]
    return json.dumps(parts), [entry["tensor"] for entry in quantised if entry["how"] == "other"]


def not_caught(ended, names, words):
    code, document, said = ended
    if code not in (1, 3) or (code == 3 and document.get("verdict") != "different"):
        return f"exit code {code}, {document.get('verdict') or said[-400:]}"
    text, others = blamed(document)
    text += "\n".join(others) + ("" if "verdict" in document else said)
    if not names_any(text, names) and not any(word in text for word in words):
        return f"none of {sorted(names) + list(words)} in: {text[:600]}"
    innocent = [tensor for tensor in others if not names_any(tensor, names)]
    return f"also says that {innocent} are wrong, which are not" if innocent else ""


def stored_for(name):
    """One of the four types, in turn; `make campaign` tries all."""
    return list(STORED) if os.environ.get("PARE_CAMPAIGN") else [list(STORED)[list(WRONG).index(name) % len(STORED)]]


def check_wrong(name, work):
    base, mistake, words, impossible = WRONG[name]
    right, reference = model_of(base), reference_of(base, work)
    for stored in stored_for(name):
        if stored in impossible:
            continue
        write = STORED[stored]
        wrong = model_of(base, mistake)
        names = spellings(right, wrong)
        assert names or words, f"{name} changes nothing"
        with tempfile.TemporaryDirectory() as place:
            ended = verified(reference, write(wrong, pathlib.Path(place)))
        report.check(f"{name}, {stored}", not_caught(ended, names, words))


# ---- right conversions

SAME = ("identical",)
LOSSLESS = ("identical", "proved")
ROUNDED = (*LOSSLESS, "equivalent", "within_noise")
QUANTISED = (*ROUNDED, "quantised")


def in_gguf(kind, change=None, **options):
    return lambda base, work: write_gguf(model_of(base, change), work / "model.gguf", TYPES[kind], **options)


def in_folder(dtype=torch.float32, change=None, **options):
    return lambda base, work: write_folder(model_of(base, change), work / "folder", dtype, **options)


def in_types(type_of):
    """Each tensor in a type of its own, as llama.cpp's mixtures have it."""

    def write(base, work):
        plain = gguf_writer.stored
        with mock.patch.object(gguf_writer, "stored", lambda name, weight, wanted: plain(name, weight, TYPES[type_of(name)])):
            return write_gguf(model_of(base), work / "model.gguf", TYPES.Q4_K)

    return write


def in_parts(base, work):
    (work / "parts").mkdir()
    write_gguf(model_of(base), work / "parts" / "model.gguf", TYPES.F32, split_max_tensors=9)
    assert len(list((work / "parts").iterdir())) == 3
    return work / "parts"


def in_shards(base, work):
    copy.deepcopy(module_of(base)).to(torch.float32).save_pretrained(work / "folder", max_shard_size="2MB")
    assert len(list((work / "folder").glob("*.safetensors"))) > 2
    return work / "folder"


def as_mistral(base, work, window=None):
    model = model_of(base)
    model.config = transformers.MistralConfig(**SIZES, rms_norm_eps=1e-5, sliding_window=window, rope_parameters=rope(), architectures=["MistralForCausalLM"])
    return write_folder(model, work / "folder")


def with_own_head(base, work):
    """llama.cpp stores the head of a tied model in a better type than its embedding, if it is asked to."""
    tensors = gguf_writer.gguf_tensors(model_of(base))
    tensors["output.weight"] = tensors["token_embd.weight"]
    plain = gguf_writer.stored
    with mock.patch.object(gguf_writer, "stored", lambda name, weight, wanted: plain(name, weight, TYPES.Q6_K if name == "output.weight" else wanted)):
        return write_gguf(model_of(base), work / "model.gguf", TYPES.Q4_K, tensors=tensors)


def merged_by_pare(base, work):
    result = pare("rewrite", *reference_of(base, work.parent), "-o", work / "merged", "--threads", "1")
    assert result.returncode == 0, result.stderr
    return work / "merged"


def merged_by_peft(base, work):
    """Its safe way rounds what it adds to the stored type first, and then the sum."""
    [folder, _, adapter] = reference_of(base, work.parent)
    plain = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16 if "bfloat16" in base else torch.float32)
    peft.PeftModel.from_pretrained(plain, adapter).merge_and_unload(safe_merge=True).save_pretrained(work / "merged")
    return work / "merged"


def then_quantised(merge, kind):
    def write(base, work):
        merged = load_file(merge(base, work) / "model.safetensors")
        return write_gguf(model_of(base, lambda state, config: state.update(merged)), work / "model.gguf", TYPES[kind])

    return write


def dequantised(kind, turned=False):
    """The folder that a program makes of a GGUF file, and that file; as reference and candidate."""

    def write(base, work):
        path = write_gguf(model_of(base), work / "model.gguf", TYPES[kind])
        gguf_files.with_tensors(module_of(base), gguf_writer.read_again(path)).to(torch.float32).save_pretrained(work / "folder")
        return (work / "folder", path) if turned else (path, work / "folder")

    return write


def from_gguf(first, second):
    """A file quantised from another: of the numbers that were rounded there."""

    def write(base, work):
        path = write_gguf(model_of(base), work / "first.gguf", TYPES[first])
        return path, write_gguf(model_of(base), work / "second.gguf", TYPES[second], tensors=gguf_writer.read_again(path))

    return write


def q4_k_m(name):
    return "Q6_K" if name.startswith(("output.", "blk.1.attn_v.", "blk.1.ffn_down.")) else "Q4_K"


PYTORCH = {
    "pytorch_model.bin": lambda state, folder: torch.save(state, folder / "pytorch_model.bin"),
    "pytorch_model.bin in shards": pytorch_files.sharded,
    "a .pt of a state dict": lambda state, folder: torch.save({"step": 3, "model": state}, folder / "last.pt"),
}
BIN = {name: ("llama", in_folder(write=write), SAME) for name, write in PYTORCH.items()}
BLOCKS = {kind: ("llama", in_gguf(kind), QUANTISED) for kind in gguf_files.BLOCKS}
OTHERS = {f"{family} in Q8_0": (f"small {family}", in_gguf("Q8_0"), QUANTISED) for family in FAMILIES}
AWKWARD = {f"{base} in {kind}": (base, in_gguf(kind), QUANTISED) for base in ("llama, outliers", "llama, a matrix of zeros", "llama, rows of zeros", "llama, small numbers") for kind in ("Q8_0", "Q4_K")}

# name: (model, a function that writes the candidate, verdicts that are right).
RIGHT = {
    "F32": ("llama", in_gguf("F32"), SAME),
    "F16": ("llama", in_gguf("F16"), ROUNDED),
    "BF16": ("llama", in_gguf("BF16"), ROUNDED),
    **BLOCKS,
    "GGUF in parts": ("llama", in_parts, SAME),
    **BIN,
    "safetensors in shards": ("llama", in_shards, SAME),
    "bfloat16": ("llama", in_folder(torch.bfloat16), ROUNDED),
    "float16": ("llama", in_folder(torch.float16), ROUNDED),
    "float16 of bfloat16": ("llama, bfloat16", in_folder(torch.float16), ROUNDED),
    "Q8_0 of bfloat16": ("llama", in_gguf("Q8_0", each("", to_bfloat16)), QUANTISED),
    "Q4_K of bfloat16": ("llama", in_gguf("Q4_K", each("", to_bfloat16)), QUANTISED),
    "Q4_K of F16": ("llama", from_gguf("F16", "Q4_K"), QUANTISED),
    "Llama as Mistral": ("llama", as_mistral, LOSSLESS),
    "Llama as Mistral, with a window that is never full": ("llama", functools.partial(as_mistral, window=64), LOSSLESS),
    **OTHERS,
    "Qwen2 in Q4_K": ("qwen2", in_gguf("Q4_K"), QUANTISED),
    "Gemma in Q4_K": ("gemma", in_gguf("Q4_K"), QUANTISED),
    "GPT-2 in Q4_K": ("gpt2", in_gguf("Q4_K"), QUANTISED),
    "tied, in Q4_K": ("llama, tied", in_gguf("Q4_K"), QUANTISED),
    "tied, and a head of its own in Q6_K": ("llama, tied", with_own_head, QUANTISED),
    "mixed as in Q4_K_M": ("llama", in_types(q4_k_m), QUANTISED),
    "merged by pare": ("llama with adapter", merged_by_pare, LOSSLESS),
    "merged by peft": ("llama with adapter", merged_by_peft, ROUNDED),
    "merged by pare, in Q8_0": ("llama with adapter", then_quantised(merged_by_pare, "Q8_0"), QUANTISED),
    "merged by peft, in Q8_0": ("llama with adapter", then_quantised(merged_by_peft, "Q8_0"), QUANTISED),
    "merged by peft, in Q4_K": ("llama with adapter", then_quantised(merged_by_peft, "Q4_K"), QUANTISED),
    "merged by peft in bfloat16": ("llama, bfloat16 with strong adapter", merged_by_peft, ROUNDED),
    "merged by peft in bfloat16, in Q8_0": ("llama, bfloat16 with strong adapter", then_quantised(merged_by_peft, "Q8_0"), QUANTISED),
    "merged by peft in bfloat16, in Q4_K": ("llama, bfloat16 with strong adapter", then_quantised(merged_by_peft, "Q4_K"), QUANTISED),
    "a folder of a Q4_K": ("llama", dequantised("Q4_K"), SAME),
    "a Q8_0 of the folder of it": ("llama", dequantised("Q8_0", turned=True), LOSSLESS),
    **AWKWARD,
}


def check_right(name, work):
    base, write, wanted = RIGHT[name]
    with tempfile.TemporaryDirectory(dir=work) as place:
        written = write(base, pathlib.Path(place))
        reference, candidate = ([written[0]], written[1]) if isinstance(written, tuple) else (reference_of(base, work), written)
        code, document, said = verified(reference, candidate)
    verdict = document.get("verdict")
    _, others = blamed(document)
    report.check(name, "" if code == 0 and verdict in wanted else f"{verdict}, exit code {code}, {others}: {json.dumps(document.get('error')) or said[-400:]}")


# ---- few rows, and two files in blocks: what the sums of a tensor do not show

# name: (type of the reference, none for the original; type of the candidate; mistake).
PAIRS = {
    "one row twice as large": (None, "Q4_0", each(UP, with_row_times(2))),
    "one row half as large": (None, "Q4_0", each(UP, with_row_times(0.5))),
    "one row twice as large, in two bits": (None, "Q2_K", each(UP, with_row_times(2))),
    "two rows of the embedding swapped, between blocks": ("Q4_K", "Q4_0", each(EMBEDDING, with_rows_swapped)),
    "a row of zeros, between blocks": ("Q4_K", "Q8_0", each(UP, with_zeros(5))),
    "a row with the other sign, between blocks": ("Q4_0", "Q4_0", each(UP, with_row_times(-1))),
    "two rows swapped, between blocks": ("Q2_K", "Q4_K", each(UP, with_rows_swapped)),
    "a column of zeros, between blocks": ("Q4_K", "Q4_K", each(DOWN, with_zeros(slice(None), 7))),
    "Q4_K beside Q8_0": ("Q8_0", "Q4_K", None),
    "Q4_0 beside Q4_K": ("Q4_K", "Q4_0", None),
    "Q8_0 beside Q4_K": ("Q4_K", "Q8_0", None),
}


def check_pair(name, work):
    first, second, mistake = PAIRS[name]
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        right, model = model_of("llama"), model_of("llama", mistake)
        reference = [write_gguf(right, place / "first.gguf", TYPES[first])] if first else reference_of("llama", work)
        ended = verified(reference, write_gguf(model, place / "second.gguf", TYPES[second]))
    if mistake:
        report.check(name, not_caught(ended, spellings(right, model), ()))
    else:
        report.check(name, "" if ended[0] == 0 and ended[1].get("verdict") == "quantised" else f"{ended[1].get('verdict')}: {blamed(ended[1])}")


def check_adapter_on_blocks(work):
    """Beside a reference in blocks, an adapter that adds less than their steps: left out, it is missing all the same."""
    path = write_gguf(model_of("llama"), work / "base.gguf", TYPES.Q4_K)
    write_adapter(work / "little adapter", 0.5)
    gguf_files.with_tensors(module_of("llama"), gguf_writer.read_again(path)).to(torch.float32).save_pretrained(work / "of blocks")
    code, document, said = verified([path, "--adapter", work / "little adapter"], work / "of blocks")
    report.check("an adapter left out, beside blocks", "" if (code, document.get("verdict")) == (3, "different") else f"{document.get('verdict')}: {said[-300:]}")
    result = pare("rewrite", path, "--adapter", work / "little adapter", "-o", work / "of both", "--threads", "1")
    code, document, said = verified([path, "--adapter", work / "little adapter"], work / "of both")
    report.check("an adapter merged, beside blocks", "" if code == 0 and document.get("verdict") in LOSSLESS else f"{result.stderr}{said[-300:]}")


def made(folder):
    folder.mkdir()
    return folder


def check_windows(work):
    """One that some sequence fills is another function; one that none does is none, in GGUF too."""
    narrow, wide = (as_mistral("llama", made(work / f"of {window}"), window) for window in (63, 64))
    path = write_gguf(model_of("llama"), work / "no window.gguf", TYPES.Q8_0)
    for folder, expected in ((narrow, "different"), (wide, "quantised")):
        for order in ((folder, path), (path, folder)):
            code, document, said = verified([order[0]], order[1])
            wrong = document.get("verdict") != expected or (expected == "different" and "window" not in json.dumps(document.get("differences")))
            report.check(f"a window {folder.parent.name}, {order[0].name} first", f"{document.get('verdict')}: {said[-300:]}" if wrong else "")


def main():
    wanted = sys.argv[1:]  # names of cases, or parts of them
    with tempfile.TemporaryDirectory() as folder:
        for check, cases in ((check_wrong, WRONG), (check_right, RIGHT), (check_pair, PAIRS)):
            for name in cases:
                if not wanted or any(part in name for part in wanted):
                    check(name, pathlib.Path(folder))
        if not wanted or "window" in wanted:
            check_windows(pathlib.Path(folder))
        if not wanted:
            check_adapter_on_blocks(pathlib.Path(folder))
    report.finish()


if __name__ == "__main__":
    main()
