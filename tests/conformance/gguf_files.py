#!/usr/bin/env python3
"""GGUF: models of transformers written as llama.cpp's converter writes them, read by pare and compared in float64.

Names and dequantised numbers are those of PyPI's gguf; for the families that it reads, transformers loads the same file.
"""

import copy
import itertools
import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import ROOT, Report, pare  # noqa: E402  (the folders above are not a package)

TOLERANCE = 1e-10
SMALL = dict(vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
GROUPED = SMALL | dict(num_key_value_heads=2)


def configurations(transformers):
    """Every architecture that both sides have, and what its files can differ in."""
    rope = lambda **more: {"rope_type": "default", "rope_theta": 10000.0} | more  # noqa: E731
    llama3 = rope(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)
    bare = {key: value for key, value in SMALL.items() if key not in ("intermediate_size", "max_position_embeddings")}
    return {
        "llama": transformers.LlamaConfig(**GROUPED, rms_norm_eps=1e-5),
        "llama, own width of heads": transformers.LlamaConfig(**GROUPED, head_dim=16, attention_bias=True, mlp_bias=True, rope_parameters=rope(rope_theta=5e5)),
        "llama, tied, long": transformers.LlamaConfig(**GROUPED | dict(max_position_embeddings=16384, head_dim=32), tie_word_embeddings=True, rope_parameters=llama3),
        "llama, linear": transformers.LlamaConfig(**GROUPED, rope_parameters=rope(rope_type="linear", factor=4.0)),
        "mistral": transformers.MistralConfig(**GROUPED, sliding_window=None, head_dim=12),
        "qwen2": transformers.Qwen2Config(**GROUPED, tie_word_embeddings=True),
        "qwen2, yarn": transformers.Qwen2Config(**GROUPED, rope_parameters=rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)),
        "qwen3": transformers.Qwen3Config(**GROUPED, head_dim=16),
        "gemma": transformers.GemmaConfig(**GROUPED, head_dim=16),
        "gemma2": transformers.Gemma2Config(**GROUPED, head_dim=16, query_pre_attn_scalar=16, sliding_window=8),
        "gpt2": transformers.GPT2Config(vocab_size=67, n_positions=64, n_embd=32, n_layer=2, n_head=4),
        "gpt_neox": transformers.GPTNeoXConfig(**SMALL, rope_parameters=rope(partial_rotary_factor=0.5)),
        "gpt_neox, in turn": transformers.GPTNeoXConfig(**SMALL, use_parallel_residual=False, rope_parameters=rope(partial_rotary_factor=0.25)),
        "falcon": transformers.FalconConfig(**bare, multi_query=True, bias=False, max_position_embeddings=64),
        "falcon, two norms": transformers.FalconConfig(**bare, new_decoder_architecture=True, num_kv_heads=2, bias=False, max_position_embeddings=64),
        "phi": transformers.PhiConfig(**SMALL, rope_parameters=rope(partial_rotary_factor=0.5)),
        "starcoder2": transformers.Starcoder2Config(**GROUPED, sliding_window=None),
        "bert": transformers.BertConfig(**SMALL),
    }


# Of these, transformers reads GGUF itself, and so says what a file means.
READ_BY_TRANSFORMERS = ("llama", "qwen2", "qwen3", "gemma2", "gpt2", "starcoder2")


def drawn(transformers, config):
    import random_models
    import reference
    import torch

    with reference.Float64():
        model_class = transformers.BertModel if config.model_type == "bert" else transformers.AutoModelForCausalLM
        options = {"add_pooling_layer": False} if config.model_type == "bert" else {"attn_implementation": "eager"}
        build = model_class if config.model_type == "bert" else model_class.from_config
        model = build(copy.deepcopy(config), **options)
    random_models.randomise(model, torch.float32, torch.Generator().manual_seed(7))
    if config.model_type in ("gemma", "gemma2"):  # the converter adds one to their gains, and rounds those that have all bits
        with torch.no_grad():
            for name, gain in model.named_parameters():
                if name.endswith("norm.weight"):
                    gain.copy_((gain * 2**12).round() / 2**12)
    return model.eval()  # numbers of float32, in float64


