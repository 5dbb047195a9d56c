"""What pare does not compute as transformers would is refused by name, with exit code 1."""

import json
import shutil

import torch
from report import pare
from safetensors.torch import load_file, save_file
from transformers import (
    AlbertConfig,
    AlbertModel,
    ApertusConfig,
    ApertusForCausalLM,
    BertConfig,
    BertModel,
    BioGptConfig,
    BioGptForCausalLM,
    CLIPTextConfig,
    CLIPTextModel,
    DeiTConfig,
    DeiTForImageClassificationWithTeacher,
    Dinov2Config,
    Dinov2ForImageClassification,
    BloomConfig,
    BloomForCausalLM,
    CodeGenConfig,
    CodeGenForCausalLM,
    Cohere2Config,
    Cohere2ForCausalLM,
    CohereConfig,
    CohereForCausalLM,
    ElectraConfig,
    ElectraModel,
    EsmConfig,
    EsmModel,
    EuroBertConfig,
    EuroBertModel,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPTNeoConfig,
    GPTNeoForCausalLM,
    GteConfig,
    GteModel,
    HunYuanDenseV1Config,
    HunYuanDenseV1ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    NomicBertConfig,
    NomicBertModel,
    ModernBertConfig,
    ModernBertDecoderConfig,
    ModernBertDecoderForCausalLM,
    ModernBertModel,
    MptConfig,
    MptForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Olmo3Config,
    Olmo3ForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    RobertaConfig,
    RobertaModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
    SiglipTextConfig,
    SiglipTextModel,
    StableLmConfig,
    StableLmForCausalLM,
    ViTConfig,
    ViTModel,
    XGLMConfig,
    XGLMForCausalLM,
)

