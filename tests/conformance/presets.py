#!/usr/bin/env python3
"""Every preset of a real model has exactly the parameters that Hugging Face counts for it."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from report import Report, pare


def peers():
    import transformers as hf

    return {
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config()),
        "gpt2-medium": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16)),
        "gpt2-large": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1280, n_layer=36, n_head=20)),
        "gpt2-xl": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
        "pythia-6.9b": (
            hf.GPTNeoXForCausalLM,
            hf.GPTNeoXConfig(
                vocab_size=50432, hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=16384
            ),
        ),
        "mistral-7b": (hf.MistralForCausalLM, hf.MistralConfig()),
        "llama-3.1-8b": (
            hf.LlamaForCausalLM,
            hf.LlamaConfig(
                vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
                num_attention_heads=32, num_key_value_heads=8,
            ),
        ),
        "bert-base": (hf.BertForMaskedLM, hf.BertConfig()),
        "albert-base": (
            hf.AlbertForMaskedLM,
            hf.AlbertConfig(hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=12),
        ),
        "roberta-base": (
            hf.RobertaForMaskedLM,
            hf.RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5),
        ),
        "opt-125m": (hf.OPTForCausalLM, hf.OPTConfig()),
        "opt-350m": (
            hf.OPTForCausalLM,
            hf.OPTConfig(
                hidden_size=1024, ffn_dim=4096, num_hidden_layers=24, num_attention_heads=16, word_embed_proj_dim=512,
                do_layer_norm_before=False,
            ),
        ),
        "falcon-7b": (hf.FalconForCausalLM, hf.FalconConfig()),
        "falcon-rw-1b": (
            hf.FalconForCausalLM,
            hf.FalconConfig(
                vocab_size=50304, hidden_size=2048, num_hidden_layers=24, num_attention_heads=32, alibi=True, bias=True,
                multi_query=False, parallel_attn=False,
            ),
        ),
        "vit-b-16": (hf.ViTForImageClassification, hf.ViTConfig(num_labels=1000)),
        "qwen2.5-0.5b": (
            hf.Qwen2ForCausalLM,
            hf.Qwen2Config(
                vocab_size=151936, hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
                num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True,
            ),
        ),
        "gemma-2b": (
            hf.GemmaForCausalLM,
            hf.GemmaConfig(
                vocab_size=256000, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18,
                num_attention_heads=8, num_key_value_heads=1, head_dim=256,
            ),
        ),
    }


def main():
    report = Report("presets")
    torch, _ = report.peers("torch", "transformers")
    models = peers()
    for name, (kind, config) in models.items():
        with torch.device("meta"):
            model = kind(config)
        model.tie_weights()
        theirs = sum(parameter.numel() for parameter in model.parameters())
        result = pare("audit", name, "--json")
        ours = json.loads(result.stdout)["parameters"] if result.returncode == 0 else result.stderr.strip()
        report.check(name, "" if ours == theirs else f"pare counts {ours}, Hugging Face {theirs}")
    report.finish()


if __name__ == "__main__":
    main()
