#pragma once
// Which tensor: of which block, in which sublayer, in which slot of it, and which of the slot's tensors.
// Code asks these four; names are for people and files, are printed from them, and are parsed nowhere but where a name
// comes in from outside.

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

namespace pare {

enum class Sublayer { embedding, attention, mlp, end, head };

enum class Slot {
  own,  // the sublayer's only one: head.weight
  // embedding
  token,
  position,
  type,
  patch,
  class_token,
  registers,
  table,
  projection,
  // attention; query, value, output and gate are slots of MLPs too
  query,
  query_up,
  query_down,
  key,
  value,
  output,
  query_key,
  value_output,
  key_from_value,
  value_from_key,
  query_norm,
  key_norm,
  gate,
  shape,
  // MLP
  up,
  down,
  curve_positive,  // the four numbers of an activation that is trained
  curve_negative,
  curve_slope,
  curve_least,
  // norms of any sublayer
  norm,
  output_norm,
  // head
  transform,
  transform_norm,
  pool_norm,
  pool_probe,  // attention that pools
  pool_query,
  pool_key,
  pool_value,
  pool_output,
  pool_mlp_norm,
  pool_up,
  pool_down,
  sequence,
  sequence_transform,
  sequence_transform_norm,
};

enum class TensorKind {
  weight,
  bias,
  alpha,
  pivot,
  position,
  whole
};  // whole: the slot is one tensor, without a suffix

// What owns a weight and perhaps a bias: "blocks.3.attention.query".
struct ModuleId {
  std::optional<int64_t> block;  // absent: of the model itself
  Sublayer sublayer = Sublayer::embedding;
  Slot slot = Slot::own;
  auto operator<=>(const ModuleId&) const = default;
};

struct TensorId {
  ModuleId module;
  TensorKind kind = TensorKind::weight;
  auto operator<=>(const TensorId&) const = default;
};

std::string name_of(const ModuleId& module);
std::string name_of(const TensorId& tensor);  // "blocks.3.attention.query.weight"

inline ModuleId in_attention(int64_t block, Slot slot) {
  return {block, Sublayer::attention, slot};
}
inline ModuleId in_mlp(int64_t block, Slot slot) {
  return {block, Sublayer::mlp, slot};
}
inline TensorId weight_of(const ModuleId& module) {
  return {module, TensorKind::weight};
}
inline TensorId bias_of(const ModuleId& module) {
  return {module, TensorKind::bias};
}

constexpr ModuleId in_embedding(Slot slot) {
  return {std::nullopt, Sublayer::embedding, slot};
}
constexpr ModuleId in_head(Slot slot) {
  return {std::nullopt, Sublayer::head, slot};
}

constexpr ModuleId token_table = in_embedding(Slot::token);  // which a tied head shares
constexpr ModuleId position_table = in_embedding(Slot::position);
constexpr ModuleId final_norm = {std::nullopt, Sublayer::end, Slot::norm};
constexpr ModuleId head_matrix = in_head(Slot::own);

}  // namespace pare
