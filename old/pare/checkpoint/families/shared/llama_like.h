#pragma once
// What Llama and its relatives share: rotary positions, RMSNorm before each sublayer, grouped key/value heads, a gated
// MLP, and the names of all these. A family file says what its own model does differently.

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

// What holds for all models of a family, and what its class in Hugging Face takes where the file is silent.
struct LlamaLike {
  std::string_view model_type;
  std::string_view classes;  // how the names of its classes begin: "Llama" of LlamaForCausalLM
  int64_t width, vocab, context, layers, heads, mlp_width;
  std::optional<int64_t> kv_heads = {};    // absent: as many as there are heads
  std::optional<int64_t> head_width = {};  // absent: the width divided by the heads
  std::string_view activation_key = "hidden_act", activation = "silu";
  bool tied = false;
  bool biased_by_key = false;                  // attention_bias gives all four projections a bias
  double gain_offset = 0;                      // of every norm
  bool scaled_embedding = false;               // by the square root of the width
  std::string_view answers = "qa_outputs";     // the head of question answering; empty: the family has no such class
  std::string_view answers_prefix = "model.";  // of all other tensors in files of that class
  bool stored_frequencies = false;             // older files hold those of RoPE too, for nobody to read
};

// All layers are one block, repeated; what the family does differently is then changed there.
Architecture read_llama_like(Config& config, const LlamaLike& like);
nlohmann::ordered_json write_llama_like(const Architecture& architecture, const LlamaLike& like);
std::vector<Binding> bind_llama_like(const Architecture& architecture, const LlamaLike& like);

// The family itself, the last line of its file. `like` is a parameter of the template because a Family holds plain
// functions.
Family llama_like_family(const LlamaLike& like, decltype(Family::read_config) read,
                         decltype(Family::write_config) write, decltype(Family::bindings) bindings);
template <const LlamaLike& like>
Family llama_like_family(decltype(Family::read_config) read, decltype(Family::write_config) write) {
  return llama_like_family(like, read, write, [](const Architecture& a) { return bind_llama_like(a, like); });
}

// sliding_window: 4096 where the file is silent, none where it says null.
std::optional<int64_t> read_window(Config& config);
// Gives a window to the layers that layer_types names, or, where there is no such list, to those for which `slides`.
// Comes last: the layers are different blocks afterwards.
void read_layer_types(Config& config, Architecture& architecture, std::optional<int64_t> window,
                      const std::function<bool(int64_t layer)>& slides);
// sliding_window (null where no layer has one) and layer_types.
void write_layer_types(nlohmann::ordered_json& config, const Architecture& architecture);

// Qwen: with use_sliding_window, the layers from max_window_layers on have a window, or those that layer_types names.
void read_late_windows(Config& config, Architecture& architecture);
void write_late_windows(nlohmann::ordered_json& config, const Architecture& architecture);

// Some files name the activation a second time, under a key that Hugging Face no longer reads: it must not disagree.
void check_activation(Config& config, std::string_view key, Activation activation);

}  // namespace pare
