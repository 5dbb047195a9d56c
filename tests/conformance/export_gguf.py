#!/usr/bin/env python3
"""`pare export --to gguf`: the bytes of a writer that is not ours, and of PyPI's gguf; read back, verified, and with its texts.

Random models of every architecture in all four types, tokenizers of every kind that GGUF has, and what is refused.
"""

import copy
import json
import os
import pathlib
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import PARE, SHARED, Report, ended, expect, pare  # noqa: E402  (the folders above are not a package)

TYPES = {"float32": ("F32", "identical"), "float16": ("F16", "proved"), "bfloat16": ("BF16", "proved"), "q8_0": ("Q8_0", "quantised")}
FILE_TYPES = {"float32": 0, "float16": 1, "q8_0": 7, "bfloat16": 32}
IN_EVERY_TYPE = ("llama", "gemma2", "gpt2", "bert")  # of the others, blocks of Q8_0 tell what stays in float32
TOKENIZE = PARE.parent / "tokenize"


def export(source, out, dtype="float32", *more):
    shutil.rmtree(out, ignore_errors=True)
    return pare("export", source, "-o", out, "--to", "gguf", "--dtype", dtype, "--random", "1", "--threads", "1", *more)


def fields_of(path):
    """Every value of the metadata with the kind that it is stored as: programs ask for a kind, and take no other."""
    import gguf

    reader = gguf.GGUFReader(path)
    return {name: ([kind.name for kind in field.types], field.contents()) for name, field in reader.fields.items() if not name.startswith("GGUF.")}, reader.tensors


def configurations(transformers):
    """Beside those that are read: heads that are tied and not, and what only a writer has to decide."""
    import gguf_files

    cases = gguf_files.configurations(transformers)
    small, grouped = gguf_files.SMALL, gguf_files.GROUPED
    cases["qwen2, untied"] = transformers.Qwen2Config(**grouped, tie_word_embeddings=False)
    cases["qwen3, tied"] = transformers.Qwen3Config(**grouped, head_dim=16, tie_word_embeddings=True)
    cases["gpt2, untied"] = transformers.GPT2Config(vocab_size=67, n_positions=64, n_embd=32, n_layer=2, n_head=4, n_inner=48, tie_word_embeddings=False)
    cases["gpt_neox, tied"] = transformers.GPTNeoXConfig(**small, tie_word_embeddings=True)
    cases["phi, tied"] = transformers.PhiConfig(**small, tie_word_embeddings=True)
    cases["starcoder2, tied"] = transformers.Starcoder2Config(**grouped, sliding_window=None, tie_word_embeddings=True)
    wide = grouped | dict(hidden_size=64, intermediate_size=96)  # whose matrices can all be in blocks
    cases["gemma2, wide"] = transformers.Gemma2Config(**wide, head_dim=16, query_pre_attn_scalar=16, sliding_window=8)
    cases["qwen3, wide"] = transformers.Qwen3Config(**wide, head_dim=32)
    return cases


def same_file(ours, theirs, dtype):
    """Ours against that of a writer that is not ours: the same tensors bit for bit, and every key of it."""
    import numpy

    our_fields, our_tensors = fields_of(ours)
    their_fields, their_tensors = fields_of(theirs)
    ours, theirs = ({tensor.name: tensor for tensor in tensors} for tensors in (our_tensors, their_tensors))
    missing = sorted(set(ours) ^ set(theirs))
    copied = missing == ["output.weight"] and our_fields.get("pare.tied_head") == (["BOOL"], True)  # where llama.cpp asks for it
    if missing and not copied:
        return f"tensors of one alone: {missing}"
    for name, tensor in ours.items():
        peer = theirs.get(name, theirs["token_embd.weight"])
        if name == "rope_freqs.weight":  # the converter computes these in float32, pare in float64
            if tensor.tensor_type != peer.tensor_type or not numpy.allclose(tensor.data, peer.data, rtol=1e-6, atol=0):
                return f"{name} is {tensor.data}, expected {peer.data}"
        elif tensor.tensor_type != peer.tensor_type or list(tensor.shape) != list(peer.shape) or tensor.data.tobytes() != peer.data.tobytes():
            return f"{name} is {tensor.tensor_type.name} {list(tensor.shape)}, expected {peer.tensor_type.name} {list(peer.shape)}, or other bytes"
    for name, value in their_fields.items():
        if name not in ("general.name", "general.file_type", "bert.pooling_type") and our_fields.get(name) != value:
            return f"{name} is {our_fields.get(name)}, expected {value}"
    said = [our_fields.get(f"general.{name}", ("", None))[1] for name in ("type", "file_type", "quantization_version")]
    return expect(said, ["model", FILE_TYPES[dtype], 2])


