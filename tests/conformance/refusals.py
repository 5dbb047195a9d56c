"""What pare does not compute as transformers would is refused by name, with exit code 1."""

import json

import torch
from report import pare
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, ViTConfig, ViTModel

SMALL = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=20)
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "bert": (BertModel, BertConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "vit": (ViTModel, ViTConfig(**SMALL, image_size=8, patch_size=4)),
}
CASES = [  # the model, what changes in its configuration, words of the message
    ("llama", {"model_type": "mixtral"}, ["mixtral", "llama"]),
    ("llama", {"model_type": "lama"}, ["'lama'", "did you mean 'llama'"]),
    ("llama", {"model_type": None}, ["model_type"]),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification"]),
    ("llama", {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.0}}, ["proportional"]),
    ("llama", {"hidden_act": "mish"}, ["hidden_act", "mish"]),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
    ("llama", {"auto_map": {"AutoModel": "modeling.X"}}, ["auto_map"]),
    ("llama", {"is_causal": False}, ["is_causal"]),
    ("llama", {"num_hidden_layers": 10**9}, ["num_hidden_layers", "1000000000"]),
    ("llama", {"num_attention_heads": "two"}, ["num_attention_heads", "two"]),
    ("llama", {"num_hidden_layers": 2}, ["missing", "model.layers.1.self_attn.q_proj.weight"]),
    ("bert", {"is_decoder": True}, ["is_decoder"]),
    ("bert", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ("vit", {"pooler_output_size": 12}, ["pooler_output_size", "12"]),
    ("vit", {"image_size": [8, 12]}, ["image_size"]),
]


def check(report, folder):
    tokens = folder / "tokens.json"
    tokens.write_text("[[1, 2, 3]]")
    for name, (model_class, config) in MODELS.items():
        torch.manual_seed(0)
        model_class(config).save_pretrained(folder / name)
    for name, changes, words in CASES:
        path = folder / name / "config.json"
        before = path.read_text()
        path.write_text(json.dumps({**json.loads(before), **changes}))
        result = pare("run", folder / name, "-o", folder / "refused.safetensors", "--tokens", tokens)
        path.write_text(before)
        absent = [word for word in words if word not in result.stderr]
        problem = f"exit code {result.returncode}, expected 1: {result.stderr}" if result.returncode != 1 else ""
        report.check(f"{name} with {changes}", problem or (absent and f"{absent} not in: {result.stderr}"))
