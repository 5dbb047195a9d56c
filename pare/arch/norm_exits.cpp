#include "pare/arch/norm_exits.h"

#include <algorithm>

#include "pare/arch/norms.h"
#include "pare/arch/tensors.h"

namespace pare {

namespace {

std::optional<size_t> stream_touched(const Streams& streams, const ModuleId& module, TouchKind kind) {
  for (size_t i = 0; i < streams.all.size(); ++i) {
    for (const Touch& touch : streams.all[i].touches) {
      if (touch.kind == kind && touch.module == module) {
        return i;
      }
    }
  }
  return std::nullopt;
}

bool is_tied_table(const Architecture& a, const Port& port) {
  return a.head.tied && port.tensor == weight_of(token_table);
}

// Keys that are computed from values take the values' bias off first (or values the keys'): a constant would be lost.
bool loses_constants(const Architecture& a, const ModuleId& module) {
  if (module.sublayer != Sublayer::attention) {
    return false;
  }
  const Attention& t = a.blocks[*module.block].attention;
  return (is<FromValue>(t.key) && module.slot == Slot::value) || (is<FromKey>(t.value) && module.slot == Slot::key);
}

// Neuron heads keep their bias in the last column of the matrix; collapsed ones read both sides.
bool takes_constant(Architecture& a, const TensorTable& stored, const Port& port, int64_t width) {
  const ModuleId& module = port.tensor.module;
  const Shape& shape = stored.at(port.tensor).shape;
  if (shape.size() != 2 || port.tensor.kind == TensorKind::bias || loses_constants(a, module)) {
    return false;
  }
  const bool column = module.sublayer == Sublayer::mlp && shape.back() == width + 1;
  return column || stored.contains(bias_of(module)) || bias_flag(a, module);
}

AffineExit refused(const char* expected, std::string found, std::string remedy) {
  return {.expected = expected, .found = std::move(found), .remedy = std::move(remedy)};
}

AffineExit exit_to_readers(const Architecture& a, const Stream& stream, const NormBetween& norm) {
  for (const Touch& touch : stream.touches) {
    if (touch.kind != TouchKind::norm_writes || touch.module != norm.module) {
      return refused("readers that are matrices", text_of(touch), "none: only a matrix can take what is left of it");
    }
  }
  for (const Port& port : stream.ports) {
    if (port.role == Role::writer) {
      return refused("a norm before its readers", name_of(port.tensor) + " writes the same stream",
                     "none: the norm's output is the stream itself");
    }
  }
  if (std::ranges::any_of(stream.ports, [&](const Port& p) { return is_tied_table(a, p); })) {
    AffineExit exit =
        refused("an untied head", "the head is tied to the embedding", "untie the head, which costs more");
    exit.tied = true;
    return exit;
  }
  if (stream.ports.empty()) {
    return refused("readers that are matrices", "nothing reads it", "");
  }
  Architecture copy = a;
  const TensorTable stored = tensor_table(a);
  for (const Port& port : stream.ports) {
    if (norm.norm.bias && !takes_constant(copy, stored, port, stream.width)) {
      return refused("readers that can have biases", name_of(port.tensor) + " cannot",
                     "none: the norm's bias has nowhere to go");
    }
  }
  return {.way = AffineExit::Way::readers};
}

std::optional<TensorId> place_of_constant(const Architecture& a, const Stream& stream, const ModuleId& norm) {
  if (norm != in_embedding(Slot::norm)) {
    return bias_of(stream.ports.front().tensor.module);
  }
  const Embedding& e = a.embedding;
  if (e.registers > 0 && !e.registers_placed) {
    return std::nullopt;  // nothing is added to them
  }
  if (e.position == Position::learned) {
    return weight_of(position_table);
  }
  if (e.types > 0) {
    return weight_of(in_embedding(Slot::type));
  }
  if (e.patch) {
    return std::nullopt;  // the bias of patches is not added to a class token
  }
  if (e.factor && e.factor_scope == FactorScope::token) {
    return bias_of(in_embedding(Slot::projection));
  }
  return e.masked ? std::nullopt : std::optional(weight_of(token_table));  // whose rows are multiplied
}

// Of one sublayer, or of an embedding: all that it adds up is written by matrices and tables, once.
bool leaves_to_writers(const Architecture& a, const Stream& stream, const NormBetween& norm) {
  const bool alone = stream.touches.size() == 1 && stream.touches.front().kind == TouchKind::norm_reads;
  const auto fits = [&](const Port& port) {
    const bool same = port.tensor.module == stream.ports.front().tensor.module;
    return port.role == Role::writer && (norm.module == in_embedding(Slot::norm) || same) && !is_tied_table(a, port);
  };
  return alone && !stream.ports.empty() && std::ranges::all_of(stream.ports, fits);
}

bool* bias_flag_of(Attention& t, Slot slot) {
  switch (slot) {
    case Slot::query:
      return &t.bias.query;
    case Slot::key:
      return &t.bias.key;
    case Slot::value:
      return &t.bias.value;
    case Slot::output:
      return &t.bias.output;
    default:
      return nullptr;
  }
}

bool* bias_flag_of(Head& head, Slot slot) {
  switch (slot) {
    case Slot::own:
      return &head.bias;
    case Slot::transform:
      return &head.transform->bias;
    case Slot::sequence:
      return &head.sequence->bias;
    case Slot::sequence_transform:
      return &head.sequence->transform->bias;
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<NormBetween> norms_between(const Architecture& architecture, const Streams& streams) {
  Architecture copy = architecture;
  std::vector<NormBetween> norms;
  for (const PlacedNorm& site : norms_of(copy)) {
    const std::optional<size_t> reads = stream_touched(streams, site.module, TouchKind::norm_reads);
    const std::optional<size_t> writes = stream_touched(streams, site.module, TouchKind::norm_writes);
    if (reads && writes) {
      norms.push_back({site.module, *site.norm, *reads, *writes});
    }
  }
  return norms;
}

std::optional<NormBetween> norm_between(const Architecture& architecture, const Streams& streams,
                                        const ModuleId& module) {
  for (const NormBetween& norm : norms_between(architecture, streams)) {
    if (norm.module == module) {
      return norm;
    }
  }
  return std::nullopt;
}

AffineExit exit_of(const Architecture& a, const Streams& streams, const NormBetween& norm) {
  if (norm.module.sublayer == Sublayer::mlp && norm.module.slot == Slot::norm) {
    // In a parallel block an MLP without a norm reads what the attention does.
    const Block& block = a.blocks[*norm.module.block];
    if (block.wiring == Wiring::parallel && block.attention.norm) {
      const std::string other = name_of(in_attention(*norm.module.block, Slot::norm));
      return refused("no norm before the attention beside it", other + " stays, and the MLP would read what it writes",
                     "none: the two would share one norm");
    }
  }
  const AffineExit after = exit_to_readers(a, streams.all[norm.writes], norm);
  const Stream& before = streams.all[norm.reads];
  if (after.way == AffineExit::Way::readers || !leaves_to_writers(a, before, norm)) {
    return after;
  }
  if (!norm.norm.bias) {
    return {.way = AffineExit::Way::writers};
  }
  Architecture copy = a;
  const std::optional<TensorId> place = place_of_constant(a, before, norm.module);
  const bool holds = place && (place->kind != TensorKind::bias || bias_flag(copy, place->module));
  return holds ? AffineExit{.way = AffineExit::Way::writers, .place = place} : after;
}

void take_out(Architecture& a, const Streams& streams, const NormBetween& norm, const AffineExit& exit) {
  const auto give_bias = [&a](const ModuleId& module) {
    if (bool* const flag = bias_flag(a, module)) {
      *flag = true;
    }
  };
  if (norm.norm.bias && exit.way == AffineExit::Way::readers) {
    for (const Port& port : streams.all[norm.writes].ports) {
      give_bias(port.tensor.module);
    }
  } else if (exit.place && exit.place->kind == TensorKind::bias) {
    give_bias(exit.place->module);
  }
  norm_place(a, norm.module).reset();
}

std::string obstacle_of_head_norms(const Architecture& a, int64_t block) {
  const Attention& t = a.blocks[block].attention;
  if (is_tabled(a, block)) {
    return "queries and keys are in the first-layer table";
  }
  if (norms_turned(t)) {
    return "they are normed behind their rotation";
  }
  return has_dense_projections(t) ? "" : "queries, keys and values are not matrices of their own";
}

void take_out_head_norms(Architecture& a, int64_t block) {
  Attention& t = a.blocks[block].attention;
  t.bias.query |= t.qk_norm->bias;
  t.bias.key |= t.qk_norm->bias;
  t.qk_norm.reset();
  t.qk_norm_over = QkNormOver::head;
}

bool* bias_flag(Architecture& a, const ModuleId& matrix) {
  switch (matrix.sublayer) {
    case Sublayer::attention:
      return bias_flag_of(a.blocks[*matrix.block].attention, matrix.slot);
    case Sublayer::mlp:
      return bias_flag(*a.blocks[*matrix.block].mlp, matrix.slot);
    case Sublayer::head:
      return bias_flag_of(a.head, matrix.slot);
    case Sublayer::embedding:
      return matrix.slot == Slot::projection ? &a.embedding.factor_bias : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace pare