def same_tensors(ours, theirs):
    [ours, theirs] = [{tensor.name: (tensor.tensor_type, tensor.data.tobytes()) for tensor in fields_of(out / "model.gguf")[1]} for out in (ours, theirs)]
    return "" if ours == theirs else "other tensors"


def verdict_of(out):
    return json.loads((out / "certificate.json").read_text())["verdict"]


NOTES = {  # what llama.cpp does otherwise, and the activations or families
    "has GELU by tanh, where this model has erf": ("gelu",),
    "on a CPU, llama.cpp has GELU in a table": ("gelu_new", "gelu_pytorch_tanh"),
    "the token table is there twice": ("gpt_neox", "phi"),
}


def notes_on(config):
    activation = next(getattr(config, name) for name in ("hidden_activation", "hidden_act", "activation_function", "activation") if getattr(config, name, None))
    tied = config.model_type if getattr(config, "tie_word_embeddings", False) else None
    return [words for words, of in NOTES.items() if activation in of or tied in of]


def check_families(report, transformers, work):
    import gguf_files
    import gguf_writer
    import torch

    for case, config in configurations(transformers).items():
        model = gguf_files.drawn(transformers, config)
        folder, out, peer = work / "folder", work / "out", work / "peer.gguf"
        shutil.rmtree(folder, ignore_errors=True)
        copy.deepcopy(model).to(torch.float32).save_pretrained(folder)
        for dtype, (kind, verdict) in TYPES.items():
            if dtype in ("float16", "bfloat16") and case not in IN_EVERY_TYPE:
                continue
            result = export(folder, out, dtype)
            if ended(result):
                report.check(f"{case}, {dtype}", ended(result))
                continue
            gguf_writer.write(peer, model, gguf_writer.TYPES[kind])
            if dtype == "float32":
                report.check(f"{case}: its notes", expect([words for words in NOTES if words in result.stdout], notes_on(config)))
            report.check(f"{case}, {dtype}", same_file(out / "model.gguf", peer, dtype))
            report.check(f"{case}, {dtype}, its verdict", expect(verdict_of(out), verdict))
            if dtype == "float32" and case in IN_EVERY_TYPE:
                report.check(f"{case}, verified", ended(pare("verify", folder, out / "model.gguf", "--random", "1", "--threads", "1"), 0, ["verdict: identical"]))


def check_sources(report, transformers, work):
    """A file again from a file, from pare's own folders, and in other types than the source's."""
    import gguf_files
    import torch
    from safetensors.torch import load_file, save_file

    model = gguf_files.drawn(transformers, configurations(transformers)["llama, tied, long"])
    folder, out, again = work / "folder", work / "out", work / "again"
    shutil.rmtree(folder, ignore_errors=True)
    model.to(torch.float32).save_pretrained(folder)
    export(folder, out)
    report.check("a file of a file", ended(export(out / "model.gguf", again), 0, ["identical"]))
    report.check("the same bytes", expect((again / "model.gguf").read_bytes() == (out / "model.gguf").read_bytes(), True))
    report.check("of a folder with one", ended(export(out, again, "q8_0"), 0, ["quantised"]))
    report.check("blocks written out", ended(export(again, work / "third"), 0, ["identical", "in blocks (Q8_0", "written out in F32"]))
    report.check("blocks are kept", ended(export(again, work / "third", "keep"), 0, ["identical"], ["written out"]) or same_tensors(work / "third", again))

    native = work / "native"
    report.check("pare's own", ended(pare("export", folder, "-o", native, "--to", "hf", "--family", "pare")) or ended(export(native, again), 0, ["identical"]))
    report.check("it is a llama", expect((again / "model.gguf").read_bytes(), (out / "model.gguf").read_bytes().replace(b"\x06\0\0\0\0\0\0\0folder", b"\x06\0\0\0\0\0\0\0native")))
    shutil.rmtree(native)
    tensors = load_file(folder / "model.safetensors")
    for dtype, kinds in (("keep", {"F32", "F16"}), ("float32", {"F32"})):
        save_file({name: tensor.to(torch.float16) for name, tensor in tensors.items()}, folder / "model.safetensors")
        report.check(f"float16, {dtype}", ended(export(folder, again, dtype), 0, ["identical"]))
        report.check(f"float16, {dtype}: its types", expect({tensor.tensor_type.name for tensor in fields_of(again / "model.gguf")[1]}, kinds))
    save_file({name: tensor.to(torch.float64 if "q_proj" in name or "norm" in name else torch.bfloat16) for name, tensor in tensors.items()}, folder / "model.safetensors")
    report.check("of several types", ended(export(folder, again, "float32"), 0, ["identical"]))

    save_file(tensors, folder / "model.safetensors")
    passes = work / "passes"
    rewritten = pare("rewrite", folder, "-o", passes, "--passes", "fold_norm_gain", "--threads", "1")
    report.check("rewritten", ended(rewritten))
    result = export(passes, again)
    report.check("what a pass took out", ended(result, 2, ["the nearest is llama", "norm.gain is false", "--form compat", "--to onnx"]))
    [command] = [line.split("pare ")[1] for line in result.stderr.splitlines() if line.startswith("  pare rewrite ")]
    followed = pare(*shlex.split(command), cwd=work)
    report.check("what it advises", ended(followed) or ended(export(work / "COMPAT", again), 0, ["identical", "larger: 128 of its parameters do nothing"]))
    shutil.rmtree(passes)
    pare("rewrite", folder, "-o", passes, "--passes", "precompute_first_layer", "--allow-growth", "--no-verify", "--threads", "1")
    report.check("what no layout has a place for", ended(export(passes, again), 2, ['first_layer is "table"', f"pare export '{folder}' -o OUT --to gguf"], ["--form compat"]))


