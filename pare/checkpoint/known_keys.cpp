#include "pare/checkpoint/known_keys.h"

#include <fmt/format.h>

#include <algorithm>

namespace pare {

using nlohmann::json;

namespace {

// Keys of any model that leave its function alone, whatever their value. tests/slow/configuration_search.py tries them.
constexpr std::string_view neutral_keys[] = {
    // Who made it, and with what.
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_num_labels",
    "architectures",
    "model_max_length",
    "model_type",
    "name_or_path",
    "sbert_ce_default_activation_function",
    "sentence_transformers",
    "tokenizer_class",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "xla_device",
    // The type to compute in: a choice of whoever runs it.
    "dtype",
    "torch_dtype",
    "use_bfloat16",
    // Tokens with a meaning. A family whose positions or heads depend on one reads it.
    "bos_token_id",
    "cls_token_id",
    "decoder_start_token_id",
    "eos_token_id",
    "eos_token_ids",
    "mask_token_id",
    "pad_token_id",
    "pad_token_ids",
    "sep_token_id",
    "unk_token_id",
    // Training.
    "activation_dropout",
    "attention_dropout",
    "attention_dropout_prob",
    "attention_probs_dropout_prob",
    "attn_pdrop",
    "classifier_dropout",
    "classifier_dropout_prob",
    "dropout",
    "embd_dropout",
    "embd_pdrop",
    "embed_dropout",
    "embedding_dropout",
    "finetuning_task",
    "gradient_checkpointing",
    "hidden_dropout",
    "hidden_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "problem_type",
    "resid_dropout",
    "resid_pdrop",
    "residual_dropout",
    "tf_legacy_loss",
    // Of another kind of class: encoders, which have it, read it.
    "is_decoder",
    // Labels and heads, where the class has none.
    "id2label",
    "label2id",
    "num_labels",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    // What is handed back, and how it is computed.
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "return_dict",
    "tie_last_hidden_states",
    "torchscript",
    "use_cache",
    // Generation, which begins where the logits end.
    "assistant_confidence_threshold",
    "assistant_lookbehind",
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "prefix",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "target_lookbehind",
    "task_specific_params",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
};

// Keys that change what any model computes, unless its family reads them; each with what pare lacks for it.
constexpr std::pair<std::string_view, std::string_view> switching_keys[] = {
    {"adapters", "adapters are not supported: merge them into the model first"},
    {"add_cross_attention", "cross attention is not supported"},
    {"attention_chunk_size", "chunked attention is not supported"},
    {"auto_map", "models with code of their own are not supported"},
    {"compression_config", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"configuration_files", "transformers then reads another file in place of this one, which is not supported"},
    {"cross_attention_hidden_size", "cross attention is not supported"},
    {"cross_attention_layers", "cross attention is not supported"},
    {"fusion_config", "fused modules are not supported"},
    {"is_encoder_decoder", "encoder-decoder models are not supported"},
    {"layer_types", "this family has no kinds of layers"},
    {"moe_num_experts", "mixtures of experts are not supported"},
    {"n_routed_experts", "mixtures of experts are not supported"},
    {"num_experts", "mixtures of experts are not supported"},
    {"num_local_experts", "mixtures of experts are not supported"},
    {"per_layer_config", "settings of single layers are not supported"},
    {"pruned_heads", "pruned heads are not supported"},
    {"quantization", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"quantization_config", "quantised weights are not supported: take the checkpoint that these were made from"},
    {"sliding_window", "this family has no window"},
    {"transformers_weights",
     "transformers then reads its weights from that file: give it the usual name, and take the "
     "key out"},
};

// How attention is computed, by names that mean the same function. Any other may be code from elsewhere.
constexpr std::string_view attention_keys[] = {"_attn_implementation", "_attn_implementation_internal",
                                               "attn_implementation"};
constexpr std::string_view attention_kernels[] = {"eager", "sdpa", "flash_attention_2", "flash_attention_3",
                                                  "flex_attention"};

template <typename Range, typename Value>
bool is_among(const Range& range, const Value& value) {
  return std::find(std::begin(range), std::end(range), value) != std::end(range);
}

// What Python calls false: such a value never switches a feature on.
bool is_off(const json& value) {
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

const std::pair<std::string_view, std::string_view>* find_switch(std::string_view key) {
  const auto found = std::find_if(std::begin(switching_keys), std::end(switching_keys),
                                  [&](const auto& entry) { return entry.first == key; });
  return found == std::end(switching_keys) ? nullptr : &*found;
}

std::string refusal_of(std::string_view key, const json& value, std::string_view reason) {
  // The method may stand where a long value is cut.
  const bool names_method = value.is_object() && value.contains("quant_method");
  return fmt::format("{} is {}: {}", key, names_method ? shown(value["quant_method"]) : shown(value), reason);
}

}  // namespace

KnownKey known_key(std::string_view key, const json& value) {
  if (const auto* known = find_switch(key)) {
    return is_off(value) ? KnownKey{.is_neutral = true} : KnownKey{.refusal = refusal_of(key, value, known->second)};
  }
  if (is_among(attention_keys, key)) {
    const bool known = value.is_null() || (value.is_string() && is_among(attention_kernels, value.get<std::string>()));
    return known ? KnownKey{.is_neutral = true}
                 : KnownKey{.refusal = refusal_of(key, value, "attention with code of its own is not supported")};
  }
  return {.is_neutral = is_among(neutral_keys, key)};
}

std::vector<std::string> unsupported_features(const json& config) {
  std::vector<std::string> reasons;
  for (const auto& [key, value] : config.items()) {
    const auto* known = find_switch(key);
    if (known != nullptr && !is_off(value)) {
      reasons.push_back(refusal_of(key, value, known->second));
    }
  }
  return reasons;
}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

}  // namespace pare
