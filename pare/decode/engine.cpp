#include "pare/decode/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/executor_only.h"
#include "pare/decode/kernels.h"
#include "pare/decode/team.h"
#include "pare/decode/vectors.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"

namespace pare {

namespace {

std::optional<std::string> attention_lacks(const Attention& t) {
  if (t.mask != Mask::causal) {
    return "attention that looks ahead";
  }
  if (t.gate || t.shaped) {
    return t.gate ? "gated attention" : "shaped attention";
  }
  if (t.scores == Form::collapsed || t.values == Form::collapsed) {
    return "collapsed heads";
  }
  if (is<FromKey>(t.value) || is<FromValue>(t.key) || t.remembered == Remembered::inputs) {
    return "a cache of keys, values or inputs alone";
  }
  if (is<Nonlinear>(t.query)) {
    return "nonlinear queries";
  }
  if (t.rope && depends_on_length(*t.rope)) {
    return "angles that depend on the length of the text";
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> engine_lacks(const Architecture& a) {
  if (const std::optional<std::string> form = executor_only(a)) {
    return form;
  }
  for (const Block& block : a.blocks) {
    if (const std::optional<std::string> lack = attention_lacks(block.attention)) {
      return lack;
    }
  }
  if (a.embedding.factor || a.embedding.patch || a.embedding.position_pad || a.embedding.types > 0) {
    return "embeddings of tokens beside plain tables";
  }
  if (a.head.transform || a.head.sequence || a.head.classes) {
    return "a head that is more than a matrix";
  }
  return std::nullopt;
}

namespace {

// What a token has become, in the memory of each member: norms and sums of a vector are cheaper than a meeting.
struct Member {
  std::vector<float> stream, input, mlp_input, output, scratch, scores;
};

struct Layer {
  const Block* spec = nullptr;
  std::optional<VectorNorm> attention_norm, attention_output_norm, mlp_norm, mlp_output_norm, query_norm, key_norm;
  Product projections, query, key, value, output;
  Product gate_up, up, down;                       // of a dense MLP
  Product neuron_query, neuron_value, neuron_out;  // of neuron heads
  std::optional<Angles> angles;
  std::vector<float> slopes;                 // of ALiBi
  float *keys = nullptr, *values = nullptr;  // of the cache: [kv_heads, capacity, head_width]
};

Layer layer_of(const BlockLayer& block) {
  const AttentionLayer& attention = block.attention;
  Layer layer{.spec = &block.spec,
              .attention_norm = vector_norm(block.attention_norm),
              .attention_output_norm = vector_norm(block.attention_output_norm),
              .mlp_norm = vector_norm(block.mlp_norm),
              .mlp_output_norm = vector_norm(block.mlp_output_norm),
              .query_norm = vector_norm(attention.query_norm),
              .key_norm = vector_norm(attention.key_norm),
              .projections = Product(attention.projections),
              .query = Product(attention.query),
              .key = Product(attention.key),
              .value = Product(attention.value),
              .output = Product(attention.output)};
  if (block.mlp) {
    if (const auto* dense = std::get_if<DenseMlpLayer>(&*block.mlp)) {
      layer.gate_up = Product(dense->gate_up);
      layer.up = Product(dense->up);
      layer.down = Product(dense->down);
    } else {
      const NeuronHeadsLayer& heads = std::get<NeuronHeadsLayer>(*block.mlp);
      layer.neuron_query = Product(heads.query);
      layer.neuron_value = Product(heads.value);
      layer.neuron_out = Product(heads.output);
    }
  }
  const Attention& t = block.spec.attention;
  if (t.rope) {
    layer.angles.emplace(*t.rope);
  }
  if (t.alibi) {
    const at::Tensor slopes =
        Tables({at::kFloat, at::kCPU}).alibi_slopes(t.heads, t.alibi->steepest).flatten().to(at::kFloat);
    layer.slopes.assign(slopes.const_data_ptr<float>(), slopes.const_data_ptr<float>() + slopes.numel());
  }
  return layer;
}

// The part of n that one of the members has: whole multiples of 16, which are a line of memory.
struct Share {
  int64_t first = 0, last = 0;
};
Share share_of(int64_t n, int member, int members) {
  const int64_t lines = (n + 15) / 16;
  return {std::min(n, lines * member / members * 16), std::min(n, lines * (member + 1) / members * 16)};
}

Share scaled(Share share, int64_t factor) {
  return {share.first * factor, share.last * factor};
}

}  // namespace

struct Engine::State {
  State(const LoadedModel& loaded, int threads);

  bool tabled() const { return model.embedding.table.defined(); }
  void embed(std::span<float> stream) const;
  void take_output(Member& m, const Layer& layer, Sublayer which);
  // Whether each member has as many heads of keys as another: then nobody waits until a head has been attended.
  bool heads_apart(const Attention& t) const { return t.kv_heads % team.size() == 0; }
  Share heads_of(int64_t count, int member) const {
    return {count * member / team.size(), count * (member + 1) / team.size()};
  }
  void project(int member, int64_t n);
  void remember(int member, int64_t n);
  void attend(int member, int64_t n);
  void read_mlp(int member, int64_t n);
  void write_mlp(int member, int64_t n);

  const LoadedModel& model;
  Team team;
  std::vector<Layer> layers;  // in the order in which they run
  std::optional<VectorNorm> embedding_norm, final_norm;
  Product head;
  at::Tensor waves;  // sinusoidal positions of this token
  std::vector<Member> members;
  std::vector<float> query, key, value, mixed, hidden, attended, written, logits;  // shared
  int64_t length = 0, capacity = 0;                                                // of the cache, before this token
  int64_t token = 0;
};

Engine::State::State(const LoadedModel& loaded, int threads) : model(loaded), team(threads) {
  const Architecture& a = model.architecture;
  int64_t heads = 0, keys = 0, neurons = 0, widest = a.width;
  for (const int64_t n : layer_blocks(a)) {
    layers.push_back(layer_of(model.blocks[n]));
    const Attention& t = a.blocks[n].attention;
    heads = std::max(heads, t.heads * t.head_width);
    keys = std::max(keys, t.kv_heads * t.head_width);
    if (a.blocks[n].mlp) {
      neurons = std::max(neurons, neurons_of(*a.blocks[n].mlp).count);
    }
  }
  widest = std::max({widest + 1, heads, neurons});
  embedding_norm = vector_norm(model.embedding.norm);
  final_norm = vector_norm(model.head.final_norm);
  head = Product(model.head.head);
  members.resize(static_cast<size_t>(threads));
  for (Member& m : members) {
    m.stream.resize(a.width);
    m.input.resize(a.width + 1, 1);  // one more: neuron heads read [x, 1]
    m.mlp_input.resize(a.width + 1, 1);
    m.output.resize(a.width);
    m.scratch.resize(2 * widest);
  }
  query.resize(heads);
  key.resize(keys);
  value.resize(keys);
  mixed.resize(heads);
  hidden.resize(2 * neurons);
  attended.resize(a.width);
  written.resize(a.width);
  logits.resize(a.vocab);
}

void Engine::State::embed(std::span<float> stream) const {
  const Embedding& e = model.architecture.embedding;
  std::fill(stream.begin(), stream.end(), 0.0f);
  if (tabled()) {
    return add_row(model.embedding.table, token, 0, 1, stream);
  }
  add_row(model.embedding.token, token, 0, static_cast<float>(e.scale), stream);
  if (model.embedding.position.defined()) {
    add_row(model.embedding.position, length + e.position_offset, 0, 1, stream);
  } else if (e.position == Position::sinusoidal) {
    add_row(waves, 0, 0, 1, stream);
  }
  apply(embedding_norm, stream, stream);
}

// The stream after a sublayer whose output is there: the skip, and a norm behind it.
void Engine::State::take_output(Member& m, const Layer& layer, Sublayer which) {
  const bool attention = which == Sublayer::attention;
  const std::vector<float>& y = attention ? attended : written;
  const std::optional<VectorNorm>& output_norm = attention ? layer.attention_output_norm : layer.mlp_output_norm;
  const std::optional<VectorNorm>& norm = attention ? layer.attention_norm : layer.mlp_norm;
  const bool serial = layer.spec->wiring == Wiring::serial;  // else nothing but a sum comes behind the MLP
  const bool skip = attention ? layer.spec->attention.skip : layer.spec->mlp->skip || !serial;
  apply(output_norm, y, m.output);
  for (size_t i = 0; i < m.stream.size(); ++i) {
    m.stream[i] = skip ? m.stream[i] + m.output[i] : m.output[i];
  }
  if (serial && norm && norm->place == NormPlace::post) {
    apply(norm, m.stream, m.stream);
  }
}

void Engine::State::project(int member, int64_t n) {
  Member& m = members[member];
  Layer& layer = layers[n];
  const Attention& t = layer.spec->attention;
  if (n > 0 && layers[n - 1].spec->mlp) {
    take_output(m, layers[n - 1], Sublayer::mlp);
  }
  const bool pre = layer.attention_norm && layer.attention_norm->place == NormPlace::pre;
  apply(pre ? layer.attention_norm : std::nullopt, m.stream, std::span(m.input).first(m.stream.size()));
  const int64_t queries = t.heads * t.head_width, keys = t.kv_heads * t.head_width;
  const Share of_keys =
      heads_apart(t) ? scaled(heads_of(t.kv_heads, member), t.head_width) : share_of(keys, member, team.size());
  const Share of_queries =
      heads_apart(t) ? scaled(of_keys, t.heads / t.kv_heads) : share_of(queries, member, team.size());
  const auto part = [&](const Product& product, int64_t from, Share share, std::vector<float>& to) {
    product.rows(from + share.first, from + share.last, m.input, m.scratch, to.data() + share.first);
  };
  if (n == 0 && tabled()) {  // behind what the stream begins with: query, key and value
    const auto look_up = [&](int64_t from, Share share, std::vector<float>& to) {
      const std::span<float> mine(to.data() + share.first, static_cast<size_t>(share.last - share.first));
      std::fill(mine.begin(), mine.end(), 0.0f);
      add_row(model.embedding.table, token, std::ssize(m.stream) + from + share.first, 1, mine);
    };
    look_up(0, of_queries, query);
    look_up(queries, of_keys, key);
    return look_up(queries + keys, of_keys, value);
  }
  if (layer.projections.has_matrix()) {
    part(layer.projections, 0, of_queries, query);
    part(layer.projections, queries, of_keys, key);
    return part(layer.projections, queries + keys, of_keys, value);
  }
  part(is<SameAsKey>(t.query) ? layer.key : layer.query, 0, of_queries, query);
  part(layer.key, 0, of_keys, key);
  part(layer.value, 0, of_keys, value);
}

// Each head by one member: its norm, its angle, and into the cache.
void Engine::State::remember(int member, int64_t n) {
  Layer& layer = layers[n];
  const Attention& t = layer.spec->attention;
  const auto ready = [&](std::vector<float>& of, int64_t head, const std::optional<VectorNorm>& norm) {
    const std::span<float> one(of.data() + head * t.head_width, static_cast<size_t>(t.head_width));
    apply(norm, one, one);
    layer.angles ? layer.angles->turn(one) : void();
    return one;
  };
  const Share of_queries = heads_of(t.heads, member), of_keys = heads_of(t.kv_heads, member);
  for (int64_t h = of_queries.first; h < of_queries.last; ++h) {
    ready(query, h, layer.query_norm);
  }
  for (int64_t h = of_keys.first; h < of_keys.last; ++h) {
    const std::span<float> one = ready(key, h, layer.key_norm);
    const int64_t at = (h * capacity + length) * t.head_width;
    std::copy(one.begin(), one.end(), layer.keys + at);
    std::copy_n(value.data() + h * t.head_width, t.head_width, layer.values + at);
  }
}

void Engine::State::attend(int member, int64_t n) {
  Member& m = members[member];
  const Layer& layer = layers[n];
  const Attention& t = layer.spec->attention;
  const int64_t first = t.window ? std::max<int64_t>(0, length + 1 - *t.window) : 0, count = length + 1 - first;
  const float scale = static_cast<float>(scale_of(t));
  m.scores.resize(std::max(m.scores.size(), static_cast<size_t>(capacity)));
  const Share mine = heads_of(t.heads, member);
  for (int64_t h = mine.first; h < mine.last; ++h) {
    const int64_t at = (h / (t.heads / t.kv_heads) * capacity + first) * t.head_width;
    const std::span<float> scores = std::span(m.scores).first(static_cast<size_t>(count));
    multiply_rows({.data = layer.keys + at, .columns = t.head_width}, 0, count, query.data() + h * t.head_width,
                  m.scratch.data(), scores.data());
    for (int64_t i = 0; i < count; ++i) {
      scores[i] *= scale;
      if (t.alibi) {
        scores[i] += layer.slopes[h] * static_cast<float>(first + i - length) * (t.alibi->scaled ? scale : 1);
      }
      if (t.softcap) {
        const float cap = static_cast<float>(*t.softcap);
        scores[i] = cap * std::tanh(scores[i] / cap);
      }
    }
    softmax(scores);
    add_rows(layer.values + at, t.head_width, count, scores.data(), mixed.data() + h * t.head_width);
  }
}

void Engine::State::read_mlp(int member, int64_t n) {
  Member& m = members[member];
  const Layer& layer = layers[n];
  const Mlp& mlp = *layer.spec->mlp;
  if (layer.spec->wiring == Wiring::serial) {
    take_output(m, layer, Sublayer::attention);
  }
  const std::span<float> input = std::span(m.mlp_input).first(m.stream.size());
  const bool pre = layer.mlp_norm && layer.mlp_norm->place == NormPlace::pre;
  if (layer.spec->wiring == Wiring::parallel && !layer.mlp_norm) {
    std::copy_n(m.input.begin(), input.size(), input.begin());
  } else {
    apply(pre || layer.spec->wiring == Wiring::parallel ? layer.mlp_norm : std::nullopt, m.stream, input);
  }
  const int64_t neurons = neurons_of(mlp).count;
  const Share share = share_of(neurons, member, team.size());
  float* up = hidden.data() + share.first;
  const std::span<float> ready(up, static_cast<size_t>(share.last - share.first));
  float* gate = hidden.data() + neurons + share.first;
  if (const auto* dense = std::get_if<DenseMlp>(&mlp.kind)) {
    if (!dense->gated) {
      layer.up.rows(share.first, share.last, m.mlp_input, m.scratch, up);
      return activate(dense->activation, ready);
    }
    layer.gate_up.rows(share.first, share.last, m.mlp_input, m.scratch, gate);
    layer.gate_up.rows(neurons + share.first, neurons + share.last, m.mlp_input, m.scratch, up);
    activate(dense->activation, {gate, ready.size()});
  } else {
    layer.neuron_query.rows(share.first, share.last, m.mlp_input, m.scratch, gate);
    if (std::get<NeuronHeads>(mlp.kind).shared_value) {
      std::copy_n(gate, ready.size(), up);
    } else {
      layer.neuron_value.rows(share.first, share.last, m.mlp_input, m.scratch, up);
    }
    activate(Activation::sigmoid, {gate, ready.size()});
  }
  for (size_t i = 0; i < ready.size(); ++i) {
    ready[i] *= gate[i];
  }
}

void Engine::State::write_mlp(int member, int64_t n) {
  const Layer& layer = layers[n];
  const Share share = share_of(model.architecture.width, member, team.size());
  const Product& out = layer.down.has_matrix() ? layer.down : layer.neuron_out;
  out.rows(share.first, share.last, hidden, members[member].scratch, written.data() + share.first);
}

Engine::Engine(const LoadedModel& model, int threads) : state_(new State(model, threads)) {}
Engine::~Engine() = default;

std::span<const float> Engine::step(int64_t id, Cache& cache) {
  State& s = *state_;
  const Architecture& a = s.model.architecture;
  PARE_CHECK(cache.length > 0 && !cache.positions.defined() && !cache.mask.defined(), "a step follows a prefill");
  cache.reserve(cache.length + 1);
  s.length = cache.length;
  s.token = id;
  if (a.embedding.position == Position::sinusoidal) {
    s.waves = sinusoidal_positions(at::full({1}, s.length, at::kLong), a.width, at::kFloat);
  }
  for (size_t n = 0; n < s.layers.size(); ++n) {
    s.layers[n].keys = cache.layers[n].keys.mutable_data_ptr<float>();
    s.layers[n].values = cache.layers[n].values.mutable_data_ptr<float>();
    s.capacity = cache.layers[n].keys.size(2);
    s.layers[n].angles ? s.layers[n].angles->stand_at(s.length) : void();
  }
  s.team.run([&](int member) {
    Member& m = s.members[member];
    s.embed(m.stream);
    for (int64_t n = 0; n < std::ssize(s.layers); ++n) {
      const Layer& layer = s.layers[n];
      const bool parallel = layer.spec->wiring == Wiring::parallel;
      s.project(member, n);
      if (parallel && layer.spec->mlp) {
        s.read_mlp(member, n);
      }
      const bool apart = s.heads_apart(layer.spec->attention);
      apart ? void() : s.team.meet();
      s.remember(member, n);
      apart ? void() : s.team.meet();
      s.attend(member, n);
      s.team.meet();
      const Share share = share_of(a.width, member, s.team.size());
      layer.output.rows(share.first, share.last, s.mixed, m.scratch, s.attended.data() + share.first);
      if (parallel && layer.spec->mlp) {
        s.write_mlp(member, n);
      }
      s.team.meet();
      if (parallel || !layer.spec->mlp) {
        s.take_output(m, layer, Sublayer::attention);
        continue;
      }
      s.read_mlp(member, n);
      s.team.meet();
      s.write_mlp(member, n);
      s.team.meet();
    }
    if (s.layers.back().spec->mlp) {
      s.take_output(m, s.layers.back(), Sublayer::mlp);
    }
    apply(s.final_norm, m.stream, m.stream);
    const Share share = share_of(a.vocab, member, s.team.size());
    s.head.rows(share.first, share.last, m.stream, m.scratch, s.logits.data() + share.first);
  });
  if (a.head.softcap) {
    for (float& logit : s.logits) {
      logit = static_cast<float>(*a.head.softcap) * std::tanh(logit / static_cast<float>(*a.head.softcap));
    }
  }
  ++cache.length;
  return s.logits;
}

}  // namespace pare
