#include "pare/arch/streams.h"

#include <fmt/format.h>

#include <map>
#include <numeric>
#include <set>

#include "pare/arch/head.h"
#include "pare/arch/tensors.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// The points of the computation before those that share a basis are united.
class Points {
 public:
  explicit Points(const Architecture& architecture) {
    for (const TensorSpec& spec : tensor_table(architecture)) {
      stored_.insert(spec.name);
    }
  }

  size_t add(int64_t width) {
    streams_.push_back({.width = width});
    parents_.push_back(parents_.size());
    return parents_.size() - 1;
  }
  void unite(size_t a, size_t b) { parents_[root(a)] = root(b); }

  // A tensor the Architecture does not have (an absent bias, a tabled projection) is no port.
  void port(size_t point, const std::string& tensor, Role role, int64_t axis, int64_t begin = 0) {
    if (stored_.contains(tensor)) {
      streams_[point].ports.push_back({tensor, role, axis, begin});
    }
  }
  void touch(size_t point, TouchKind kind, const std::string& where) {
    streams_[point].touches.push_back({kind, where});
  }

  void writes(size_t point, const std::string& module) {  // a dense layer [out, in] and its bias
    port(point, module + ".weight", Role::writer, 0);
    port(point, module + ".bias", Role::writer, 0);
  }
  void reads(size_t point, const std::string& module) { port(point, module + ".weight", Role::reader, 1); }

  // The point after a norm: the same one where there is no norm.
  size_t after_norm(size_t point, bool present, const std::string& name) {
    const size_t after = add(streams_[point].width);
    if (!present) {
      unite(point, after);
      return after;
    }
    touch(point, TouchKind::norm_reads, name);
    touch(after, TouchKind::norm_writes, name);
    return after;
  }

  // The united streams, in the order of their first points, and where each point went.
  std::vector<Stream> collect(std::vector<size_t>& places) {
    std::vector<Stream> united;
    std::map<size_t, size_t> index;
    places.resize(parents_.size());
    for (size_t point = 0; point < parents_.size(); ++point) {
      const auto [entry, first] = index.emplace(root(point), united.size());
      if (first) {
        united.push_back({.width = streams_[point].width});
      }
      Stream& stream = united[entry->second];
      PARE_CHECK(stream.width == streams_[point].width, "united points have one width");
      stream.ports.insert(stream.ports.end(), streams_[point].ports.begin(), streams_[point].ports.end());
      stream.touches.insert(stream.touches.end(), streams_[point].touches.begin(), streams_[point].touches.end());
      places[point] = entry->second;
    }
    return united;
  }

 private:
  size_t root(size_t point) {
    while (parents_[point] != point) {
      point = parents_[point];
    }
    return point;
  }
  std::set<std::string> stored_;
  std::vector<Stream> streams_;
  std::vector<size_t> parents_;
};

bool is_pre(const std::optional<Norm>& norm) {
  return norm && norm->place == NormPlace::pre;
}

bool is_post(const std::optional<Norm>& norm) {
  return norm && norm->place == NormPlace::post;
}

// What the embeddings add up to, as the first layer gets it.
size_t add_embedding(Points& points, const Architecture& a) {
  const Embedding& e = a.embedding;
  const size_t start = points.add(a.width);
  if (a.first_layer == FirstLayer::table) {
    points.port(start, "embed.table.weight", Role::writer, 1);
    return start;
  }
  const size_t sum = points.add(embedding_width(a));
  size_t token = sum;
  if (e.factor && e.factor_scope == FactorScope::token) {
    token = points.add(*e.factor);
    points.reads(token, "embed.projection");
    points.writes(sum, "embed.projection");
  }
  points.port(token, "embed.token.weight", Role::writer, 1);
  points.writes(sum, "embed.patch");
  points.port(sum, "embed.class", Role::writer, 0);
  points.port(sum, "embed.position.weight", Role::writer, 1);
  points.port(sum, "embed.type.weight", Role::writer, 1);
  if (e.position == Position::sinusoidal) {
    points.touch(sum, TouchKind::sinusoidal, "embed.position");
  }
  const size_t normed = points.after_norm(sum, e.norm.has_value(), "embed.norm");
  if (e.factor && e.factor_scope == FactorScope::sum) {
    points.reads(normed, "embed.projection");
    points.writes(start, "embed.projection");
  } else {
    points.unite(start, normed);
  }
  return start;
}

// The point after the layer before a head: the same one where there is no such layer.
size_t after_transform(Points& points, size_t point, const std::optional<HeadTransform>& transform,
                       const std::string& name, int64_t width) {
  if (!transform) {
    return point;
  }
  points.reads(point, name);
  const size_t transformed = points.add(width);
  points.writes(transformed, name);
  points.touch(transformed, TouchKind::activation, name);
  return points.after_norm(transformed, transform->norm.has_value(), name + ".norm");
}

size_t add_head(Points& points, const Architecture& a, size_t last) {
  const size_t final = points.after_norm(last, a.final_norm.has_value(), "norm");
  const size_t answer = after_transform(points, final, a.head.transform, "head.transform", head_input_width(a));
  if (a.task == Task::encoder) {
    points.touch(a.head.pool == Pool::none ? answer : final, TouchKind::observed, "hidden");
  } else {
    points.reads(answer, a.head.tied ? "embed.token" : "head");
  }
  if (has_pooler(a)) {
    points.touch(answer, TouchKind::observed, "pooled");
  }
  if (a.head.sequence) {
    const std::string name = "head.sequence";
    points.reads(
        after_transform(points, final, a.head.sequence->transform, name + ".transform", sequence_head_input_width(a)),
        name);
  }
  return final;
}