def check_large(report, work):
    """Rows are read, turned and written piece by piece: the file is the same whatever the pieces are."""
    import gguf
    import numpy
    import torch
    from safetensors.torch import load_file

    architecture = {"width": 96, "vocab": 30000, "context": 64, "final_norm": {"kind": "rms"}, "blocks": [{
        "attention": {"heads": 6, "kv_heads": 3, "head_width": 16, "norm": {"kind": "rms"}, "rope": {"width": 16}},
        "mlp": {"width": 25000, "activation": "silu", "gated": True, "norm": {"kind": "rms"}}}]}
    (work / "large.json").write_text(json.dumps(architecture))
    report.check("a larger one", ended(pare("init", work / "large.json", "-o", work / "large")) or ended(export(work / "large", work / "out", "q8_0")))
    tensors = load_file(work / "large" / "model.safetensors")
    written = {tensor.name: tensor for tensor in gguf.GGUFReader(work / "out" / "model.gguf").tensors}
    for name, ours in (("token_embd", "embed.token"), ("blk.0.ffn_up", "blocks.0.mlp.up"), ("output", "head")):
        expected = gguf.quants.quantize(tensors[f"{ours}.weight"].to(torch.float32).numpy(), gguf.GGMLQuantizationType.Q8_0)
        report.check(f"blocks of {name}", expect(numpy.array_equal(written[f"{name}.weight"].data, expected), True))


def check_blocks(report, work):
    """Q8_0 of numbers that are hard to round, against PyPI's gguf."""
    import gguf
    import numpy
    from safetensors.numpy import load_file, save_file

    pare("init", work / "large.json", "-o", work / "hard", "--force")
    tensors = load_file(work / "hard" / "model.safetensors")
    rng = numpy.random.default_rng(5)
    hard = tensors["blocks.0.mlp.up.weight"]
    hard[:] = rng.standard_normal(hard.shape) * 10.0 ** rng.integers(-9, 2, (hard.shape[0], 1))
    hard[:64] = rng.integers(-127, 128, (64, 96)) / 2  # halves
    hard[64:96] = numpy.eye(32).repeat(3, 1)
    hard[96:128] = 0
    hard[128] = -0.0
    hard[129] = 1e-38
    save_file(tensors, work / "hard" / "model.safetensors")
    result = export(work / "hard", work / "out", "q8_0")
    # The smallest scales of all are lost in blocks: a verdict of its own.
    report.check("hard to round", "" if result.returncode in (0, 3) else result.stderr)
    if result.returncode == 0:
        [written] = [tensor for tensor in gguf.GGUFReader(work / "out" / "model.gguf").tensors if tensor.name == "blk.0.ffn_up.weight"]
        with numpy.errstate(all="ignore"):
            expected = gguf.quants.quantize(hard, gguf.GGMLQuantizationType.Q8_0)
        report.check("its blocks", expect(numpy.array_equal(written.data, expected), True))
    hard[3, 4] = 70000
    save_file(tensors, work / "hard" / "model.safetensors")
    report.check("beyond float16", ended(export(work / "hard", work / "out", "float16"), 1, ["blk.0.ffn_up.weight", "70000", "bfloat16"]))


