#include "pare/arch/streams.h"

#include <map>
#include <optional>
#include <utility>

#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"

namespace pare {

namespace {

// The points of the computation before those that share a basis are united.
class Points {
 public:
  size_t add(int64_t width) {
    streams_.push_back({.width = width});
    parents_.push_back(parents_.size());
    return parents_.size() - 1;
  }
  void unite(size_t a, size_t b) { parents_[root(a)] = root(b); }

  // Where the slots find a point of the model, or of a block.
  void call(size_t point, Point name, std::optional<int64_t> block = std::nullopt) { names_[{block, name}] = point; }
  void take(const Slots& slots) {
    for (const TensorSpec& spec : slots.tensors) {
      for (const Axis& axis : spec.axes) {
        streams_[find(spec.id.module, axis.point)].ports.push_back({spec.id, axis.role, axis.axis, axis.begin});
      }
    }
    for (const PlacedTouch& touch : slots.touches) {
      streams_[find(touch.module, touch.point)].touches.push_back({touch.kind, touch.module});
    }
  }

  // The point after a norm: the same one where there is no norm.
  size_t after_norm(size_t point, bool present, const ModuleId& norm) {
    const size_t after = add(streams_[point].width);
    if (!present) {
      unite(point, after);
      return after;
    }
    streams_[point].touches.push_back({TouchKind::norm_reads, norm});
    streams_[after].touches.push_back({TouchKind::norm_writes, norm});
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
      point = parents_[point] = parents_[parents_[point]];  // halves the way: a stream of many layers is a long one
    }
    return point;
  }
  // The points of sublayers are their block's, all others the model's.
  size_t find(const ModuleId& module, Point point) const {
    const auto found = names_.find({module.block, point});
    PARE_CHECK(found != names_.end(), name_of(module) + " lies on a point that the model does not have");
    return found->second;
  }
  std::vector<Stream> streams_;
  std::vector<size_t> parents_;
  std::map<std::pair<std::optional<int64_t>, Point>, size_t> names_;
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
  const size_t first = points.add(a.width);
  points.call(first, Point::first);
  if (a.first_layer == FirstLayer::table) {
    return first;
  }
  const size_t sum = points.add(embedding_width(a));
  points.call(sum, Point::embedded);
  points.call(e.factor && e.factor_scope == FactorScope::token ? points.add(*e.factor) : sum, Point::token);
  const size_t normed = points.after_norm(sum, e.norm.has_value(), in_embedding(Slot::norm));
  points.call(normed, Point::normed);
  if (!e.factor || e.factor_scope == FactorScope::token) {
    points.unite(first, normed);
  }
  return first;
}

// The point that a head's matrix reads: `last` itself where no layer stands before the head.
void add_head_input(Points& points, size_t last, const std::optional<HeadTransform>& transform, int64_t width,
                    Point transformed, Point input, Slot norm) {
  size_t read = last;
  if (transform) {
    const size_t written = points.add(width);
    points.call(written, transformed);
    read = points.after_norm(written, transform->norm.has_value(), in_head(norm));
  }
  points.call(read, input);
}

size_t add_head(Points& points, const Architecture& a, size_t output) {
  const size_t answered = points.after_norm(output, a.final_norm.has_value(), final_norm);
  // What stands for a sequence may have a norm that the states of its tokens have not.
  const bool pools = a.head.attention_pool.has_value();
  const size_t last =
      pools ? points.add(a.width) : points.after_norm(answered, a.head.pool_norm.has_value(), in_head(Slot::pool_norm));
  if (pools) {
    points.call(points.after_norm(last, a.head.attention_pool->norm.has_value(), in_head(Slot::pool_mlp_norm)),
                Point::pool_mlp_input);
  }
  points.call(answered, Point::answered);
  points.call(last, Point::last);
  add_head_input(points, last, a.head.transform, head_input_width(a), Point::transformed, Point::head_input,
                 Slot::transform_norm);
  if (a.head.sequence) {
    add_head_input(points, last, a.head.sequence->transform, sequence_head_input_width(a), Point::sequence_transformed,
                   Point::sequence_input, Slot::sequence_transform_norm);
  }
  return last;
}

BlockStreams add_block(Points& points, const Architecture& a, int64_t n) {
  const Block& block = a.blocks[n];
  const Attention& t = block.attention;
  const ModuleId attention_norm = in_attention(n, Slot::norm), mlp_norm = in_mlp(n, Slot::norm);
  BlockStreams at;
  at.input = points.add(a.width);
  at.attention_input =
      is_tabled(a, n) ? points.add(a.width) : points.after_norm(at.input, is_pre(t.norm), attention_norm);
  at.attention_output = points.add(a.width);
  points.call(at.attention_input, Point::attention_input, n);
  points.call(at.attention_output, Point::attention_output, n);
  const size_t attended =
      points.after_norm(at.attention_output, t.output_norm.has_value(), in_attention(n, Slot::output_norm));
  if (t.skip) {
    points.unite(at.input, attended);
  }
  at.middle = points.after_norm(attended, is_post(t.norm), attention_norm);
  at.output = at.middle;
  if (!block.mlp) {
    return at;
  }

  const Mlp& m = *block.mlp;
  const bool parallel = block.wiring == Wiring::parallel;
  at.mlp_input = parallel && !m.norm ? at.attention_input
                                     : points.after_norm(parallel ? at.input : at.middle, is_pre(m.norm), mlp_norm);
  at.mlp_output = points.add(a.width);
  points.call(at.mlp_input, Point::mlp_input, n);
  points.call(at.mlp_output, Point::mlp_output, n);
  const size_t written = points.after_norm(at.mlp_output, m.output_norm.has_value(), in_mlp(n, Slot::output_norm));
  if (parallel || m.skip) {
    points.unite(at.middle, written);
  }
  at.output = points.after_norm(written, is_post(m.norm), mlp_norm);
  return at;
}

}  // namespace

Streams find_streams(const Architecture& architecture) {
  check_interrupt();  // whatever goes on about an architecture comes here again and again
  Points points;
  Streams streams;
  size_t at = streams.embedding = add_embedding(points, architecture);
  for (int64_t n = 0; n < std::ssize(architecture.blocks); ++n) {
    streams.blocks.push_back(add_block(points, architecture, n));
  }
  for (int64_t n : layer_blocks(architecture)) {
    const BlockStreams& block = streams.blocks[n];
    points.unite(at, block.input);
    at = block.output;
  }
  streams.head = add_head(points, architecture, at);
  points.take(slots_of(architecture));

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

std::string text_of(const Touch& touch) {
  switch (touch.kind) {
    case TouchKind::norm_reads:
      return name_of(touch.module) + " reads it";
    case TouchKind::norm_writes:
      return name_of(touch.module) + " writes it";
    case TouchKind::identity:
      return name_of(touch.module) + " has no matrix";
    case TouchKind::shrunk:
      return name_of(touch.module) + " is stored without its identity block";
    case TouchKind::activation:
      return name_of(touch.module) + " has an activation";
    case TouchKind::sinusoidal:
      return "sinusoidal positions are added to it";
    case TouchKind::hidden:
      return "it is the model's answer (hidden)";
    case TouchKind::pooled:
      return "it is the model's answer (pooled)";
    case TouchKind::elsewhere:
      return "a tensor that the model does not use, and compat keeps, reads it";
  }
  PARE_UNREACHABLE("a touch without words");
}

}  // namespace pare