void add_reader(Points& points, size_t point, const std::string& name, const Projection& projection, PairForm pair) {
  if (pair == PairForm::shrunk) {
    points.touch(point, TouchKind::shrunk, name);
  } else if (projection.kind == ProjectionKind::dense) {
    points.reads(point, name);
  } else if (projection.kind != ProjectionKind::key) {  // a nonlinear query is x + N(x): the identity, and more
    points.touch(point, TouchKind::identity, name);
    points.reads(point, name + ".up");
  }
}

void add_attention(Points& points, const Attention& t, const std::string& name, size_t input, size_t output,
                   bool tabled) {
  if (!tabled) {
    if (t.scores == Form::collapsed) {
      points.port(input, name + "qk.weight", Role::reader, 1);
      points.port(input, name + "qk.weight", Role::reader, 2);
      points.port(input, name + "qk.bias", Role::reader, 1);
    } else {
      add_reader(points, input, name + "query", t.query, PairForm::full);
      if (t.cache != CacheKind::v) {
        add_reader(points, input, name + "key", t.key, t.pairs.query_key);
      }
    }
    if (t.values == Form::collapsed) {
      points.port(input, name + "vo.weight", Role::reader, 1);
    } else if (t.cache != CacheKind::k) {
      add_reader(points, input, name + "value", t.value, t.pairs.value_output);
    }
    points.reads(input, name + "gate");
  }
  if (t.values == Form::collapsed) {
    points.port(output, name + "vo.weight", Role::writer, 2);
    points.port(output, name + "output.bias", Role::writer, 0);
    return;
  }
  points.writes(output, name + "output");
  if (t.output.kind != ProjectionKind::dense) {
    points.touch(output, TouchKind::identity, name + "output");
  }
}

void add_mlp(Points& points, const Mlp& m, const std::string& name, size_t input, size_t output) {
  if (m.kind == MlpKind::heads) {  // [f, width + 1]: the last column is the bias
    points.reads(input, name + "query");
    points.reads(input, name + "value");
    points.writes(output, name + "output");
    return;
  }
  points.reads(input, name + "up");
  points.reads(input, name + "gate");
  points.writes(output, name + "down");
}

BlockStreams add_block(Points& points, const Architecture& a, const Block& block, const std::string& name,
                       bool tabled) {
  const Attention& t = block.attention;
  BlockStreams at;
  at.input = points.add(a.width);
  at.attention_input =
      tabled ? points.add(a.width) : points.after_norm(at.input, is_pre(t.norm), name + "attention.norm");
  at.attention_output = points.add(a.width);
  add_attention(points, t, name + "attention.", at.attention_input, at.attention_output, tabled);
  const size_t attended =
      points.after_norm(at.attention_output, t.output_norm.has_value(), name + "attention.output_norm");
  if (t.skip) {
    points.unite(at.input, attended);
  }
  at.middle = points.after_norm(attended, is_post(t.norm), name + "attention.norm");
  at.output = at.middle;
  if (!block.mlp) {
    return at;
  }

  const Mlp& m = *block.mlp;
  const bool parallel = block.wiring == Wiring::parallel;
  at.mlp_input = parallel && !m.norm
                     ? at.attention_input
                     : points.after_norm(parallel ? at.input : at.middle, is_pre(m.norm), name + "mlp.norm");
  at.mlp_output = points.add(a.width);
  add_mlp(points, m, name + "mlp.", at.mlp_input, at.mlp_output);
  const size_t written = points.after_norm(at.mlp_output, m.output_norm.has_value(), name + "mlp.output_norm");
  if (parallel || m.skip) {
    points.unite(at.middle, written);
  }
  at.output = points.after_norm(written, is_post(m.norm), name + "mlp.norm");
  return at;
}

}  // namespace

Streams find_streams(const Architecture& architecture) {
  Points points(architecture);
  Streams streams;
  size_t at = streams.embedding = add_embedding(points, architecture);
  const std::vector<Block> blocks = expanded_blocks(architecture);
  const std::vector<int64_t> layers = layer_blocks(architecture);
  for (size_t n = 0; n < blocks.size(); ++n) {
    const bool tabled = architecture.first_layer == FirstLayer::table && static_cast<int64_t>(n) == layers[0];
    streams.blocks.push_back(add_block(points, architecture, blocks[n], fmt::format("blocks.{}.", n), tabled));
  }
  for (int64_t n : layers) {
    const BlockStreams& block = streams.blocks[static_cast<size_t>(n)];
    points.unite(at, block.input);
    at = block.output;
  }
  streams.head = add_head(points, architecture, at);

  std::vector<size_t> places;
  streams.all = points.collect(places);
  streams.embedding = places[streams.embedding];
  streams.head = places[streams.head];
  for (BlockStreams& block : streams.blocks) {
    for (size_t* point : {&block.input, &block.attention_input, &block.attention_output, &block.middle,
                          &block.mlp_input, &block.mlp_output, &block.output}) {
      *point = places[*point];
    }
  }
  return streams;
}

std::string describe(const Touch& touch) {
  switch (touch.kind) {
    case TouchKind::norm_reads:
      return touch.where + " reads it";
    case TouchKind::norm_writes:
      return touch.where + " writes it";
    case TouchKind::identity:
      return touch.where + " has no matrix";
    case TouchKind::shrunk:
      return touch.where + " is stored without its identity block";
    case TouchKind::activation:
      return touch.where + " has an activation";
    case TouchKind::sinusoidal:
      return "sinusoidal positions are added to it";
    case TouchKind::observed:
      return "it is the model's answer (" + touch.where + ")";
  }
  PARE_CHECK(false, "a touch without words");
}

}  // namespace pare