def check_refusals(report, transformers, work):
    import gguf_files
    import torch

    small, grouped = gguf_files.SMALL, gguf_files.GROUPED
    bare = {key: value for key, value in small.items() if key not in ("intermediate_size", "max_position_embeddings")}
    rope = {"rope_theta": 10000.0}
    refused = {
        "a window": (transformers.MistralConfig(**grouped, sliding_window=8), ["llama", "window is 8"]),
        "dynamic positions": (transformers.LlamaConfig(**grouped, rope_parameters=rope | {"rope_type": "dynamic", "factor": 2.0}), ["llama", "rope.scaling"]),
        "other bounds than Llama 3's": (transformers.LlamaConfig(**grouped, rope_parameters=rope | {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 8.0, "original_max_position_embeddings": 32}), ["rope.scaling"]),
        "betas of YaRN": (transformers.LlamaConfig(**grouped, rope_parameters=rope | {
            "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "beta_fast": 16.0}), ["beta_fast is 16"]),
        "a bias that llama.cpp lacks": (transformers.Qwen3Config(**grouped, head_dim=16, attention_bias=True), ["qwen3 has no blk.0.attn_output.bias"]),
        "a head of its own": (transformers.GemmaConfig(**grouped, head_dim=16, tie_word_embeddings=False), ["gemma has no output.weight", "tied"]),
        "biases of Falcon": (transformers.FalconConfig(**bare, multi_query=True, bias=True, max_position_embeddings=64), ["falcon has no blk.1.ffn_up.bias"]),
        "ALiBi": (transformers.FalconConfig(**bare, multi_query=True, alibi=True, bias=False, max_position_embeddings=64), ["falcon", "alibi"]),
        "no biases": (transformers.Starcoder2Config(**grouped, sliding_window=None, use_bias=False), ["asks for blk.0.ffn_up.bias"]),
        "no biases of attention": (transformers.GPTNeoXConfig(**small, attention_bias=False), ["asks for blk.0.attn_qkv.bias"]),
        "heads of their own width": (transformers.Qwen2Config(**grouped, head_dim=16), ["4 heads of 16", "width 32", "qwen2"]),
        "scores divided otherwise": (transformers.Gemma2Config(**grouped, head_dim=16, query_pre_attn_scalar=32, sliding_window=8), ["gemma2", "attention.scale"]),
        "another activation": (transformers.GPT2Config(vocab_size=67, n_positions=64, n_embd=32, n_layer=2, n_head=4, activation_function="relu"), ["gpt2", "activation"]),
        "another family": (transformers.OPTConfig(vocab_size=67, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=32), ["no architecture for this model", "position_offset"]),
    }
    for case, (config, words) in refused.items():
        folder = work / "refused"
        shutil.rmtree(folder, ignore_errors=True)
        transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).save_pretrained(folder)
        report.check(f"refused: {case}", ended(export(folder, work / "out"), 2, words))
    shutil.rmtree(work / "refused")
    transformers.BertForMaskedLM(transformers.BertConfig(**small)).save_pretrained(work / "refused")
    report.check("refused: a head of BERT's", ended(export(work / "refused", work / "out"), 2, ["bert", "task is", "add_pooling_layer=False"]))
    shutil.rmtree(work / "refused")
    check_pooler(report, transformers, work)
    transformers.ViTModel(transformers.ViTConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, image_size=8, patch_size=4)).save_pretrained(work / "refused")
    report.check("refused: images", ended(export(work / "refused", work / "out"), 2, ["embedding.patch"]))


def check_pooler(report, transformers, work):
    """An encoder's pooler is refused, unless files of sentence-transformers say that vectors are made without it."""
    import gguf_files

    folder, out = work / "refused", work / "out"
    transformers.BertModel(transformers.BertConfig(**gguf_files.SMALL)).save_pretrained(folder)
    report.check("refused: a pooler", ended(export(folder, out), 2, ["pooler.dense.weight", "add_pooling_layer=False"]))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}))
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]))
    report.check("vectors of texts", ended(export(folder, out), 0, ["identical", "first token", "not written, since the model does not use them", "pooler.dense.weight"]))
    report.check("how they are made", expect(fields_of(out / "model.gguf")[0]["bert.pooling_type"], (["UINT32"], 2)))
    shutil.rmtree(folder)


