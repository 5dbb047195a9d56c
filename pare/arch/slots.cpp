#include "pare/arch/slots.h"

#include "pare/arch/head.h"

namespace pare {

namespace {

// The token table writes the embeddings, and reads what a tied head reads.
void add_token_table(Slots& slots, const Architecture& a, bool embeds) {
  std::vector<Axis> axes;
  if (embeds) {
    axes.push_back(writes(Point::token, 1));
  }
  if (a.head.tied) {
    axes.push_back(reads(Point::head_input));
  }
  slots.add(weight_of(token_table), {a.vocab, token_width(a)}, Part::embedding, axes);
}

void add_embedding(Slots& slots, const Architecture& a) {
  const Embedding& e = a.embedding;
  if (a.first_layer == FirstLayer::table) {
    const Attention& first = a.blocks[layer_blocks(a).at(0)].attention;
    const int64_t row = a.width + (first.heads + 2 * first.kv_heads) * first.head_width;
    slots.add(weight_of(in_embedding(Slot::table)), {a.vocab, row}, Part::embedding, {writes(Point::first, 1)});
    if (a.head.tied) {
      add_token_table(slots, a, false);
    }
    return;
  }
  if (e.patch) {
    const ModuleId patch = in_embedding(Slot::patch);
    slots.add(weight_of(patch), {a.width, e.patch->channels, e.patch->size, e.patch->size}, Part::embedding,
              {writes(Point::embedded)});
    slots.add_bias(e.patch->bias, patch, a.width, {writes(Point::embedded)});
  } else {
    add_token_table(slots, a, true);
  }
  if (e.class_token) {
    slots.add({in_embedding(Slot::class_token), TensorKind::whole}, {a.width}, Part::embedding,
              {writes(Point::embedded)});
  }
  if (e.registers > 0) {  // those without positions join the stream where the others have theirs already
    slots.add({in_embedding(Slot::registers), TensorKind::whole}, {e.registers, a.width}, Part::embedding,
              {writes(Point::embedded, 1)});
  }
  if (e.position == Position::learned) {
    slots.add(weight_of(position_table), {position_rows(a), embedding_width(a)}, Part::embedding,
              {writes(Point::embedded, 1)});
  } else if (e.position != Position::none) {
    slots.touch(Point::embedded, TouchKind::sinusoidal, position_table);
  }
  if (e.types > 0) {
    slots.add(weight_of(in_embedding(Slot::type)), {e.types, embedding_width(a)}, Part::embedding,
              {writes(Point::embedded, 1)});
  }
  slots.add_norm(e.norm, in_embedding(Slot::norm), {embedding_width(a)});
  if (e.factor) {
    const bool of_token = e.factor_scope == FactorScope::token;
    const Point from = of_token ? Point::token : Point::normed, to = of_token ? Point::embedded : Point::first;
    const ModuleId projection = in_embedding(Slot::projection);
    slots.add(weight_of(projection), {a.width, *e.factor}, Part::embedding, {reads(from), writes(to)});
    slots.add_bias(e.factor_bias, projection, a.width, {writes(to)});
  }
}

struct TransformPlace {
  Slot slot, norm;
  Point output;
};
constexpr TransformPlace before_head = {Slot::transform, Slot::transform_norm, Point::transformed};
constexpr TransformPlace before_second = {Slot::sequence_transform, Slot::sequence_transform_norm,
                                          Point::sequence_transformed};

void add_transform(Slots& slots, const std::optional<HeadTransform>& transform, const TransformPlace& place,
                   int64_t out, int64_t in) {
  if (!transform) {
    return;
  }
  const ModuleId module = in_head(place.slot);
  slots.add(weight_of(module), {out, in}, Part::head, {reads(Point::last), writes(place.output)});
  slots.add_bias(transform->bias, module, out, {writes(place.output)});
  slots.touch(place.output, TouchKind::activation, module);
  slots.add_norm(transform->norm, in_head(place.norm), {out});
}

void add_attention_pool(Slots& slots, const AttentionPool& pool, int64_t width) {
  slots.add({in_head(Slot::pool_probe), TensorKind::whole}, {width}, Part::head);
  slots.add(weight_of(in_head(Slot::pool_query)), {width, width}, Part::head);
  slots.add_bias(true, in_head(Slot::pool_query), width);
  for (const Slot slot : {Slot::pool_key, Slot::pool_value}) {
    slots.add(weight_of(in_head(slot)), {width, width}, Part::head, {reads(Point::answered)});
    slots.add_bias(true, in_head(slot), width);
  }
  slots.add(weight_of(in_head(Slot::pool_output)), {width, width}, Part::head, {writes(Point::last)});
  slots.add_bias(true, in_head(Slot::pool_output), width, {writes(Point::last)});
  slots.add_norm(pool.norm, in_head(Slot::pool_mlp_norm), {width});
  slots.add(weight_of(in_head(Slot::pool_up)), {pool.mlp_width, width}, Part::head, {reads(Point::pool_mlp_input)});
  slots.add_bias(true, in_head(Slot::pool_up), pool.mlp_width);
  slots.add(weight_of(in_head(Slot::pool_down)), {width, pool.mlp_width}, Part::head, {writes(Point::last)});
  slots.add_bias(true, in_head(Slot::pool_down), width, {writes(Point::last)});
}

void add_head(Slots& slots, const Architecture& a) {
  const int64_t rows = head_size(a), width = head_input_width(a);
  add_transform(slots, a.head.transform, before_head, width, a.width);
  if (rows > 0 && !a.head.tied) {
    slots.add(weight_of(head_matrix), {rows, width}, Part::head, {reads(Point::head_input)});
  }
  slots.add_bias(a.head.bias, head_matrix, rows);
  if (a.task == Task::encoder) {
    slots.touch(a.head.pool == Pool::none ? Point::head_input : Point::answered, TouchKind::hidden, head_matrix);
  }
  if (a.head.read_elsewhere) {
    slots.touch(Point::answered, TouchKind::elsewhere, head_matrix);
  }
  if (a.head.attention_pool) {
    add_attention_pool(slots, *a.head.attention_pool, a.width);
  }
  slots.add_norm(a.head.pool_norm, in_head(Slot::pool_norm), {a.width});
  if (has_pooler(a)) {
    slots.touch(Point::head_input, TouchKind::pooled, head_matrix);
  }
  if (a.head.sequence) {
    const SequenceHead& second = *a.head.sequence;
    const int64_t second_width = sequence_head_input_width(a);
    add_transform(slots, second.transform, before_second, second_width, a.width);
    slots.add(weight_of(in_head(Slot::sequence)), {second.classes, second_width}, Part::head,
              {reads(Point::sequence_input)});
    slots.add_bias(second.bias, in_head(Slot::sequence), second.classes);
  }
}

}  // namespace

void Slots::add(TensorId id, Shape shape, Part part, std::vector<Axis> axes, double initial) {
  tensors.push_back({id, name_of(id), std::move(shape), part, false, initial, std::move(axes)});
}

void Slots::add_index(const ModuleId& module, Shape shape, Part part) {
  add({module, TensorKind::pivot}, std::move(shape), part);
  tensors.back().index = true;
}

void Slots::add_bias(bool present, const ModuleId& module, int64_t size, std::vector<Axis> axes) {
  if (present) {
    add(bias_of(module), {size}, Part::bias, std::move(axes));
  }
}

void Slots::add_norm(const std::optional<Norm>& norm, const ModuleId& module, const Shape& shape) {
  if (!norm) {
    return;
  }
  if (norm->kind == NormKind::dyt) {
    add({module, TensorKind::alpha}, {1}, Part::norm, {}, 0.5);
  }
  if (norm->gain) {
    add(weight_of(module), shape, Part::norm, {}, 1 - norm->offset);
  }
  if (norm->bias) {
    add(bias_of(module), shape, Part::norm);
  }
}

Slots slots_of(const Architecture& architecture) {
  Slots slots;
  add_embedding(slots, architecture);
  for (int64_t n = 0; n < std::ssize(architecture.blocks); ++n) {
    add_attention_slots(slots, architecture, n);
    if (architecture.blocks[n].mlp) {
      add_mlp_slots(slots, architecture, n);
    }
  }
  slots.add_norm(architecture.final_norm, final_norm, {architecture.width});
  add_head(slots, architecture);
  return slots;
}

MlpMatrices mlp_matrices(const Architecture& architecture, int64_t block) {
  Slots slots;
  add_mlp_slots(slots, architecture, block);
  MlpMatrices matrices;
  for (TensorSpec& spec : slots.tensors) {
    if (spec.id.kind != TensorKind::weight || spec.axes.empty()) {
      continue;  // a bias, or of a norm
    }
    if (spec.axes.front().role == Role::reader) {
      matrices.readers.push_back(std::move(spec));
    } else {
      matrices.writer = std::move(spec);
    }
  }
  return matrices;
}

}  // namespace pare