def answers(model, ids):
    """In float64; of a model without a head, its last hidden states."""
    import reference
    import torch

    with reference.Float64(), torch.no_grad():
        output = copy.deepcopy(model).to(torch.float64)(input_ids=torch.tensor([ids]))
    return (output.logits if hasattr(output, "logits") else output.last_hidden_state)[0]


def with_tensors(model, tensors):
    """The model with what a file holds: each of its tensors is looked up where the writer puts it."""
    import gguf_writer
    import torch

    model = copy.deepcopy(model).to(torch.float64)
    numbered, start = {}, 0
    for name, weight in model.state_dict().items():  # where each number of the file comes from
        numbered[name] = torch.arange(start, start + weight.numel(), dtype=torch.float64).reshape(weight.shape)
        start += weight.numel()
    marked = copy.deepcopy(model)
    marked.load_state_dict(numbered)
    offset = 1 if model.config.model_type in ("gemma", "gemma2") else 0
    values = torch.cat([weight.flatten() for weight in model.state_dict().values()])
    for name, places in gguf_writer.gguf_tensors(marked).items():
        gain = offset if name.endswith("norm.weight") else 0
        values[(places - gain).round().long().flatten()] = tensors[name].flatten() - gain
    state, start = {}, 0
    for name, weight in model.state_dict().items():
        state[name] = values[start : start + weight.numel()].reshape(weight.shape)
        start += weight.numel()
    model.load_state_dict(state)
    model.tie_weights()
    return model


def run(path, ids, work):
    from safetensors.torch import load_file

    (work / "tokens.json").write_text(json.dumps([ids]))
    result = pare("run", path, "-o", work / "out.safetensors", "--tokens", work / "tokens.json", "--force")
    if result.returncode != 0:
        return None, f"exit code {result.returncode}: {result.stderr}"
    tensors = load_file(work / "out.safetensors")
    return tensors.get("logits.0", tensors.get("hidden.0")), ""


def far(a, b):
    return ((a - b).abs().max() / (a - a.mean(-1, keepdim=True)).abs().max()).item()


def compared(theirs, path, ids, work):
    ours, wrong = run(path, ids, work)
    if wrong:
        return wrong
    error = far(theirs, ours)
    return "" if error <= TOLERANCE else f"off by {error:.1e}"


def check_families(report, transformers, work):
    import gguf_writer
    import torch

    ids = torch.randint(67, (9,), generator=torch.Generator().manual_seed(3)).tolist()
    for case, config in configurations(transformers).items():
        model = drawn(transformers, config)
        path = work / "model.gguf"
        for kind in ("F32", "F16", "BF16", "Q8_0"):
            if kind != "F32" and "," in case:
                continue
            gguf_writer.write(path, model, gguf_writer.TYPES[kind])
            theirs = answers(with_tensors(model, gguf_writer.read_again(path)), ids)
            report.check(f"{case}, {kind}", compared(theirs, path, ids, work))
            if kind == "F32" and case in READ_BY_TRANSFORMERS:
                check_conventions(report, case, model, path)
        gguf_writer.write(path, model)
        folder = work / "folder"
        copy.deepcopy(model).to(torch.float32).save_pretrained(folder)
        result = pare("verify", folder, path, "--json", "--threads", "1")
        verdict = json.loads(result.stdout).get("verdict") if result.stdout else result.stderr
        report.check(f"{case}, verified", "" if verdict == "identical" else f"{verdict} {result.stderr}")


def check_conventions(report, case, model, path):
    """Another reader of GGUF finds the model's own numbers in our file: the writer here writes what the converter writes."""
    import torch
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"]
    own = {name: weight for name, weight in model.state_dict().items() if name != "lm_head.weight" or name in found}
    near = all(name in found and torch.allclose(found[name].double(), weight.double(), rtol=0, atol=1e-6) for name, weight in own.items())
    report.check(f"{case}, as transformers reads it", "" if near and len(own) > 10 else "other numbers")


