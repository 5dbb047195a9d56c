#include "pare/arch/tensor_id.h"

#include "pare/support/error.h"

namespace pare {

namespace {

constexpr size_t longest_usual = 40;  // "blocks.100.attention.value_output.weight"

// Names are made by the hundred thousand: without a format string.
std::string in_block(const ModuleId& module, const char* sublayer) {
  std::string name = "blocks.";
  name.reserve(longest_usual);
  return name.append(std::to_string(*module.block)).append(sublayer);
}

std::string prefix_of(const ModuleId& module) {
  switch (module.sublayer) {
    case Sublayer::embedding:
      return "embed.";
    case Sublayer::attention:
      return in_block(module, ".attention.");
    case Sublayer::mlp:
      return in_block(module, ".mlp.");
    case Sublayer::end:
      return "";
    case Sublayer::head:
      return module.slot == Slot::own ? "head" : "head.";
  }
  PARE_UNREACHABLE("a sublayer without a name");
}

const char* word(Slot slot) {
  switch (slot) {
    case Slot::own:
      return "";
    case Slot::token:
      return "token";
    case Slot::position:
      return "position";
    case Slot::type:
      return "type";
    case Slot::patch:
      return "patch";
    case Slot::class_token:
      return "class";
    case Slot::registers:
      return "registers";
    case Slot::table:
      return "table";
    case Slot::projection:
      return "projection";
    case Slot::query:
      return "query";
    case Slot::query_up:
      return "query.up";
    case Slot::query_down:
      return "query.down";
    case Slot::key:
      return "key";
    case Slot::value:
      return "value";
    case Slot::output:
      return "output";
    case Slot::query_key:
      return "qk";
    case Slot::value_output:
      return "vo";
    case Slot::key_from_value:
      return "key_from_value";
    case Slot::value_from_key:
      return "value_from_key";
    case Slot::query_norm:
      return "query_norm";
    case Slot::key_norm:
      return "key_norm";
    case Slot::gate:
      return "gate";
    case Slot::shape:
      return "shape";
    case Slot::up:
      return "up";
    case Slot::down:
      return "down";
    case Slot::curve_positive:
      return "curve.positive";
    case Slot::curve_negative:
      return "curve.negative";
    case Slot::curve_slope:
      return "curve.slope";
    case Slot::curve_least:
      return "curve.least";
    case Slot::norm:
      return "norm";
    case Slot::output_norm:
      return "output_norm";
    case Slot::transform:
      return "transform";
    case Slot::transform_norm:
      return "transform.norm";
    case Slot::pool_norm:
      return "pool.norm";
    case Slot::pool_probe:
      return "pool.probe";
    case Slot::pool_query:
      return "pool.query";
    case Slot::pool_key:
      return "pool.key";
    case Slot::pool_value:
      return "pool.value";
    case Slot::pool_output:
      return "pool.output";
    case Slot::pool_mlp_norm:
      return "pool.mlp_norm";
    case Slot::pool_up:
      return "pool.up";
    case Slot::pool_down:
      return "pool.down";
    case Slot::sequence:
      return "sequence";
    case Slot::sequence_transform:
      return "sequence.transform";
    case Slot::sequence_transform_norm:
      return "sequence.transform.norm";
  }
  PARE_UNREACHABLE("a slot without a name");
}

const char* suffix(TensorKind kind) {
  switch (kind) {
    case TensorKind::weight:
      return ".weight";
    case TensorKind::bias:
      return ".bias";
    case TensorKind::alpha:
      return ".alpha";
    case TensorKind::pivot:
      return ".pivot";
    case TensorKind::position:
      return ".position";
    case TensorKind::whole:
      return "";
  }
  PARE_UNREACHABLE("a kind of tensor without a name");
}

}  // namespace

std::string name_of(const ModuleId& module) {
  return prefix_of(module) + word(module.slot);
}

std::string name_of(const TensorId& tensor) {
  return name_of(tensor.module) + suffix(tensor.kind);
}

}  // namespace pare
