#!/usr/bin/env python3
"""Decoding by pare, llama.cpp and transformers: the same weights, types and threads; all sides take turns in one run.

    python benchmarks/llama.py [--rounds N] [--threads N] [--shapes gpt2,llama] [--dtypes float32,bfloat16,float16]

Random weights of the gpt2-124M shape and of a Llama of 160M parameters are written as safetensors and as GGUF. Greedy tokens
and logits are compared first. Skipped where llama-cpp-python and gguf are not installed.
"""

import argparse
import ctypes
import importlib.util
import os
import pathlib
import statistics
import sys
import tempfile
import time

from race import ROOT, Driver, Transformers, compared, decoded, median_ratio, race, save_inputs

os.environ["HF_HUB_OFFLINE"] = "1"
PROMPT, COUNT = 32, 64


def gpt2():
    """A model of transformers, and its tensors by llama.cpp's names."""
    import transformers

    config = transformers.GPT2Config()
    model = transformers.GPT2LMHeadModel(config).eval()
    names = {"transformer.wte.weight": "token_embd.weight", "transformer.wpe.weight": "position_embd.weight"}
    modules = {"transformer.ln_f": "output_norm"}
    for n in range(config.n_layer):
        parts = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
        modules |= {f"transformer.h.{n}.{theirs}": f"blk.{n}.{ours}" for theirs, ours in parts.items()}
    names |= {f"{theirs}.{kind}": f"{ours}.{kind}" for theirs, ours in modules.items() for kind in ("weight", "bias")}
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name in names:  # the head is the token table, which llama.cpp knows by itself
            matrix = tensor.dim() == 2 and ".h." in name  # Conv1D: [in, out]
            tensors[names[name]] = (tensor.T if matrix else tensor).contiguous().numpy()

    def describe(writer):
        writer.add_context_length(config.n_positions)
        writer.add_embedding_length(config.n_embd)
        writer.add_block_count(config.n_layer)
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_head_count(config.n_head)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)

    return "gpt2-124M", "gpt2", model, tensors, describe, config.vocab_size


def llama():
    import transformers

    config = transformers.LlamaConfig(vocab_size=32000, hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12,
                                      num_key_value_heads=12, max_position_embeddings=2048, tie_word_embeddings=False)
    model = transformers.LlamaForCausalLM(config).eval()

    def paired(weight, heads):
        """Their rotation takes neighbours for a pair; that of transformers takes halves."""
        return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)

    parts = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    names |= {f"model.layers.{n}.{theirs}.weight": f"blk.{n}.{ours}.weight" for n in range(config.num_hidden_layers) for theirs, ours in parts.items()}
    tensors = {}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        rotated = name.endswith(("q_proj.weight", "k_proj.weight"))
        tensors[names[name]] = paired(array, config.num_attention_heads).copy() if rotated else array

    def describe(writer):
        writer.add_vocab_size(config.vocab_size)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_block_count(config.num_hidden_layers)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)

    return "Llama 160M", "llama", model, tensors, describe, config.vocab_size


def write_gguf(path, architecture, tensors, describe, vocab, dtype):
    """Matrices in the type, all else in float32. The vocabulary is what llama.cpp asks for at least: names, types, one merge."""
    import gguf
    import numpy

    writer = gguf.GGUFWriter(str(path), architecture)
    describe(writer)
    writer.add_file_type({"float32": gguf.LlamaFileType.ALL_F32, "float16": gguf.LlamaFileType.MOSTLY_F16, "bfloat16": gguf.LlamaFileType.MOSTLY_BF16}[dtype])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{n}" for n in range(vocab)])
    writer.add_token_types([int(gguf.TokenType.NORMAL)] * vocab)
    writer.add_token_merges(["t 0"])
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or dtype == "float32" or name == "position_embd.weight":
            writer.add_tensor(name, numpy.ascontiguousarray(tensor, dtype=numpy.float32))
        elif dtype == "float16":
            writer.add_tensor(name, tensor.astype(numpy.float16))
        else:
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Llama:
    """Their side, by llama.cpp's own functions: one llama_decode a token, and the largest logit."""

    def __init__(self, path, vocab, threads, prompt):
        import llama_cpp

        self.api, self.vocab, self.prompt = llama_cpp, vocab, prompt
        quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        self.quiet = quiet
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp does not load {path.name}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_threads, settings.n_threads_batch = 512, threads, threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)

    def read(self, tokens):
        import numpy

        ids = (self.api.llama_token * len(tokens))(*tokens)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(ids, len(tokens))) != 0:
            sys.exit("llama.cpp: a step failed")
        return numpy.ctypeslib.as_array(self.api.llama_get_logits_ith(self.context, -1), shape=(self.vocab,))

    def steps(self, keep=False):
        import torch

        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)
        row = self.read(self.prompt)
        rows, found = [torch.tensor(row)], [int(row.argmax())]
        begin = time.perf_counter()
        for _ in range(COUNT - 1):
            row = self.read(found[-1:])
            if keep:
                rows.append(torch.tensor(row))
            found.append(int(row.argmax()))
        return time.perf_counter() - begin, found, torch.stack(rows)

    def close(self):
        self.api.llama_free(self.context)
        self.api.llama_model_free(self.model)