# ---- texts


def tokens_of(path, text, out):
    out.unlink(missing_ok=True)
    done = subprocess.run([TOKENIZE, "lines", path, text, out], capture_output=True, text=True)
    return out.read_bytes() if done.returncode == 0 else done.stderr


def with_space(line):
    """As a tokenizer that puts a space first has it: before each text between tokens that are found first."""
    parts = re.split("(<[|]endoftext[|]>)", line)
    return "".join(part if n % 2 or not part or part.startswith(" ") else f" {part}" for n, part in enumerate(parts))


def composed(line):
    from tokenizers import normalizers

    return normalizers.NFC().normalize_str(line)  # by the Unicode of tokenizers


# What the notes on these tell to do to a text first.
UNLIKE = {"gpt-2, composed": composed, "gpt-2, a space first": with_space}


def tokenizers_of(corpus):
    """Names, the tokenizer.json, and what is noted of it; a name in tokenizer.ggml.pre where bytes are paired."""
    import gguf_tokenizers as kinds
    from tokenizers import pre_tokenizers

    byte = pre_tokenizers.ByteLevel
    digits = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte(add_prefix_space=False)])
    falcon = kinds.split([r"[\p{P}\$\+<=>\^~\|`]+", kinds.GPT2, "[0-9][0-9][0-9]"])
    plain = kinds.byte_level(corpus, byte(add_prefix_space=False))
    yield "gpt-2", plain, "gpt-2", ()
    yield "gpt-2, composed", plain | {"normalizer": {"type": "NFC"}}, "gpt-2", ("does not compose characters",)
    yield "gpt-2, a space first", kinds.byte_level(corpus, byte(add_prefix_space=True)), "gpt-2", ("puts no space before a text",)
    yield "Llama 3", kinds.byte_level(corpus, kinds.split(kinds.LLAMA3), ignore_merges=True) | {"post_processor": kinds.BEGIN}, "llama-bpe", ()
    yield "Llama 3, merges first", kinds.byte_level(corpus, kinds.split(kinds.LLAMA3)), "smaug-bpe", ()
    yield "Qwen 2", kinds.byte_level(corpus, kinds.split(kinds.QWEN2)) | {"normalizer": {"type": "NFC"}}, "qwen2", ("does not compose characters",)
    yield "tekken", kinds.byte_level(corpus, kinds.split(kinds.TEKKEN), ignore_merges=True), "tekken", ()
    yield "StarCoder", kinds.byte_level(corpus, digits), "starcoder", ()
    yield "Falcon", kinds.byte_level(corpus, falcon), "falcon", ()
    pieces = kinds.sentence_piece(corpus)
    kinds.with_all_splits(pieces)
    yield "SentencePiece", pieces, "default", ()
    gemma = copy.deepcopy(pieces)
    gemma["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    gemma["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    yield "SentencePiece, no space first", gemma, "default", ()
    words = kinds.word_piece(corpus)
    words["model"]["max_input_chars_per_word"] = 100
    yield "WordPiece", words, "default", ("words of more than 100 letters",)
    yield "WordPiece, small letters", words | {"normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
                                               "model": words["model"] | {"vocab": {(t if t.startswith("[") else t.lower() + "~" * (t != t.lower())): n for t, n in words["model"]["vocab"].items()}}}, "default", ("words of more than 100 letters",)


def check_tokenizers(report, transformers, work):
    import gguf_files
    import gguf_tokenizers as kinds
    import torch
    from nasty_text import nasty_lines

    corpus = (SHARED / "data/text/tinyshakespeare.txt").read_text().splitlines(keepends=True)[:6000]
    text, lines = work / "nasty.txt", nasty_lines(1000)
    text.write_bytes("\n".join(lines).encode() + b"\n")
    tokenizers = list(tokenizers_of(corpus))
    folder, out = work / "texts", work / "out"
    config = transformers.LlamaConfig(**gguf_files.SMALL | dict(vocab_size=3007, num_hidden_layers=1, hidden_size=16, intermediate_size=8, num_attention_heads=2))
    transformers.LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)

    given = work / "given.txt"

    def one(line):
        (work / "one.txt").write_text(line + "\n")
        return work / "one.txt"

    def compared(case, notes=(), prepared=lambda line: line):
        """`prepared`: what a reader of the file has to be given in place of a text."""
        result = export(folder, out)
        problem = ended(result, 0, notes, ["without a tokenizer"])
        report.check(f"{case}: written", problem)
        if not problem:
            given.write_bytes("\n".join(map(prepared, lines)).encode() + b"\n")
            same = tokens_of(folder, text, work / "a.ids") == tokens_of(out / "model.gguf", given, work / "b.ids")
            report.check(f"{case}: ids", "" if same and (work / "a.ids").stat().st_size > 20000 else "other ids")
        return problem

    def fields():
        return fields_of(out / "model.gguf")[0]

    for case, stored, pre, notes in tokenizers:
        (folder / "tokenizer.json").write_text(json.dumps(stored))
        if compared(case, notes, UNLIKE.get(case, lambda line: line)):
            continue
        stored_pre = b"tokenizer.ggml.pre" + struct.pack("<IQ", 8, len(pre)) + pre.encode()
        report.check(f"{case}: how texts are split", expect(stored_pre in (out / "model.gguf").read_bytes(), True))
        if case == "Llama 3":
            told = fields()
            report.check("texts begin with a token", expect([told[f"tokenizer.ggml.{key}"][1] for key in ("add_bos_token", "bos_token_id", "add_eos_token")], [True, 0, False]))
    report.check("a file of a file, with its texts", ended(export(out, work / "again")) or expect(fields_of(work / "again" / "model.gguf")[0], fields_of(out / "model.gguf")[0]))

    # A token that scores would join of two others, were it not found before anything else.
    stored = copy.deepcopy(tokenizers[9][1])
    known = [token for token in stored["model"]["vocab"] if token.isascii() and token.isalpha() and len(token) > 3]
    joined = next(a + b for a in known for b in known if a + b not in stored["model"]["vocab"])
    stored["added_tokens"].append(dict(id=3000, content=joined, special=False, single_word=False, lstrip=False, rstrip=False, normalized=False))
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    compared("SentencePiece, a token more")
    report.check("the token more", expect(tokens_of(folder, one(f"a {joined} b"), work / "a.ids"), tokens_of(out / "model.gguf", work / "one.txt", work / "b.ids")))

    # Of the two files that are older than tokenizer.json; what stands beside; and what ends a text.
    stored = tokenizers[0][1]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(stored["model"]["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in stored["model"]["merges"]) + "\n")
    settings = {"eos_token": "<|end of text|>", "pad_token": {"content": "<|endoftext|>"}, "chat_template": kinds.TEMPLATE,
                "added_tokens_decoder": {"3000": {"content": "<|im_end|>", "special": True}, "3001": {"content": "word", "special": False}}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 3000]}))
    compared("vocab.json and merges.txt", ["ends texts at '<|endoftext|>' (0) too"])
    told = fields()
    found = {key: told.get(f"tokenizer.ggml.{key}_token_id", ("", None))[1] for key in ("eos", "eot", "eom", "padding", "bos")}
    report.check("what ends a text", expect(found, {"eos": 1, "eot": 3000, "eom": None, "padding": 0, "bos": 1}))  # bos: of config.json
    kinds_of = told["tokenizer.ggml.token_type"][1]
    report.check("kinds of tokens", expect([kinds_of[n] for n in (0, 2, 3000, 3001, 3002)], [3, 1, 3, 4, 5]))
    report.check("the chat template", expect(told["tokenizer.chat_template"], (["STRING"], kinds.TEMPLATE)))
    told = [pare("generate", which, "Speak.", "--chat", "-n", "3", "--json", input="").stdout for which in (folder, out)]
    report.check("a chat", expect(json.loads(told[1] or "{}").get("generations"), json.loads(told[0] or "{}").get("generations")) or ("" if told[0] else "nothing"))
    for name in ("vocab.json", "merges.txt", "generation_config.json"):
        (folder / name).unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in sorted(tokenizers[11][1]["model"]["vocab"], key=tokenizers[11][1]["model"]["vocab"].get)))
    compared("vocab.txt")
    told = fields()
    report.check("its signs", expect([told[f"tokenizer.ggml.{key}_token_id"][1] for key in ("bos", "seperator", "unknown", "padding", "mask")], [2, 3, 1, 0, 4]))
    (folder / "vocab.txt").unlink()
    (folder / "tokenizer_config.json").unlink()

    # Bytes, as pare's own training has them.
    letters = [*range(33, 127), *range(161, 173), *range(174, 256)]
    visible = {byte: chr(byte) for byte in letters} | {byte: chr(256 + n) for n, byte in enumerate(b for b in range(256) if b not in letters)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": {"type": "BPE", "vocab": {visible[b]: b for b in range(256)}, "merges": []}}))
    compared("bytes")
    check_without(report, work, corpus, tokenizers, folder, out)


def check_without(report, work, corpus, tokenizers, folder, out):
    """Tokenizers that GGUF does not have: the file goes without, and a note says why."""
    import gguf_tokenizers as kinds

    o200k = kinds.byte_level(["some words, and more words"] * 9, kinds.split(r"\p{L}+|\P{L}+"))
    cases = {
        "a pattern without a name": (o200k, [r"\p{L}+|\P{L}+", "tokenizer.ggml.pre"]),
        "another normalizer": (tokenizers[0][1] | {"normalizer": {"type": "NFKC"}}, ["NFKC"]),
        "merges that are no scores": (kinds.sentence_piece(corpus), ["scores"]),
        "Unigram": ({"model": {"type": "Unigram", "vocab": [["a", -1.0]]}}, ["Unigram"]),
        "words": ({"model": {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}}, "pre_tokenizer": {"type": "Whitespace"}}, ["WordLevel"]),
        "more tokens than rows": (tokenizers[0][1] | {"added_tokens": [{"id": 4000, "content": "<4000>", "special": True}]}, ["4000", "3007 rows"]),
    }
    for case, (stored, words) in cases.items():
        (folder / "tokenizer.json").write_text(json.dumps(stored))
        problem = ended(export(folder, out), 0, ["without a tokenizer", "token ids alone", *words])
        report.check(f"without: {case}", problem or expect(fields_of(out / "model.gguf")[0]["tokenizer.ggml.model"], (["STRING"], "none")))
    named = work / "named.json"
    named.write_text(json.dumps(o200k))
    report.check("one that was named", ended(export(folder, out, "float32", "--tokenizer", named), 1, ["tokenizer.ggml.pre"]))
    named.write_text(json.dumps(tokenizers[0][1]))
    report.check("another one", ended(export(folder, out, "float32", "--tokenizer", named), 0, [], ["without a tokenizer"]))
    (folder / "tokenizer.json").unlink()
    report.check("none at all", ended(export(folder, out), 0, ["without a tokenizer", "tokenizer.json"]))


