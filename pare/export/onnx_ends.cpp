#include "pare/export/onnx_layers.h"

#include <ATen/ATen.h>

#include "pare/arch/head.h"

namespace pare {

namespace {

OnnxName class_and_patches(OnnxBuilder& b) {
  const Architecture& a = b.architecture();
  const Patch& patch = *a.embedding.patch;
  const int64_t side = patch.image / patch.size;
  const OnnxName squares = b.transpose(
      b.reshape("pixel_values", {0, patch.channels, side, patch.size, side, patch.size}), {0, 2, 4, 1, 3, 5});
  const OnnxName x = b.linear(b.reshape(squares, {0, side * side, patch.channels * patch.size * patch.size}),
                              in_embedding(Slot::patch));
  if (!a.embedding.class_token) {
    return x;
  }
  const TensorId token{in_embedding(Slot::class_token), TensorKind::whole};
  const OnnxName batch = b.node("Shape", {x}, {{"start", int64_t{0}}, {"end", int64_t{1}}});
  const OnnxName each =
      b.node("Expand", {b.weight(token, {.shape = {1, 1, a.width}}), b.concat({batch, b.indices({1, a.width})}, 0)});
  return b.concat({each, x}, 1);
}

OnnxName times(OnnxBuilder& b, const OnnxName& x, double factor) {
  return factor == 1 ? x : b.node("Mul", {x, b.real(factor)});
}

// The vector that stands for a sequence: its first or its last real token.
OnnxName pooled_token(OnnxBuilder& b, OnnxStep& step, const OnnxName& x, Pool pool) {
  if (step.mask().empty()) {
    return b.node("Gather", {x, b.index(pool == Pool::first ? 0 : -1)}, {{"axis", int64_t{1}}});
  }
  const OnnxName mask = step.at_hand(step.mask(), 1);
  const OnnxName counted = b.node("CumSum", {mask, b.index(1)});  // stays the same from the last one on
  const OnnxName number = pool == Pool::first ? b.index(1) : b.slice(counted, -1, INT64_MAX, 1);
  const OnnxName before = b.cast(b.node("Less", {counted, number}), OnnxType::i64);
  const OnnxName place = b.node("ReduceSum", {before, b.indices({1})}, {{"keepdims", int64_t{1}}});  // [batch, 1]
  const OnnxName tokens = b.node("Shape", {mask}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const OnnxName there = b.node("Min", {place, b.node("Sub", {tokens, b.index(1)})});
  return b.node("GatherND", {x, there}, {{"batch_dims", int64_t{1}}});
}

OnnxName transformed(OnnxBuilder& b, const OnnxName& x, const std::optional<HeadTransform>& transform, Slot slot,
                     Slot norm, int64_t width) {
  if (!transform) {
    return x;
  }
  const OnnxName y = emit_activation(b, transform->activation, b.linear(x, in_head(slot)));
  return emit_norm(b, y, transform->norm, in_head(norm), width);
}

OnnxName head_of(OnnxBuilder& b, const OnnxName& x) {
  const Architecture& a = b.architecture();
  if (!a.head.tied) {
    return b.linear(x, head_matrix);
  }
  const OnnxName matrix = b.transpose(b.weight(weight_of(token_table)), {1, 0});
  return b.plus(b.node("MatMul", {x, matrix}), b.weight(bias_of(head_matrix)));
}

}  // namespace

void declare_inputs(OnnxBuilder& b, bool cached) {
  const Embedding& e = b.architecture().embedding;
  if (e.patch) {
    b.input("pixel_values", b.type(), {batch_axis, e.patch->channels, e.patch->image, e.patch->image});
    return;
  }
  b.input("input_ids", OnnxType::i64, {batch_axis, tokens_axis});
  b.input("attention_mask", OnnxType::i64, {batch_axis, cached ? all_axis : tokens_axis});
  if (e.types > 0) {
    b.input("token_type_ids", OnnxType::i64, {batch_axis, tokens_axis});
  }
}

OnnxEmbedded emit_embedding(OnnxBuilder& b, OnnxStep& step) {
  const Architecture& a = b.architecture();
  const Embedding& e = a.embedding;
  b.enter("embed");
  const auto rows = [&b](const OnnxName& table, const OnnxName& ids) {
    return b.node("Gather", {table, ids}, {{"axis", int64_t{0}}});
  };
  if (a.first_layer == FirstLayer::table) {
    const OnnxName both = rows(b.weight(weight_of(in_embedding(Slot::table))), "input_ids");
    return {b.slice(both, 0, a.width, 2), b.slice(both, a.width, INT64_MAX, 2)};
  }
  OnnxName x = e.patch ? class_and_patches(b) : rows(b.weight(weight_of(token_table)), "input_ids");
  x = times(b, x, e.scale);
  if (e.factor && e.factor_scope == FactorScope::token) {
    x = b.linear(x, in_embedding(Slot::projection));
  }
  if (e.types > 0) {
    const OnnxName types = b.weight(weight_of(in_embedding(Slot::type)));
    const OnnxName first = e.patch ? b.index(0) : "token_type_ids";  // patches are all of type 0
    x = b.node("Add", {x, rows(types, first)});
  }
  if (e.position == Position::learned) {
    OnnxName places = step.positions(false);
    b.enter("embed");
    if (e.position_offset != 0) {
      places = b.node("Add", {places, b.index(e.position_offset)});
    }
    x = b.node("Add", {x, rows(b.weight(weight_of(position_table)), places)});
  } else if (e.position == Position::sinusoidal) {
    const OnnxName waves = step.sinusoidal(embedding_width(a));
    b.enter("embed");
    x = b.node("Add", {x, waves});
  }
  x = emit_norm(b, x, e.norm, in_embedding(Slot::norm), embedding_width(a));
  return {e.factor && e.factor_scope == FactorScope::sum ? b.linear(x, in_embedding(Slot::projection)) : x, ""};
}

void emit_answers(OnnxBuilder& b, OnnxStep& step, const OnnxName& stream) {
  const Architecture& a = b.architecture();
  const auto each_token = [&](int64_t columns) -> std::vector<std::variant<int64_t, std::string>> {
    if (a.embedding.patch) {
      return {batch_axis, patch_positions(a), columns};
    }
    return {batch_axis, tokens_axis, columns};
  };
  b.enter("head");
  const OnnxName hidden = emit_norm(b, stream, a.final_norm, final_norm, a.width);
  const bool of_sequence = answers_sequences(a) || has_pooler(a);
  const OnnxName pooled = of_sequence || a.head.sequence ? pooled_token(b, step, hidden, a.head.pool) : "";
  const OnnxName x = transformed(b, of_sequence ? pooled : hidden, a.head.transform, Slot::transform,
                                 Slot::transform_norm, head_input_width(a));
  if (a.task == Task::encoder) {
    if (has_pooler(a)) {
      b.output(hidden, "last_hidden_state", each_token(a.width));
      b.output(x, "pooled", {batch_axis, head_input_width(a)});
    } else {
      b.output(x, "last_hidden_state", each_token(hidden_width(a)));
    }
    return;
  }
  OnnxName logits = head_of(b, x);
  if (a.head.softcap) {
    const OnnxName cap = b.real(*a.head.softcap);
    logits = b.node("Mul", {b.node("Tanh", {b.node("Div", {logits, cap})}), cap});
  }
  if (answers_sequences(a)) {
    b.output(logits, "logits", {batch_axis, head_size(a)});
  } else {
    b.output(logits, "logits", each_token(head_size(a)));
  }
  if (a.head.sequence) {
    b.enter("head.sequence");
    const OnnxName read = transformed(b, pooled, a.head.sequence->transform, Slot::sequence_transform,
                                      Slot::sequence_transform_norm, sequence_head_input_width(a));
    b.output(b.linear(read, in_head(Slot::sequence)), "sequence_logits", {batch_axis, a.head.sequence->classes});
  }
}

}  // namespace pare