def measure(options, folder, shape, dtype):
    import torch

    name, architecture, model, tensors, describe, vocab = shape
    path, file = pathlib.Path(folder, architecture), pathlib.Path(folder, f"{architecture}.gguf")
    write_gguf(file, architecture, tensors, describe, vocab, dtype)
    prompt = torch.randint(vocab, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    inputs = save_inputs(pathlib.Path(folder, "prompt"), input_ids=prompt)
    kept = type(model).from_pretrained(path, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    peer, theirs = Transformers(kept, prompt, COUNT, "cpu"), Llama(file, vocab, options.threads, prompt[0].tolist())
    driver = Driver(options, path, dtype)
    ours = decoded(driver, inputs, COUNT, folder)
    words = {}
    for side, work in (("llama.cpp", theirs), ("transformers", peer)):
        _, tokens, logits = work.steps(keep=True)
        difference, said = compared(*ours, tokens, logits)
        words[side] = f"logits differ by {difference:.1e} of their range; {said}"
    size = int(driver.ask("read", inputs, 1)[1])
    times = race(options.rounds, lambda: float(driver.ask("decode", inputs, COUNT)[0]), lambda: theirs.steps()[0], lambda: peer.steps()[0],
                 lambda: float(driver.ask("read", inputs, COUNT // 8)[0]) / (COUNT // 8) * (COUNT - 1))
    rates = [(COUNT - 1) / statistics.median(side) for side in times]
    print(f"{name}, {dtype}: pare {rates[0]:.1f}, llama.cpp {rates[1]:.1f}, transformers {rates[2]:.1f} tokens/s; ratios {median_ratio(times[0], times[1]):.2f} and "
          f"{median_ratio(times[0], times[2]):.2f}; {100 * median_ratio(times[0], times[3]):.0f} % of a plain read ({size * rates[3] / 1e9:.1f} GB/s)")
    for side, said in words.items():
        print(f"    beside {side}: {said}", flush=True)
    driver.close()
    theirs.close()
    file.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--driver", type=pathlib.Path, default=ROOT / "build" / "bench_driver")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--shapes", type=lambda text: text.split(","), default=["gpt2", "llama"])
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["float32", "bfloat16", "float16"])
    options = parser.parse_args()
    options.device = "cpu"
    missing = [name for name in ("llama_cpp", "gguf") if not importlib.util.find_spec(name)]
    if missing:
        print(f"skipped llama.cpp: no module {' and '.join(missing)}: {sys.executable} -m pip install llama-cpp-python gguf")
        return
    import llama_cpp
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(options.threads)
    print(f"llama-cpp-python {llama_cpp.__version__}, torch {torch.__version__}, transformers {transformers.__version__}, {options.threads} threads, "
          f"load {os.getloadavg()[0]:.1f}; decoding, batch 1, {COUNT} tokens after {PROMPT}; a ratio above 1: pare is faster")
    with tempfile.TemporaryDirectory() as folder:
        for shape in options.shapes:
            torch.manual_seed(0)
            made = {"gpt2": gpt2, "llama": llama}[shape]()
            made[2].save_pretrained(pathlib.Path(folder, shape))
            for dtype in options.dtypes:
                measure(options, folder, made, dtype)


if __name__ == "__main__":
    main()