def check_stories(report, work):
    """A model that somebody trained, with llama2.c's tokenizer: the same story from the file."""
    from nasty_text import nasty_lines

    source, out = SHARED / "models/stories260K", work / "out"
    if not source.exists():
        report.skip("stories260K", f"{source} is not there")
        return
    report.check("stories260K", ended(export(source, out), 0, ["identical"]))
    told = [json.loads(pare("generate", which, "Once upon a time", "-n", "60", "--json").stdout or "{}").get("generations", [{}])[0] for which in (source, out)]
    report.check("its story", expect(told[1].get("tokens"), told[0].get("tokens")) or ("" if told[0].get("text") == told[1].get("text") and len(told[0]["text"]) > 60 else f"{told}"))
    text = work / "nasty.txt"
    text.write_bytes("\n".join(line for line in nasty_lines(1000) if "▁" not in line).encode() + b"\n")  # a sign that SentencePiece takes for a space
    report.check("its ids", expect(tokens_of(out, text, work / "b.ids") == tokens_of(source, text, work / "a.ids"), True))


def main():
    os.environ["HF_HUB_OFFLINE"] = "1"
    report = Report("export gguf")
    transformers = report.transformers()
    report.peers("gguf", "tokenizers", "numpy", "safetensors")
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        check_families(report, transformers, work)
        check_sources(report, transformers, work)
        check_large(report, work)
        check_blocks(report, work)
        check_refusals(report, transformers, work)
        if (SHARED / "data/text/tinyshakespeare.txt").exists():
            check_tokenizers(report, transformers, work)
        else:
            report.skip("tokenizers", f"{SHARED}/data/text is not there")
        check_stories(report, work)
    report.finish()


if __name__ == "__main__":
    main()
