#include "pare/arch/tensors.h"

#include <fmt/format.h>

#include <utility>

#include "pare/arch/head.h"
#include "pare/support/error.h"

namespace pare {

namespace {

class Table {
 public:
  void add(std::string name, Shape shape, Part part, double rest = 0) {
    specs_.push_back({std::move(name), std::move(shape), part, false, rest});
  }
  void add_index(std::string name, Shape shape, Part part) {
    specs_.push_back({std::move(name), std::move(shape), part, true, 0});
  }
  void add_bias(bool present, const std::string& name, int64_t size) {
    if (present) {
      add(name + ".bias", {size}, Part::bias);
    }
  }
  void add_norm(const std::optional<Norm>& norm, const std::string& name, int64_t size) {
    if (!norm) {
      return;
    }
    if (norm->kind == NormKind::dyt) {
      add(name + ".alpha", {1}, Part::norm, 0.5);
    }
    if (norm->gain) {
      add(name + ".weight", {size}, Part::norm, 1 - norm->offset);
    }
    if (norm->bias) {
      add(name + ".bias", {size}, Part::norm);
    }
  }
  std::vector<TensorSpec> take() { return std::move(specs_); }

 private:
  std::vector<TensorSpec> specs_;
};

void add_embedding(Table& table, const Architecture& a) {
  const Embedding& e = a.embedding;
  if (a.first_layer == FirstLayer::table) {
    const Attention first = expanded_blocks(a)[static_cast<size_t>(layer_blocks(a)[0])].attention;
    const int64_t row = a.width + (first.heads + 2 * first.kv_heads) * first.head_width;
    table.add("embed.table.weight", {a.vocab, row}, Part::embedding);
    if (a.head.tied) {
      table.add("embed.token.weight", {a.vocab, token_width(a)}, Part::embedding);
    }
    return;
  }
  if (e.patch) {
    table.add("embed.patch.weight", {a.width, e.patch->channels, e.patch->size, e.patch->size}, Part::embedding);
    table.add_bias(e.patch->bias, "embed.patch", a.width);
  } else {
    table.add("embed.token.weight", {a.vocab, token_width(a)}, Part::embedding);
  }
  if (e.class_token) {
    table.add("embed.class", {a.width}, Part::embedding);
  }
  if (e.position == Position::learned) {
    table.add("embed.position.weight", {a.context + e.position_offset, embedding_width(a)}, Part::embedding);
  }
  if (e.types > 0) {
    table.add("embed.type.weight", {e.types, embedding_width(a)}, Part::embedding);
  }
  table.add_norm(e.norm, "embed.norm", embedding_width(a));
  if (e.factor) {
    table.add("embed.projection.weight", {a.width, *e.factor}, Part::embedding);
    table.add_bias(e.factor_bias, "embed.projection", a.width);
  }
}

// A projection whose output pairs with a later matrix: stored dense, or with an identity block cut out.
void add_paired(Table& table, const std::string& name, PairForm form, const Attention& t, int64_t width, Part part) {
  if (form == PairForm::shrunk) {
    table.add_index(name + ".pivot", {t.kv_heads, t.head_width}, part);
    table.add(name + ".weight", {t.kv_heads, t.head_width, width - t.head_width}, part);
  } else {
    table.add(name + ".weight", {t.kv_heads * t.head_width, width}, part);
  }
}

void add_scores(Table& table, const std::string& name, const Attention& t, int64_t width) {
  const int64_t rows = t.heads * t.head_width, kv_rows = t.kv_heads * t.head_width;
  if (t.scores == Form::collapsed) {
    table.add(name + "qk.weight", {t.heads, width, width}, Part::query_key);
    if (t.bias.query) {
      table.add(name + "qk.bias", {t.heads, width}, Part::bias);
    }
    return;
  }
  if (t.query.kind == ProjectionKind::dense) {
    table.add(name + "query.weight", {rows, width}, Part::query);
  } else if (t.query.kind == ProjectionKind::nonlinear) {
    table.add(name + "query.up.weight", {t.query.nonlinear.width, width}, Part::query);
    table.add(name + "query.down.weight", {width, t.query.nonlinear.width}, Part::query);
  }
  table.add_bias(t.bias.query, name + "query", rows);
  if (t.cache == CacheKind::v) {
    table.add(name + "key_from_value.weight", {kv_rows, kv_rows}, Part::key);
  } else if (t.key.kind == ProjectionKind::dense) {
    add_paired(table, name + "key", t.pairs.query_key, t, width, Part::key);
  }
  table.add_bias(t.bias.key, name + "key", kv_rows);
}

void add_values(Table& table, const std::string& name, const Attention& t, int64_t width) {
  const int64_t rows = t.heads * t.head_width, kv_rows = t.kv_heads * t.head_width;
  if (t.values == Form::collapsed) {
    table.add(name + "vo.weight", {t.heads, width, width}, Part::value_output);
    return;
  }
  if (t.cache == CacheKind::k) {
    table.add(name + "value_from_key.weight", {kv_rows, kv_rows}, Part::value);
  } else if (t.value.kind == ProjectionKind::dense) {
    add_paired(table, name + "value", t.pairs.value_output, t, width, Part::value);
  }
  table.add_bias(t.bias.value, name + "value", kv_rows);
  if (t.output.kind == ProjectionKind::dense) {
    table.add(name + "output.weight", {width, rows}, Part::output);
  }
}

// `tabled`: the first layer's projections, and the norm before them, are rows of embed.table.weight.
void add_attention(Table& table, const std::string& name, const Attention& t, int64_t width, bool tabled) {
  if (!tabled || (t.norm && t.norm->place == NormPlace::post)) {
    table.add_norm(t.norm, name + "norm", width);
  }
  if (tabled) {
    if (t.output.kind == ProjectionKind::dense) {
      table.add(name + "output.weight", {width, t.heads * t.head_width}, Part::output);
    }
  } else {
    add_scores(table, name, t, width);
    add_values(table, name, t, width);
  }
  table.add_bias(t.bias.output, name + "output", width);
  table.add_norm(t.qk_norm, name + "query_norm", t.head_width);
  table.add_norm(t.qk_norm, name + "key_norm", t.head_width);
  if (t.gate) {
    table.add(name + "gate.weight", {t.heads, width}, Part::gate);
    table.add(name + "gate.position", {t.heads, width}, Part::gate);
    table.add_bias(true, name + "gate", t.heads);
  }
  table.add_norm(t.output_norm, name + "output_norm", width);
}

void add_mlp(Table& table, const std::string& name, const Mlp& m, int64_t width) {
  table.add_norm(m.norm, name + "norm", width);
  if (m.kind == MlpKind::heads) {
    table.add(name + "query.weight", {m.width, width + 1}, Part::mlp);
    if (!m.shared_value) {
      table.add(name + "value.weight", {m.width, width + 1}, Part::mlp);
    }
    table.add(name + "output.weight", {width, m.width}, Part::mlp);
    table.add_bias(m.bias.down, name + "output", width);
  } else {
    table.add(name + "up.weight", {m.width, width}, Part::mlp);
    table.add_bias(m.bias.up, name + "up", m.width);
    if (m.gated) {
      table.add(name + "gate.weight", {m.width, width}, Part::mlp);
      table.add_bias(m.bias.gate, name + "gate", m.width);
    }
    table.add(name + "down.weight", {width, m.width}, Part::mlp);
    table.add_bias(m.bias.down, name + "down", width);
  }
  table.add_norm(m.output_norm, name + "output_norm", width);
}

void add_transform(Table& table, const std::string& name, const std::optional<HeadTransform>& transform, int64_t out,
                   int64_t in) {
  if (transform) {
    table.add(name + ".weight", {out, in}, Part::head);
    table.add_bias(transform->bias, name, out);
    table.add_norm(transform->norm, name + ".norm", out);
  }
}

void add_head(Table& table, const Architecture& a) {
  const int64_t rows = head_size(a), width = head_input_width(a);
  add_transform(table, "head.transform", a.head.transform, width, a.width);
  if (rows > 0 && !a.head.tied) {
    table.add("head.weight", {rows, width}, Part::head);
  }
  table.add_bias(a.head.bias, "head", rows);
  if (a.head.sequence) {
    const SequenceHead& second = *a.head.sequence;
    const int64_t second_width = sequence_head_input_width(a);
    add_transform(table, "head.sequence.transform", second.transform, second_width, a.width);
    table.add("head.sequence.weight", {second.classes, second_width}, Part::head);
    table.add_bias(second.bias, "head.sequence", second.classes);
  }
}

}  // namespace

std::vector<TensorSpec> tensor_table(const Architecture& architecture) {
  Table table;
  add_embedding(table, architecture);
  const std::vector<Block> blocks = expanded_blocks(architecture);
  const int64_t first = layer_blocks(architecture).at(0);
  for (size_t n = 0; n < blocks.size(); ++n) {
    const bool tabled = architecture.first_layer == FirstLayer::table && static_cast<int64_t>(n) == first;
    add_attention(table, fmt::format("blocks.{}.attention.", n), blocks[n].attention, architecture.width, tabled);
    if (blocks[n].mlp) {
      add_mlp(table, fmt::format("blocks.{}.mlp.", n), *blocks[n].mlp, architecture.width);
    }
  }
  table.add_norm(architecture.final_norm, "norm", architecture.width);
  add_head(table, architecture);
  return table.take();
}

const char* part_name(Part part) {
  switch (part) {
    case Part::embedding:
      return "embedding";
    case Part::query:
      return "query";
    case Part::key:
      return "key";
    case Part::value:
      return "value";
    case Part::output:
      return "output";
    case Part::query_key:
      return "query_key";
    case Part::value_output:
      return "value_output";
    case Part::gate:
      return "gate";
    case Part::mlp:
      return "mlp";
    case Part::norm:
      return "norm";
    case Part::bias:
      return "bias";
    case Part::head:
      return "head";
  }
  PARE_CHECK(false, "a part without a name");
}

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t size : shape) {
    PARE_CHECK(!__builtin_mul_overflow(count, size, &count), "validate() bounds every shape");
  }
  return count;
}

}  // namespace pare
