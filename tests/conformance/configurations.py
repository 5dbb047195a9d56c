#!/usr/bin/env python3
"""Configurations that must open as they are: every key that transformers writes, and those of published files.

A key that pare does not know is refused, so its lists have to be complete. transformers' own classes say what is
written today; keys of older files, and of programs around transformers, are listed below.
"""

import importlib
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
from report import PARE, Report  # noqa: E402  (the folders above are not a package)

# What any file of the years 2019 to 2024 may hold: PretrainedConfig wrote every key then, with these values.
WRITTEN_ONCE = {
    "_attn_implementation_autoset": True, "_commit_hash": "0123abcd", "_flash_attn_2_enabled": False,
    "_name_or_path": "somewhere/else", "_num_labels": 2, "add_cross_attention": False, "bad_words_ids": None,
    "begin_suppress_tokens": None, "chunk_size_feed_forward": 0, "cross_attention_hidden_size": None,
    "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False, "early_stopping": False,
    "encoder_no_repeat_ngram_size": 0, "eos_token_ids": 0, "exponential_decay_length_penalty": None,
    "finetuning_task": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "is_decoder": False, "is_encoder_decoder": False,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "length_penalty": 1.0, "max_length": 20, "min_length": 0,
    "no_repeat_ngram_size": 0, "num_beam_groups": 1, "num_beams": 1, "num_labels": 2, "num_return_sequences": 1,
    "output_attentions": False, "output_hidden_states": False, "output_past": True, "output_scores": False,
    "prefix": None, "problem_type": None, "pruned_heads": {}, "quantization_config": None, "remove_invalid_values": False,
    "repetition_penalty": 1.0, "return_dict": True, "return_dict_in_generate": False, "sep_token_id": None,
    "suppress_tokens": None, "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "temperature": 1.0, "tf_legacy_loss": False, "tie_encoder_decoder": False, "tokenizer_class": None, "top_k": 50,
    "top_p": 1.0, "torch_dtype": "float32", "torchscript": False, "transformers_version": "4.40.0", "typical_p": 1.0,
    "use_bfloat16": False, "use_cache": True, "xla_device": None,
    # Programs around transformers.
    "model_max_length": 512, "sentence_transformers": {"version": "4.0.0"}, "transformers.js_config": {"dtype": "q4"},
    "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity", "unsloth_fixed": True,
    "unsloth_version": "2025.1.5",
}
# What published files of a family hold beside what its class writes now.
PUBLISHED = {
    "albert": {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0,
               "position_embedding_type": "absolute"},
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True, "rope_theta": 12000000,
                "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
                                 "rope_type": "llama3", "type": "llama3"}},
    "arcee": {"rope_scaling": None, "rope_theta": 10000.0},
    "bert": {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
             "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "position_embedding_type": "absolute"},
    "biogpt": {},
    "bloom": {"attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "masked_softmax_fusion": True, "n_embed": 64, "n_inner": None,
              "num_attention_heads": 8, "offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False,
              "unk_token_id": 0},
    "camembert": {"position_embedding_type": "absolute"},
    "clip_text_model": {"dropout": 0.0, "projection_dim": 512},
    "clip_vision_model": {"dropout": 0.0, "projection_dim": 512},
    "codegen": {"n_ctx": 2048, "rotary": True, "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1,
                "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True},
    "cohere": {"position_embedding_type": "rope_gptj", "pretraining_tp": 1, "rope_scaling": None, "rope_theta": 8000000.0, "rotary_pct": 1.0,
               "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": True,
               "auto_map": {"AutoConfig": "configuration_cohere.CohereConfig", "AutoModelForCausalLM": "modeling_cohere.CohereForCausalLM"}},
    "cohere2": {"cache_implementation": "hybrid", "layer_switch": 4, "order_of_interleaved_layers": "local_attn_first",
                "position_embedding_type": "rope_gptj", "rope_scaling": None, "rope_theta": 50000, "rotary_pct": 1.0, "sliding_window_pattern": 4,
                "use_embedding_sharing": True, "use_gated_activation": True, "use_parallel_block": True, "use_parallel_embedding": False},
    "deit": {},
    "dinov2": {"drop_path_rate": 0.0, "out_features": ["stage12"], "out_indices": [12], "stage_names": ["stem", "stage1"]},
    "dinov2_with_registers": {"drop_path_rate": 0.0, "interpolate_antialias": True, "interpolate_offset": 0.0, "out_features": ["stage12"],
                              "out_indices": [12], "stage_names": ["stem", "stage1"], "use_mask_token": True},
    "distilbert": {"sinusoidal_pos_embds": False, "tie_weights_": True},
    "electra": {"position_embedding_type": "absolute"},
    "ernie4_5": {"rope_scaling": None, "rope_theta": 500000.0},
    "esm": {"classifier_dropout": None, "hidden_act": "gelu", "mask_token_id": 32, "pad_token_id": 1, "position_embedding_type": "rotary",
            "token_dropout": True, "vocab_size": 33},
    "eurobert": {"auto_map": {"AutoConfig": "configuration_eurobert.EuroBertConfig", "AutoModel": "modeling_eurobert.EuroBertModel"},
                 "clf_pooling": "late", "hidden_dropout": 0.0, "mask_token": "<|mask|>", "rope_scaling": None, "rope_theta": 250000},
    "exaone4": {"rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None, "sliding_window_pattern": "LLLG"},
    "falcon": {"apply_residual_connection_post_layernorm": False, "ff_factor": 4, "rope_theta": 10000.0,
               "rope_scaling": None, "auto_map": {"AutoConfig": "configuration_falcon.FalconConfig"}},
    "gemma": {"hidden_activation": None, "rope_theta": 10000.0, "rope_scaling": None},
    "gemma2": {"cache_implementation": "hybrid", "hidden_act": "gelu_pytorch_tanh", "sliding_window_size": 4096,
               "rope_theta": 10000.0},
    "gemma3": {"eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model", "vision_use_head": False},
               "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
                               "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}},
    "gemma3_text": {"cache_implementation": "hybrid", "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
                    "sliding_window_pattern": 6, "_sliding_window_pattern": 6},
    "glm": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "glm4": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    "gpt2": {"n_ctx": 1024, "predict_special_tokens": True},
    "gpt_bigcode": {"attention_softmax_in_fp32": True, "inference_runner": 0, "max_batch_size": None, "max_sequence_length": None, "pad_key_length": True,
                    "pre_allocate_kv_cache": False, "scale_attention_softmax_in_fp32": True, "summary_activation": None,
                    "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
                    "validate_runner_input": True},
    "gpt_neo": {"attention_layers": ["global", "local"] * 12, "attention_types": [[["global", "local"], 12]],
                "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
                "summary_use_proj": True},
    "gpt_neox": {"attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0, "rotary_emb_base": 10000, "rotary_pct": 0.25,
                 "rope_scaling": None},
    "gptj": {"n_ctx": 2048, "rotary": True, "scale_attn_weights": True, "summary_activation": None,
             "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index",
             "summary_use_proj": True},
    "granite": {"rope_scaling": None, "rope_theta": 10000000.0},
    "gte": {},
    "helium": {"rope_theta": 100000.0},
    "hunyuan_v1_dense": {
        "add_classification_head": False, "attention_head_dim": 128, "cla_share_factor": 2, "class_num": 0, "dense_list": [4096, 0],
        "group_limited_greedy": False, "head_dim": 128, "im_end_id": 6, "im_newline_id": 12, "im_start_id": 5, "kv_lora_rank": None,
        "mask_init_id": 13, "mlp_bias": False, "norm_type": "rms", "org_vocab_size": 128167, "pad_id": 127961, "pool_type": "last",
        "q_lora_rank": None, "qk_nope_head_dim": None, "qk_rope_head_dim": None, "routed_scaling_factor": False, "sep_token_id": 127962,
        "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
                         "type": "dynamic"},
        "rope_theta": 10000.0, "text_end_id": 7, "text_start_id": 6, "topk_group": False, "use_cla": False, "use_qk_norm": True,
        "use_rotary_pos_emb": True, "v_head_dim": None},
    "llama": {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 10000.0},
    "ministral": {"rope_theta": 10000.0},
    "mistral": {"rope_theta": 10000.0},
    "modernbert": {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "layer_norm_eps": 1e-05, "local_rope_theta": 10000.0,
                   "position_embedding_type": "absolute", "reference_compile": None, "repad_logits_with_grad": False},
    "modernbert_decoder": {"classifier_pooling": "mean", "deterministic_flash_attn": False, "global_attn_every_n_layers": 3,
                           "global_rope_theta": 160000.0, "layer_norm_eps": 1e-05, "local_rope_theta": 160000.0,
                           "position_embedding_type": "absolute", "reference_compile": False, "repad_logits_with_grad": False,
                           "sparse_pred_ignore_index": -100, "sparse_prediction": False},
    "mpt": {"architectures": ["MPTForCausalLM"], "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig", "AutoModelForCausalLM": "modeling_mpt.MPTForCausalLM"},
            "attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0, "attn_type": "multihead_attention",
                            "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None},
            "init_config": {"fan_mode": "fan_in", "init_nonlinearity": "relu", "name": "kaiming_normal_", "verbose": 0},
            "tokenizer_name": "EleutherAI/gpt-neox-20b", "verbose": 0},
    "nanochat": {"rope_scaling": None, "rope_theta": 10000.0},
    "nemotron": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0},
    "nomic_bert": {"activation_function": "swiglu", "attn_pdrop": 0.0, "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
                   "causal": False, "dense_seq_output": True, "embd_pdrop": 0.0, "fused_bias_fc": True, "fused_dropout_add_ln": True,
                   "layer_norm_epsilon": 1e-12, "max_trained_positions": 2048, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "n_embd": 768,
                   "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 2048, "pad_vocab_size_multiple": 64, "parallel_block": False,
                   "parallel_block_tied_norm": False, "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False,
                   "resid_pdrop": 0.0, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
                   "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "scale_attn_by_inverse_layer_idx": False,
                   "scale_attn_weights": True, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
                   "summary_type": "cls_index", "summary_use_proj": True, "use_flash_attn": True, "use_rms_norm": False,
                   "use_xentropy": True},
    "olmo": {"rope_scaling": None, "rope_theta": 10000.0},
    "olmo2": {"rope_scaling": None, "rope_theta": 500000},
    "olmo3": {"rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0,
                               "original_max_position_embeddings": 8192, "rope_type": "yarn"}, "rope_theta": 500000},
    "openai_gpt": {"n_ctx": 512, "n_special": 0, "predict_special_tokens": True},
    "opt": {"activation_dropout": 0.0, "learned_embeddings": True, "scale_embeddings": False, "prefix": "</s>"},
    "phi": {"partial_rotary_factor": 0.5, "rope_scaling": None, "rope_theta": 10000.0,
            "auto_map": {"AutoModelForCausalLM": "modeling_phi.PhiForCausalLM"}},
    "phi3": {"auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM", "AutoTokenizer": "Xenova/gpt-4o"}, "attention_bias": False, "original_max_position_embeddings": 4096,
             "rope_scaling": None, "rope_theta": 10000.0},
    "qwen2": {"rope_scaling": None, "rope_theta": 1000000.0, "use_mrope": False},
    "qwen3": {"rope_scaling": None, "rope_theta": 1000000.0},
    "roberta": {"position_embedding_type": "absolute"},
    "roberta_prelayernorm": {"position_embedding_type": "absolute"},
    "seed_oss": {"rope_theta": 10000000.0},
    "siglip_text_model": {},
    "siglip_vision_model": {},
    "smollm3": {"max_window_layers": 28, "pretraining_tp": 2, "rope_scaling": None, "rope_theta": 2000000.0},
    "stablelm": {"norm_eps": 1e-5, "partial_rotary_factor": 0.25, "rope_scaling": None, "rope_theta": 10000},
    "starcoder2": {"activation_function": "gelu", "attention_softmax_in_fp32": True, "layer_norm_epsilon": 1e-5,
                   "mlp_type": "default", "norm_type": "layer_norm", "rope_theta": 999999.4420358813,
                   "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True},
    "vit": {},
    "xglm": {},
    "xlm_roberta": {"position_embedding_type": "absolute"},
}