def finite_blocks(rng, kind, blocks):
    """Random bytes of a type, but with scales that are finite numbers."""
    import gguf
    import numpy

    elements, size = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (blocks, size), numpy.uint8)
    halves = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}
    for at in halves.get(kind.name, []):
        high = data[:, at + 1]
        high[(high & 0x7C) == 0x7C] &= 0x83  # an exponent of all ones
    if kind.name == "MXFP4":
        data[:, 0] %= 250
    return data


BLOCKS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4")


def check_blocks(report, work):
    """The same bits as gguf, for any bytes."""
    import gguf
    import numpy
    from safetensors.numpy import load_file

    rng = numpy.random.default_rng(11)
    path, kinds = work / "blocks.gguf", [gguf.GGMLQuantizationType[name] for name in BLOCKS]
    writer = gguf.GGUFWriter(path, "llama")
    expected = {}
    for kind in kinds:
        data = finite_blocks(rng, kind, 21).reshape(7, -1)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
        expected[kind.name] = gguf.quants.dequantize(data, kind)
    for name, dtype in (("F64", numpy.float64), ("F32", numpy.float32), ("F16", numpy.float16)):
        expected[name] = rng.standard_normal((5, 3)).astype(dtype)
        writer.add_tensor(name, expected[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    result = subprocess.run([ROOT / "build" / "gguf_copy", path, work / "blocks"], capture_output=True, text=True)
    report.check("blocks are read", result.stderr)
    found = load_file(work / "blocks" / "model.safetensors") if result.returncode == 0 else {}
    for name, values in expected.items():
        same = name in found and found[name].dtype == values.dtype and found[name].tobytes() == values.tobytes()
        report.check(f"blocks of {name}", "" if same else "other bits than gguf has")
    check_ranges(report, path, work)


HALVES = [n | n << 4 for n in range(16)]
PAIRS = [0x00, 0x55, 0xAA, 0xFF]
BITS = [0x00, 0xFF]
# Where a block keeps the levels of its elements, and the bytes that give every element the same one.
LEVELS = {
    "Q4_0": [(slice(2, 18), HALVES)],
    "Q4_1": [(slice(4, 20), HALVES)],
    "Q5_0": [(slice(6, 22), HALVES), (slice(2, 6), BITS)],
    "Q5_1": [(slice(8, 24), HALVES), (slice(4, 8), BITS)],
    "Q8_0": [(slice(2, 34), range(256))],
    "Q2_K": [(slice(16, 80), PAIRS)],
    "Q3_K": [(slice(32, 96), PAIRS), (slice(0, 32), BITS)],
    "Q4_K": [(slice(16, 144), HALVES)],
    "Q5_K": [(slice(48, 176), HALVES), (slice(16, 48), BITS)],
    "Q6_K": [(slice(0, 128), HALVES), (slice(128, 192), PAIRS)],
    "IQ4_NL": [(slice(2, 18), HALVES)],
    "IQ4_XS": [(slice(8, 136), HALVES)],
    "MXFP4": [(slice(1, 17), HALVES)],
}


def check_ranges(report, path, work):
    """What a block could hold, by trying every level that its type has."""
    import gguf
    import numpy
    from safetensors.numpy import load_file

    facts = {}
    for fact in ("step", "low", "high"):
        subprocess.run([ROOT / "build" / "gguf_copy", path, work / fact, fact], check=True)
        facts[fact] = load_file(work / fact / "model.safetensors")
    for tensor in gguf.GGUFReader(path).tensors:
        name, kind = tensor.name, tensor.tensor_type
        if name not in LEVELS:
            report.check(f"ranges of {name}", "" if not facts["step"][name].any() else "has steps")
            continue
        tried = []
        for fills in itertools.product(*(fills for _, fills in LEVELS[name])):
            blocks = numpy.array(tensor.data).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
            for (place, _), fill in zip(LEVELS[name], fills):
                blocks[:, place] = fill
            tried.append(gguf.quants.dequantize(blocks.reshape(tensor.data.shape), kind))
        tried = numpy.sort(numpy.stack(tried), 0).astype(numpy.float64)
        gap = numpy.diff(tried, axis=0).max(0)
        rounding = 1e-6 * numpy.abs(tried).max(0)
        wrong = [fact for fact, expected in (("low", tried[0]), ("high", tried[-1])) if (facts[fact][name] != expected).any()]
        wrong += ["step"] if (numpy.abs(facts["step"][name] - gap) > rounding).any() else []
        report.check(f"ranges of {name}", f"wrong: {wrong}" if wrong else "")


def check_quantised(report, transformers, work):
    """A model in every type, with numbers that quantisers made."""
    import gguf_writer

    config = transformers.LlamaConfig(**GROUPED | dict(hidden_size=256, intermediate_size=512, num_hidden_layers=1))
    model = drawn(transformers, config)
    for kind in BLOCKS:
        path = work / f"{kind}.gguf"
        gguf_writer.write(path, model, gguf_writer.TYPES[kind])
        held = gguf_writer.read_again(path)
        near = far(gguf_writer.gguf_tensors(model)["blk.0.ffn_up.weight"], held["blk.0.ffn_up.weight"])
        report.check(f"the quantiser for {kind}", "" if near < 0.35 else f"is off by {near:.2f}")
        report.check(f"llama in {kind}", compared(answers(with_tensors(model, held), [1, 5, 66, 3]), path, [1, 5, 66, 3], work))
        if kind == "Q8_0":  # what is made of a model in blocks has a proof, and is no quantisation
            result = pare("rewrite", path, "-o", work / "rewritten-blocks", "--passes", "fold_norm_gain", "--threads", "1")
            report.check("rewritten from blocks", "" if result.returncode == 0 and ": proved" in result.stdout and "tokenizer" in result.stderr else result.stdout + result.stderr)


def check_whole(report, transformers, work):
    """In parts, from a folder, rewritten, and with what pare does not know."""
    import gguf_writer
    import torch

    model = drawn(transformers, configurations(transformers)["llama, own width of heads"])
    theirs, ids = answers(model, [3, 1, 4]), [3, 1, 4]
    (work / "parts").mkdir()
    gguf_writer.write(work / "parts" / "m.gguf", model, split_max_tensors=9)
    parts = sorted((work / "parts").glob("*.gguf"))
    report.check("parts", "" if len(parts) == 4 else f"{parts}")
    for path in (work / "parts", *parts):
        report.check(f"read from {path.name}", compared(theirs, path, ids, work))
    parts[1].rename(work / "kept.gguf")
    result = pare("run", parts[0], "-o", work / "out.safetensors", "--tokens", work / "tokens.json", "--force")
    report.check("a part that is missing", "" if result.returncode == 1 and "m-00002-of-00004.gguf" in result.stderr else result.stderr)

    path = work / "whole.gguf"
    gguf_writer.write(path, model)
    for form in ("strict", "compat"):
        out = work / f"rewritten-{form}"
        result = pare("rewrite", path, "-o", out, "--passes", "fold_norm_gain", "--form", form, "--threads", "1")
        wrong = "" if result.returncode == 0 else result.stderr
        names = sorted(entry.name for entry in out.iterdir()) if out.exists() else []
        wrong = wrong or ("" if names == ["certificate.json", "config.json", "model.safetensors"] else f"wrote {names}")
        ours, failed = run(out, ids, work)
        wrong = wrong or failed or ("" if far(theirs, ours) < 1e-5 else f"off by {far(theirs, ours):.1e}")  # stored in float32
        report.check(f"rewritten, {form}", wrong)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(work / "rewritten-compat", dtype=torch.float32)
    error = far(theirs, answers(loaded.eval(), ids))
    report.check("rewritten for transformers", "" if error < 1e-5 else f"off by {error:.1e}")

    tied = drawn(transformers, configurations(transformers)["gpt2"])
    copy.deepcopy(tied).to(torch.float32).save_pretrained(work / "tied")
    own = gguf_writer.gguf_tensors(tied)
    for case, head, expected in (("the same", own["token_embd.weight"], "identical"), ("another", own["token_embd.weight"] * 2, "different")):
        gguf_writer.write(path, tied, tensors=own | {"output.weight": head})
        result = pare("verify", work / "tied", path, "--json", "--threads", "1")
        verdict = json.loads(result.stdout).get("verdict") if result.stdout else result.stderr
        report.check(f"a family that ties, and {case} head", "" if verdict == expected else f"{verdict}: {result.stderr}")

    refused = {
        "an unknown key": (lambda writer: writer.add_uint32("llama.attention.clamp_kqv", 8), "llama.attention.clamp_kqv"),
        "experts": (lambda writer: writer.add_uint32("llama.expert_count", 8), "mixtures of experts"),
        "heads of two widths": (lambda writer: writer.add_uint32("llama.attention.value_length", 4), "attention.value_length"),
        "an adapter": (lambda writer: writer.add_string("adapter.type", "lora"), "adapter.type"),
    }
    plain = drawn(transformers, configurations(transformers)["llama"])
    for case, (extra, named) in refused.items():
        gguf_writer.write(path, plain, extra=extra)
        result = pare("audit", path)
        report.check(case, "" if result.returncode == 1 and named in result.stderr else f"{result.returncode}: {result.stderr}")
    check_rope(report, transformers, work)
    gguf_writer.write(path, plain, extra=refused["an unknown key"][0])
    result = pare("audit", path, "--ignore-unknown-keys")
    report.check("an unknown key, ignored", "" if result.returncode == 0 else result.stderr)
    gguf_writer.write(path, plain, tensors=gguf_writer.gguf_tensors(plain) | {"blk.0.attn_sinks.weight": torch.zeros(4)})
    result = pare("audit", path)
    report.check("an unknown tensor", "" if "blk.0.attn_sinks.weight" in result.stderr else result.stderr)
    # What llama.cpp does not read must not stand for what it reads.
    own, query = gguf_writer.gguf_tensors(plain), "model.layers.0.self_attn.q_proj.weight"
    right = dict(plain.state_dict())
    names = {
        "beside another": own | {"blk.0.attn_q.weight": -own["blk.0.attn_q.weight"], query: right[query]},
        "in its place, without its prefix": {name: tensor for name, tensor in own.items() if name != "blk.0.attn_q.weight"} | {query.removeprefix("model."): right[query]},
        "in its place": {name: tensor for name, tensor in own.items() if name != "output.weight"} | {"lm_head.weight": right["lm_head.weight"]},
    }
    copy.deepcopy(plain).to(torch.float32).save_pretrained(work / "named")
    for case, tensors in names.items():
        gguf_writer.write(path, plain, tensors=tensors)
        result = pare("verify", work / "named", path)
        report.check(f"a name of transformers {case}", "" if result.returncode == 1 and "the name that Hugging Face gives it" in result.stderr else f"{result.returncode}: {result.stderr}")
    gguf_writer.write(path, plain)
    good = path.read_bytes()
    for key, number in (("llama.rope.freq_base", 10000.0), ("llama.attention.layer_norm_rms_epsilon", 1e-5)):
        for wrong in (float("nan"), float("inf")):
            said = key.encode() + struct.pack("<I", 6)
            assert good.count(said + struct.pack("<f", number)) == 1, key
            path.write_bytes(good.replace(said + struct.pack("<f", number), said + struct.pack("<f", wrong)))
            result = pare("audit", path)
            report.check(f"{key} of {wrong}", "" if result.returncode == 1 and key in result.stderr and "expected a finite number" in result.stderr else f"{result.returncode}: {result.stderr}")
    writer = gguf_writer.gguf.GGUFWriter(path, "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    result = pare("audit", path)
    report.check("another architecture", "" if "'rwkv6'" in result.stderr and "gptneox" in result.stderr else result.stderr)


def check_rope(report, transformers, work):
    """How llama.cpp reads keys that no converter of today writes: a factor without a type scales."""
    import gguf_writer
    import torch

    path, none = work / "rope.gguf", gguf_writer.gguf.RopeScalingType.NONE
    models = {name: drawn(transformers, configurations(transformers)[name]) for name in ("llama", "llama, linear")}
    factor = lambda writer: writer.add_rope_scaling_factor(4.0)  # noqa: E731
    cases = {
        "a factor without a type": (factor, "different"),
        "a factor of an older name": (lambda writer: writer.add_float32("llama.rope.scale_linear", 4.0), "different"),
        "a factor, and the type none": (lambda writer: [factor(writer), writer.add_rope_scaling_type(none)], "identical"),
    }
    copy.deepcopy(models["llama"]).to(torch.float32).save_pretrained(work / "unscaled")
    for case, (extra, expected) in cases.items():
        gguf_writer.write(path, models["llama"], extra=extra)
        result = pare("verify", work / "unscaled", path, "--json", "--threads", "1")
        verdict = json.loads(result.stdout).get("verdict") if result.stdout else result.stderr
        report.check(case, "" if verdict == expected else f"{verdict}: {result.stderr}")
    # What transformers makes of the file has the float32 of it: another decimal, and the same number.
    gguf_writer.write(path, models["llama"])
    for epsilon, expected in ((9.999999747378752e-06, "identical"), (1.0001e-05, "different")):
        edited = json.loads((work / "unscaled" / "config.json").read_text()) | {"rms_norm_eps": epsilon}
        (work / "unscaled" / "config.json").write_text(json.dumps(edited))
        for order in ((path, work / "unscaled"), (work / "unscaled", path)):
            result = pare("verify", *order, "--json", "--threads", "1")
            verdict = json.loads(result.stdout).get("verdict") if result.stdout else result.stderr
            report.check(f"an epsilon of {epsilon}, {order[1].name}", "" if verdict == expected else f"{verdict}: {result.stderr}")
    scaled = models["llama, linear"]
    for case, factors, words in (("factors beside a scaling", 2.0, ["rope.gguf", "rope_freqs.weight", "linear"]), ("factors of one beside a scaling", 1.0, [])):
        gguf_writer.write(path, scaled, tensors=gguf_writer.gguf_tensors(scaled) | {"rope_freqs.weight": torch.full((4,), factors)})
        result = pare("audit", path)
        wrong = result.returncode != (1 if words else 0) or any(word not in result.stderr for word in words)
        report.check(case, f"{result.returncode}: {result.stderr}" if wrong else "")


def check_damaged(report, transformers, work):
    """Bytes of a good file changed: refused with the file's name, in a process that may have little memory."""
    import gguf_writer

    path = work / "good.gguf"
    gguf_writer.write(path, drawn(transformers, configurations(transformers)["llama"]), gguf_writer.TYPES.Q8_0)
    good = path.read_bytes()
    first_key = 24 + 8 + struct.unpack_from("<Q", good, 24)[0]
    cases = {
        "cut in the header": good[:200],
        "cut in the data": good[:-5000],
        "2^63 tensors": good[:8] + struct.pack("<Q", 1 << 63) + good[16:],
        "2^63 values": good[:16] + struct.pack("<Q", 1 << 63) + good[24:],
        "a string of 2^60 bytes": good[: first_key + 4] + struct.pack("<Q", 1 << 60) + good[first_key + 12 :],
        "bytes behind": good + bytes(64),
        "a type of a value": good[:first_key] + struct.pack("<I", 77) + good[first_key + 4 :],
        "another file": b"PK\3\4" + good[4:],
    }
    values = struct.unpack_from("<Q", good, 16)[0]
    array = struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 0, 1 << 25) + bytes(1 << 25)
    path.write_bytes(good[:16] + struct.pack("<Q", values + 1) + array + good[24:])
    result = pare("audit", path)
    report.check("an array of small values", "" if result.returncode == 1 and "'a' has more than 16777216 values" in result.stderr else f"{result.returncode}: {result.stderr}")
    for case, data in cases.items():
        path.write_bytes(data)
        result = subprocess.run(["bash", "-c", 'ulimit -v 20000000; exec "$@"', "bash", ROOT / "build" / "gguf_copy", path, work / "no"], capture_output=True, text=True)
        report.check(f"damaged: {case}", "" if result.returncode == 1 and "good.gguf" in result.stderr else f"{result.returncode}: {result.stderr}")


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    report = Report("gguf files")
    transformers = report.transformers()
    report.peers("gguf")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_families(report, transformers, work)
        check_blocks(report, work)
        check_quantised(report, transformers, work)
        check_whole(report, transformers, work)
        check_damaged(report, transformers, work)
    report.finish()


if __name__ == "__main__":
    main()