SMALL = dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=20)
TWO_KINDS = dict(num_hidden_layers=2, vocab_size=20, max_position_embeddings=16, pad_token_id=0, local_attention=8)
GEMMA = dict(vocab_size=20, max_position_embeddings=16, num_key_value_heads=2, head_dim=8)
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "bert": (BertModel, BertConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "roberta": (RobertaModel, RobertaConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "albert": (AlbertModel, AlbertConfig(**SMALL, vocab_size=20, max_position_embeddings=16, embedding_size=6)),
    "opt": (OPTForCausalLM, OPTConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, ffn_dim=20, vocab_size=20)),
    "electra": (ElectraModel, ElectraConfig(**SMALL, vocab_size=20, max_position_embeddings=16, embedding_size=6)),
    "roberta-prelayernorm": (RobertaPreLayerNormModel, RobertaPreLayerNormConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "eurobert": (EuroBertModel, EuroBertConfig(**SMALL, vocab_size=20, max_position_embeddings=16, pad_token_id=0)),
    "biogpt": (BioGptForCausalLM, BioGptConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "openai-gpt": (OpenAIGPTLMHeadModel, OpenAIGPTConfig(vocab_size=20, n_positions=16, n_embd=16, n_head=2, n_layer=1)),
    "gpt_neo": (GPTNeoForCausalLM, GPTNeoConfig(vocab_size=20, max_position_embeddings=16, hidden_size=16, num_heads=2, num_layers=2, attention_types=[[["global", "local"], 1]])),
    "bloom": (BloomForCausalLM, BloomConfig(vocab_size=20, hidden_size=16, n_head=2, n_layer=1)),
    "mpt": (MptForCausalLM, MptConfig(vocab_size=20, d_model=16, n_heads=2, n_layers=1, max_seq_len=16)),
    "xglm": (XGLMForCausalLM, XGLMConfig(vocab_size=20, d_model=16, attention_heads=2, num_layers=1, ffn_dim=20, max_position_embeddings=16)),
    "modernbert": (ModernBertModel, ModernBertConfig(**SMALL | TWO_KINDS)),
    "modernbert-decoder": (ModernBertDecoderForCausalLM, ModernBertDecoderConfig(**SMALL | TWO_KINDS)),
    "codegen": (CodeGenForCausalLM, CodeGenConfig(vocab_size=20, n_positions=16, n_embd=16, n_head=4, n_layer=1, rotary_dim=4)),
    "gemma3_text": (Gemma3ForCausalLM, Gemma3TextConfig(**SMALL, **GEMMA)),
    "gemma3": (Gemma3ForConditionalGeneration, Gemma3Config(text_config=SMALL | GEMMA, mm_tokens_per_image=4, vision_config=SMALL | dict(image_size=8, patch_size=4))),
    "hunyuan_v1_dense": (HunYuanDenseV1ForCausalLM, HunYuanDenseV1Config(**SMALL, vocab_size=20, max_position_embeddings=16, head_dim=8)),
    "apertus": (ApertusForCausalLM, ApertusConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "granite": (GraniteForCausalLM, GraniteConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "olmo3": (Olmo3ForCausalLM, Olmo3Config(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "cohere": (CohereForCausalLM, CohereConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "cohere2": (Cohere2ForCausalLM, Cohere2Config(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "stablelm": (StableLmForCausalLM, StableLmConfig(**SMALL, num_key_value_heads=2, vocab_size=20, max_position_embeddings=16, qk_layernorm=True)),
    "vit": (ViTModel, ViTConfig(**SMALL, image_size=8, patch_size=4)),
    "deit": (DeiTForImageClassificationWithTeacher, DeiTConfig(**SMALL, image_size=8, patch_size=4)),
    "dinov2": (Dinov2ForImageClassification, Dinov2Config(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, image_size=8, patch_size=4)),
    "esm": (EsmModel, EsmConfig(**SMALL, vocab_size=20, max_position_embeddings=16, pad_token_id=1, mask_token_id=3)),
    "nomic_bert": (NomicBertModel, NomicBertConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "gte": (GteModel, GteConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
    "clip_text_model": (CLIPTextModel, CLIPTextConfig(**SMALL, vocab_size=20, max_position_embeddings=16, eos_token_id=3)),
    "siglip_text_model": (SiglipTextModel, SiglipTextConfig(**SMALL, vocab_size=20, max_position_embeddings=16)),
}
CASES = [  # the model, what changes in its configuration, words of the message
    ("llama", {"model_type": "mixtral"}, ["mixtral", "llama"]),
    ("llama", {"model_type": "lama"}, ["'lama'", "did you mean 'llama'"]),
    ("llama", {"model_type": None}, ["model_type"]),
    ("llama", {"architectures": ["LlamaForMultipleChoice"]}, ["LlamaForMultipleChoice", "LlamaForTokenClassification"]),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, ["missing: 'score.weight'", "LlamaModel"]),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, ["missing: 'qa_outputs.weight'", "BertModel"]),
    ("llama", {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.0}}, ["proportional"]),
    ("llama", {"hidden_act": "mish"}, ["hidden_act", "mish"]),
    ("llama", {"quantization_config": {"quant_method": "awq"}}, ["quantization_config", "awq"]),
    ("llama", {"quantization_config": {"bits": 4, "group_size": 128, "damp_percent": 0.1, "quant_method": "gptq"}}, ["gptq"]),
    ("llama", {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, ["fp8", "quantised"]),
    ("llama", {"quantization_config": {"load_in_4bit": True, "quant_method": "bitsandbytes"}}, ["bitsandbytes", "take the checkpoint"]),
    ("llama", {"num_local_experts": 8}, ["num_local_experts", "mixtures of experts"]),
    ("llama", {"model_type": "mixtral", "num_local_experts": 8}, ["mixtral", "mixtures of experts"]),
    ("llama", {"auto_map": {"AutoModel": "modeling.X"}}, ["auto_map"]),
    ("llama", {"is_causal": False}, ["is_causal"]),
    ("llama", {"num_hidden_layers": 10**9}, ["num_hidden_layers", "1000000000"]),
    ("llama", {"num_attention_heads": "two"}, ["num_attention_heads", "two"]),
    ("llama", {"num_hidden_layers": 2}, ["missing", "model.layers.1.self_attn.q_proj.weight"]),
    ("bert", {"is_decoder": True}, ["is_decoder"]),
    ("bert", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("bert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ("opt", {"is_causal": False}, ["is_causal"]),
    ("roberta", {"is_decoder": True}, ["is_decoder"]),
    ("roberta", {"architectures": ["RobertaForCausalLM"]}, ["RobertaForCausalLM"]),
    ("roberta", {"pad_token_id": None}, ["pad_token_id"]),
    ("albert", {"num_hidden_groups": 2}, ["num_hidden_groups"]),
    ("albert", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ("vit", {"pooler_output_size": 12}, ["pooler_output_size", "12"]),
    ("vit", {"image_size": [8, 12]}, ["image_size"]),
    ("deit", {}, ["DeiTForImageClassificationWithTeacher", "averages what two heads say", "DeiTModel"]),
    ("dinov2", {}, ["Dinov2ForImageClassification", "two vectors at once", "Dinov2Model"]),
    ("dinov2", {"image_size": [8, 12]}, ["image_size"]),
    ("esm", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ("esm", {"token_dropout": True, "mask_token_id": None}, ["token_dropout", "mask_token_id"]),
    ("esm", {"pad_token_id": None}, ["pad_token_id"]),
    ("esm", {"is_folding_model": True}, ["is_folding_model"]),
    ("esm", {"is_decoder": True}, ["is_decoder"]),
    ("nomic_bert", {"prenorm": True}, ["prenorm", "behind the sublayers"]),
    ("nomic_bert", {"rotary_emb_base": 10000}, ["rotary_emb_base", "10000"]),
    ("nomic_bert", {"auto_map": {"AutoModel": "modeling.Other"}}, ["auto_map", "modeling.Other"]),
    ("gte", {"is_causal": True}, ["is_causal"]),
    ("gte", {"model_type": "siglip"}, ["siglip", "two towers", "saved alone"]),
    ("clip_text_model", {"eos_token_id": [3, 4]}, ["eos_token_id", "one token"]),
    ("clip_text_model", {"is_causal": False}, ["is_causal"]),
    ("siglip_text_model", {"is_causal": True}, ["is_causal"]),
    ("electra", {"architectures": ["ElectraForPreTraining"]}, ["ElectraForPreTraining", "ElectraModel"]),
    ("electra", {"is_decoder": True}, ["is_decoder"]),
    ("electra", {"position_embedding_type": "relative_key"}, ["position_embedding_type", "relative_key"]),
    ("roberta-prelayernorm", {"is_decoder": True}, ["is_decoder"]),
    ("roberta-prelayernorm", {"pad_token_id": None}, ["pad_token_id"]),
    ("eurobert", {"architectures": ["EuroBertForSequenceClassification"]}, ["EuroBertForSequenceClassification", "EuroBertModel"]),
    ("eurobert", {"is_causal": True}, ["is_causal"]),
    ("eurobert", {"auto_map": {"AutoModel": "modeling.Other"}}, ["auto_map", "modeling.Other"]),
    ("biogpt", {"is_causal": False}, ["is_causal"]),
    ("biogpt", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("openai-gpt", {"afn": "tanh"}, ["afn", "tanh", "gelu, relu, silu or swish"]),
    ("openai-gpt", {"architectures": ["OpenAIGPTDoubleHeadsModel"]}, ["OpenAIGPTDoubleHeadsModel", "OpenAIGPTLMHeadModel"]),
    ("codegen", {"n_head": 2}, ["n_head 2", "four parts"]),
    ("codegen", {"rotary_dim": None}, ["rotary_dim"]),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, ["attn_logit_softcapping", "no code for it"]),
    ("gemma3_text", {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_parameters": None}, ["rope_scaling", "rope_type"]),
    ("gemma3_text", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, ["rope_parameters.rope_type"]),
    ("gemma3_text", {"sliding_window": None}, ["sliding_window"]),
    ("gemma3", {"text_config": None}, ["text_config"]),
    ("gemma3", {"text_config": {"model_type": "gemma2"}}, ["text_config.model_type", "gemma2"]),
    ("gemma3", {"text_config": SMALL | GEMMA | {"final_logit_softcapping": 30.0}}, ["text_config.final_logit_softcapping"]),
    ("gemma3", {"text_config": SMALL | GEMMA | {"use_bidirectional_attention": True}}, ["text_config.use_bidirectional_attention"]),
    ("gemma3", {"text_config": SMALL | GEMMA | {"a_key_of_tomorrow": 1}}, ["text_config.a_key_of_tomorrow"]),
    ("hunyuan_v1_dense", {"use_cla": True}, ["use_cla"]),
    ("hunyuan_v1_dense", {"use_qk_norm": False}, ["use_qk_norm"]),
    ("apertus", {"post_norm": True}, ["post_norm"]),
    ("llama", {"hidden_act": "xielu"}, ["hidden_act", "xielu"]),
    ("gpt_neo", {"attention_layers": ["local", "local"]}, ["attention_layers", "what attention_types says"]),
    ("gpt_neo", {"attention_types": [[["global", "local"], 2]]}, ["attention_types", "for 2 layers"]),
    ("gpt_neo", {"attention_types": [[["global", "near"], 1]]}, ["attention_types", "near"]),
    ("gpt_neo", {"window_size": None}, ["window_size"]),
    ("gpt_neo", {"is_causal": False}, ["is_causal"]),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, ["apply_residual_connection_post_layernorm", "before the norm"]),
    ("bloom", {"slow_but_exact": True, "pretraining_tp": 2}, ["slow_but_exact", "two biases"]),
    ("bloom", {"n_inner": 20}, ["n_inner is 20", "four times"]),
    ("bloom", {"is_causal": False}, ["is_causal"]),
    ("mpt", {"attn_config": {"clip_qkv": 6.0}}, ["attn_config.clip_qkv is 6.0", "clipped"]),
    ("mpt", {"attn_config": {"alibi": False}}, ["attn_config.alibi", "all the same"]),
    ("mpt", {"attn_config": {"prefix_lm": True}}, ["attn_config.prefix_lm"]),
    ("mpt", {"attn_config": {"qk_ln": True}}, ["attn_config.qk_ln", "leaves these norms out"]),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, ["attn_config.attn_type"]),
    ("mpt", {"attn_config": {"attn_uses_sequence_id": True}}, ["attn_config.attn_uses_sequence_id"]),
    ("mpt", {"attn_config": {"alibi_bias_max": 16}}, ["attn_config.alibi_bias_max is 16", "slopes of 8"]),
    ("mpt", {"attn_config": {"rope": True}}, ["attn_config.rope"]),
    ("mpt", {"expansion_ratio": 2}, ["expansion_ratio is 2"]),
    ("mpt", {"no_bias": False}, ["no_bias"]),
    ("mpt", {"norm_type": "rmsnorm"}, ["norm_type", "rmsnorm"]),
    ("mpt", {"logit_scale": 0.5}, ["logit_scale is 0.5"]),
    ("mpt", {"is_causal": False}, ["is_causal"]),
    ("mpt", {"auto_map": {"AutoModel": "modeling.Other"}}, ["auto_map", "modeling.Other"]),
    ("mpt", {"architectures": ["MPTForTranslation"]}, ["MPTForTranslation", "MptForCausalLM"]),
    ("xglm", {"pad_token_id": 5}, ["pad_token_id is 5", "below 2"]),
    ("xglm", {"add_cross_attention": True}, ["add_cross_attention"]),
    ("xglm", {"d_model": 2}, ["d_model is 2", "4 or more"]),
    ("xglm", {"is_causal": False}, ["is_causal"]),
    ("modernbert", {"architectures": ["ModernBertForMultipleChoice"]}, ["ModernBertForMultipleChoice", "ModernBertForMaskedLM"]),
    ("modernbert", {"classifier_pooling": "max"}, ["classifier_pooling", "cls or mean"]),
    ("modernbert", {"layer_types": ["full_attention", "chunked_attention"]}, ["layer_types[1]", "chunked_attention"]),
    ("modernbert", {"local_rope_theta": None, "rope_parameters": None}, ["local_rope_theta"]),
    ("modernbert", {"sliding_window": -1}, ["layer 1", "no sliding_window"]),
    ("modernbert", {"sliding_window": None}, ["sliding_window is null"]),
    ("modernbert", {"is_decoder": True}, ["is_decoder"]),
    ("modernbert", {"position_embedding_type": "sans_pos"}, ["position_embedding_type", "sans_pos"]),
    ("modernbert-decoder", {"local_attention": None, "sliding_window": -1}, ["layer 1", "no sliding_window"]),
    ("modernbert-decoder", {"is_causal": False}, ["is_causal"]),
    ("granite", {"logits_scaling": 0}, ["logits_scaling", "above 0"]),
    ("granite", {"residual_multiplier": 0}, ["residual_multiplier", "above 0"]),
    ("granite", {"is_causal": False}, ["is_causal"]),
    ("olmo2", {"clip_qkv": 8.0}, ["clip_qkv", "no linear maps"]),
    ("olmo2", {"sliding_window": 8}, ["sliding_window", "no window"]),
    ("olmo3", {"clip_qkv": 8.0}, ["clip_qkv", "no linear maps"]),
    ("olmo3", {"sliding_window": None}, ["sliding_window", "even where no layer uses it"]),
    ("olmo3", {"layer_types": ["chunked_attention"]}, ["layer_types", "chunked_attention"]),
    ("olmo3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}, ["rope_parameters"]),
    ("cohere", {"position_embedding_type": "absolute"}, ["position_embedding_type", "absolute"]),
    ("cohere", {"use_parallel_block": False}, ["use_parallel_block"]),
    ("cohere", {"logit_scale": 0}, ["logit_scale", "above 0"]),
    ("cohere", {"auto_map": {"AutoModel": "modeling.Other"}}, ["auto_map", "modeling.Other"]),
    ("cohere2", {"sliding_window": None}, ["sliding_window", "even where no layer uses it"]),
    ("cohere2", {"layer_types": ["chunked_attention"]}, ["layer_types", "chunked_attention"]),
    ("cohere2", {"layer_switch": 3}, ["layer_switch"]),
    ("stablelm", {"num_key_value_heads": 1}, ["k_layernorm.norms.1.weight"]),
]


FILES = [  # the model, what is done in its folder, words of the message
    ("llama", lambda folder: (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}'), ["adapter"]),
    ("llama", lambda folder: save_file({"a": torch.ones(1)}, folder / "adapter_model.safetensors"), ["adapter"]),
    ("llama", lambda folder: pickle_model(folder), ["pytorch_model.bin", "'torch.nn.modules.linear.Linear'", "safetensors"]),
    ("llama", lambda folder: add_tensor(folder, "model.layers.0.mlp.up_proj.qweight"), ["qweight", "quantised"]),
    ("llama", lambda folder: add_tensor(folder, "model.layers.0.mlp.experts.0.w1.weight"), ["mixtures of experts"]),
    ("llama", lambda folder: add_tensor(folder, "model.layers.0.self_attn.q_proj.lora_A.weight"), ["adapters"]),
    ("bert", lambda folder: add_tensor(folder, "encoder.layer.0.crossattention.self.key.weight"), ["cross attention"]),
]


def pickle_model(folder):
    """The module itself and not its state dict: a program."""
    torch.save(torch.nn.Linear(1, 1), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def add_tensor(folder, name):
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name: torch.ones(2, 2)}, path)


def refused(model, tokens, words):
    """Empty where the model is refused with all of these words."""
    result = pare("run", model, "-o", tokens.with_name("refused.safetensors"), "--tokens", tokens)
    if result.returncode != 1:
        return f"exit code {result.returncode}, expected 1: {result.stderr}"
    absent = [word for word in words if word not in result.stderr]
    return absent and f"{absent} not in: {result.stderr}"


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
        report.check(f"{name} with {changes}", refused(folder / name, tokens, words))
        path.write_text(before)
    for number, (name, change, words) in enumerate(FILES):
        changed = folder / f"{name}-changed-{number}"
        shutil.copytree(folder / name, changed)
        change(changed)
        report.check(f"{name} with other files {number} ({words[-1]})", refused(changed, tokens, words))