def read_all(configurations):
    """What pare says to each: its Architecture, or a refusal."""
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for number, config in enumerate(configurations):
            paths.append(pathlib.Path(folder, f"{number}.json"))
            paths[-1].write_text(json.dumps(config))
        told = subprocess.run([str(PARE.parent / "read_configs")], input="".join(f"{path}\n" for path in paths),
                              capture_output=True, text=True, timeout=300)
        return [json.loads(line) for line in told.stdout.splitlines()]


def cases():
    """(name, configuration): the defaults of every family for every class it has, then with what files held before."""
    import random

    for path in sorted((HERE / "families").glob("*.py")):
        family = importlib.import_module(f"families.{path.stem}")
        drawn = [family.draw(random.Random(index), index)[:2] for index in range(8)]
        classes = {model_class.__name__ for _, model_class in drawn} | {head.__name__ for head in family.HEADS}
        config_class = type(drawn[0][0])
        default = config_class(**getattr(family, "NEEDED", {}))  # what its class has no default for that works
        written = json.loads(default.to_json_string(use_diff=False))
        shorter = json.loads(default.to_json_string())
        for name in sorted(classes):
            yield f"{name}, every key", written | {"architectures": [name]}
            yield f"{name}, as saved", shorter | {"architectures": [name]}
        older = {key: value for key, value in written.items() if key not in ("rope_parameters", "dtype")}
        yield f"{path.stem}, as published", older | WRITTEN_ONCE | PUBLISHED[path.stem]


def main():
    report = Report("configurations")
    report.transformers()
    named = list(cases())
    answers = read_all([config for _, config in named])
    for (name, _), told in zip(named, answers, strict=True):
        report.check(name, told.get("refusal", ""))
    unknown = [config | {"a_key_of_tomorrow": 1} for _, config in named]
    for (name, _), told in zip(named, read_all(unknown), strict=True):
        report.check(f"{name}, and one more", "" if "'a_key_of_tomorrow'" in told.get("refusal", "") else "was read")
    report.finish()


if __name__ == "__main__":
    main()
