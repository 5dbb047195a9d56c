#pragma once
// The fields that keys of many families set, each with its range. A row of a table names one: {"hidden_size", width,
// 768}. Keys come in any order, but for this: the width before the heads, these before what they imply.

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

#include "pare/checkpoint/family_table.h"

namespace pare::field {

extern const Field vocab, context, width, types, layers;
extern const Field scaled_width;  // the width, by whose root the embedding is scaled
extern const Field epsilon;       // of every norm that the model has so far
extern const Field parallel;      // true or false: both sublayers read the same stream

// Attention.
extern const Field heads;           // and as many of keys, each as wide as they divide the width
extern const Field kv_heads;        // null, or no default: as many as heads
extern const Field head_width;      // no default: as `heads` has it
extern const Field odd_head_width;  // the same, written only where the heads do not make up the width
extern const Field attention_bias, qkv_bias, output_bias;
extern const Field qk_norm;                     // true or false: queries and keys have the norm that attention has
extern const Field softcap;                     // null: none
Field rope(const RopeSettings& settings = {});  // of all layers that turn
// Of layers with a window, and of those without: after layer_types.
Field rope_by_type(const RopeKinds& kinds);

// The MLP.
extern const Field mlp_width;  // no default: four times the width
extern const Field activation, mlp_bias;
extern const Field biases;  // of attention and MLP

// Windows.
extern const Field window;  // of all layers, or of those that layer_types names; null, or no default: none
// Gives that window to the layers that the list names, or, where there is no list, to those that slide.
Field layer_types(const std::function<bool(int64_t layer)>& slides);
// Qwen's: the same, with use_sliding_window and max_window_layers.
extern const Field late_windows;

// Multipliers, as Granite has them.
extern const Field embedding_scale;  // of embeddings
extern const Field attention_scale;  // of scores
extern const Field residual_scale;   // of what each sublayer adds
extern const Field head_scale;       // of logits
extern const Field head_divisor;     // the same, which they are divided by

// The head.
extern const Field tied;          // of a masked LM
extern const Field labels;        // how many classes a classifier has
extern const Field head_softcap;  // of a language model; null: none

// Refuses any other value than this one.
Field only(const nlohmann::json& value, std::string_view why);
// Says again what another key says: refuses anything else.
Field repeats(const Field& field, std::string_view why);
// The same for a second name of the activation.
extern const Field same_activation;
// auto_map names code beside the file, from before transformers had the family. It is the family's where every class
// in it begins so: then it says nothing. Anything else is refused.
Field own_classes(std::string_view begin);

// For the fields of one family.
Field whole(int64_t& (*of)(Draft& draft), int64_t most, int64_t (*implied)(const Draft& draft) = nullptr);
Field whole(int64_t (*get)(const Draft& draft), void (*set)(Draft& draft, int64_t value), int64_t least, int64_t most);
Field flag(bool (*get)(const Draft& draft), void (*set)(Draft& draft, bool value));
// Every norm of the model, as far as it is there.
void each_norm(Draft& draft, const std::function<void(Norm& norm)>& change);

}  // namespace pare::field
