#include "pare/decode/device_engine.h"

#include <ATen/ATen.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "pare/model/device.h"
#include "pare/model/rope.h"
#include "pare/model/tables.h"
#include "pare/support/error.h"

namespace pare {

using device_step::Piecework;

namespace {

constexpr int64_t longest_vector = 24 * 1024;  // that a block of every GPU we compile for can hold

int64_t numbers_held(at::ScalarType type) {
  return 16 / static_cast<int64_t>(at::elementSize(type));
}

}  // namespace

std::optional<std::string> device_engine_lacks(const Architecture& a, at::ScalarType type) {
  if (type != at::kFloat && type != at::kBFloat16) {
    return "numbers other than float32 and bfloat16";
  }
  if (const std::optional<std::string> lack = engine_lacks(a)) {
    return lack;
  }
  if (a.first_layer == FirstLayer::table) {
    return "a first layer that is looked up";
  }
  int64_t longest = 2 * a.width;  // what is normed before it is added lies beside it
  for (const Block& block : a.blocks) {
    const Attention& t = block.attention;
    if (t.head_width > 32 * numbers_held(type)) {
      return fmt::format("heads wider than {}", 32 * numbers_held(type));
    }
    longest = std::max(longest, t.heads * t.head_width);
    if (block.mlp) {
      if (!std::holds_alternative<DenseMlp>(block.mlp->kind)) {
        return "neuron heads";
      }
      longest = std::max(longest, neurons_of(*block.mlp).count);
    }
  }
  if (longest > longest_vector) {
    return "vectors that are too long for a block of threads";
  }
  return std::nullopt;
}

namespace {

device_step::StepCurve curve_of(Activation activation) {
  using device_step::StepCurve;
  switch (activation) {
    case Activation::gelu:
      return StepCurve::gelu;
    case Activation::gelu_tanh:
      return StepCurve::gelu_tanh;
    case Activation::gelu_bloom:
      return StepCurve::gelu_bloom;
    case Activation::quick_gelu:
      return StepCurve::quick_gelu;
    case Activation::relu:
      return StepCurve::relu;
    case Activation::relu_squared:
      return StepCurve::relu_squared;
    case Activation::silu:
      return StepCurve::silu;
    case Activation::sigmoid:
      return StepCurve::sigmoid;
    case Activation::tanh:
      return StepCurve::tanh;
    case Activation::identity:
      return StepCurve::none;
    case Activation::xielu:
      break;
  }
  PARE_UNREACHABLE("an activation that the engine lacks");
}

int64_t whole_quads(int64_t count) {
  return (count + 3) / 4 * 4;
}

// The plan, and the tensors that it points to.
class Planner {
 public:
  Planner(const LoadedModel& model, const Cache& cache);
  std::vector<Piecework> work;
  device_step::StepList plan() {
    return {.work = work.data(),
            .count = static_cast<int>(work.size()),
            .number = type_ == at::kFloat ? device_step::Number::float32 : device_step::Number::bfloat16,
            .state = state_,
            .logits = logits_,
            .vocab = static_cast<int>(model_.architecture.vocab)};
  }

 private:
  float* floats(int64_t count) { return kept(at::zeros({whole_quads(count)}, options_)).mutable_data_ptr<float>(); }
  int* integers(int64_t count) { return kept(at::zeros({count}, options_.dtype(at::kInt))).mutable_data_ptr<int>(); }
  const at::Tensor& kept(at::Tensor tensor) { return kept_.emplace_back(std::move(tensor)); }
  const float* vector(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      return nullptr;
    }
    const at::Tensor flat = tensor.to(at::kFloat).flatten();
    return kept(at::constant_pad_nd(flat, {0, whole_quads(flat.numel()) - flat.numel()})).const_data_ptr<float>();
  }
  const void* matrix(const at::Tensor& tensor) {
    PARE_CHECK(tensor.scalar_type() == type_, "all tensors of one type");
    return kept(tensor.contiguous()).const_data_ptr();
  }
  device_step::StepNorm norm(const std::optional<NormLayer>& layer);
  device_step::StepNorm norm(const std::optional<NormLayer>& layer, NormPlace place) {
    return layer && layer->spec.place == place ? norm(layer) : device_step::StepNorm();
  }
  device_step::Piece piece(const Linear& linear, int64_t first, int64_t rows, float* out);
  device_step::Input input(const device_step::StepNorm& norm, bool last = false);
  device_step::StepProduct& product(const device_step::Input& input);
  void finish(device_step::StepProduct& product);
  void add(const float* y, const BlockLayer& block, Sublayer which);
  void attention(const BlockLayer& block, const LayerCache& cache);
  void turns(device_step::Attend& attend, const Rope& rope);
  void mlp(const BlockLayer& block);

  const LoadedModel& model_;
  at::TensorOptions options_;
  at::ScalarType type_;
  std::vector<at::Tensor> kept_;
  std::vector<std::pair<Rope, device_step::Attend>> turned_;  // with the angles of each
  device_step::State* state_ = nullptr;
  const float* logits_ = nullptr;
  // Between pieces of work.
  float *streams_[2] = {}, *query_ = nullptr, *key_ = nullptr, *value_ = nullptr, *mixed_ = nullptr,
        *attended_ = nullptr, *hidden_ = nullptr, *written_ = nullptr, *parts_ = nullptr, *shares_ = nullptr;
  int* tickets_ = nullptr;
  int64_t capacity_ = 0;
  const float* stream_ = nullptr;  // where it is now; null: nowhere yet
  int turn_ = 0;
  std::vector<device_step::Added> added_;  // what has to be added to it
};

constexpr int64_t blocks_of_attention = 256;  // about two for each multiprocessor of a large GPU

int64_t splits_of(const Attention& t, int64_t capacity) {
  const int64_t together = t.heads / t.kv_heads, turns = (together + 7) / 8;
  const int64_t wanted = std::clamp<int64_t>(blocks_of_attention / (t.kv_heads * turns), 1, 64);
  return std::min(wanted, (capacity + device_step::fewest_of_a_split - 1) / device_step::fewest_of_a_split);
}

Planner::Planner(const LoadedModel& model, const Cache& cache) : model_(model) {
  const Architecture& a = model.architecture;
  type_ = model.embedding.token.scalar_type();
  options_ = model.embedding.token.options().dtype(at::kFloat);
  capacity_ = cache.layers.empty() ? cache.length + 1 : cache.layers.front().keys.size(2);
  int64_t queries = 0, keys = 0, neurons = 0, parts = 0, shares = 0, heads = 0;
  for (const Block& block : a.blocks) {
    const Attention& t = block.attention;
    queries = std::max(queries, t.heads * t.head_width);
    keys = std::max(keys, t.kv_heads * t.head_width);
    neurons = std::max(neurons, block.mlp ? neurons_of(*block.mlp).count : 0);
    parts = std::max(parts, splits_of(t, capacity_) * t.heads * t.head_width);
    shares = std::max(shares, splits_of(t, capacity_) * t.heads * 2);
    heads = std::max(heads, t.heads);
  }
  static_assert(sizeof(device_step::State) == 4 * sizeof(int));
  state_ = reinterpret_cast<device_step::State*>(integers(4));
  for (float*& stream : streams_) {
    stream = floats(a.width);
  }
  query_ = floats(queries), key_ = floats(keys), value_ = floats(keys), mixed_ = floats(queries);
  attended_ = floats(a.width), hidden_ = floats(neurons), written_ = floats(a.width);
  parts_ = floats(parts), shares_ = floats(shares), tickets_ = integers(heads);

  const std::vector<int64_t> order = layer_blocks(a);
  for (size_t n = 0; n < order.size(); ++n) {
    const BlockLayer& block = model.blocks[order[n]];
    const bool parallel = block.spec.wiring == Wiring::parallel;
    attention(block, cache.layers[n]);
    if (block.mlp && !parallel) {
      mlp(block);
      add(written_, block, Sublayer::mlp);
    }
  }
  float* logits = floats(a.vocab);
  logits_ = logits;
  device_step::StepProduct& head = product(input(norm(model.head.final_norm), true));
  head.pieces[0] = piece(model.head.head, 0, a.vocab, logits);
  head.then = device_step::Then::logits;
  head.softcap = static_cast<float>(a.head.softcap.value_or(0));
  head.best_logits = floats(device_step::most_blocks);
  head.best_ids = integers(device_step::most_blocks);
  finish(head);
}

device_step::StepNorm Planner::norm(const std::optional<NormLayer>& layer) {
  if (!layer) {
    return {};
  }
  using device_step::StepNormKind;
  const NormKind kind = layer->spec.kind;
  PARE_CHECK(kind != NormKind::scale, "a norm that the engine lacks");
  return {.kind = kind == NormKind::rms     ? StepNormKind::rms
                  : kind == NormKind::layer ? StepNormKind::layer
                                            : StepNormKind::dyt,
          .epsilon = static_cast<float>(layer->spec.epsilon),
          .alpha = layer->alpha.defined() ? layer->alpha.item<float>() : 1,
          .gain = vector(layer->gain.defined() ? layer->gain.tensor() : at::Tensor()),
          .bias = vector(layer->bias)};
}

// Some rows of a matrix; without one, numbers of what comes in.
device_step::Piece Planner::piece(const Linear& linear, int64_t first, int64_t rows, float* out) {
  device_step::Piece made{.out = out, .rows = static_cast<int>(rows)};
  if (linear.weight.defined()) {
    made.matrix = matrix(linear.weight.tensor().narrow(0, first, rows));
  }
  if (linear.bias.defined()) {
    made.bias = vector(linear.bias.tensor().narrow(0, first, rows));
  }
  return made;
}

// The stream with all that was written since, behind a norm.
device_step::Input Planner::input(const device_step::StepNorm& norm, bool last) {
  const Architecture& a = model_.architecture;
  device_step::Input in{.stream = stream_, .norm = norm, .width = static_cast<int>(a.width)};
  if (!stream_) {
    const EmbeddingLayer& e = model_.embedding;
    in.tokens = matrix(e.token);
    in.token_scale = static_cast<float>(a.embedding.scale);
    if (e.position.defined()) {
      in.positions = matrix(e.position);
      in.position_offset = static_cast<int>(a.embedding.position_offset);
    } else if (a.embedding.position == Position::sinusoidal) {
      const at::Tensor places = at::arange(a.context, options_.dtype(at::kLong)).unsqueeze(0);
      in.positions = matrix(sinusoidal_positions(places, a.width, type_)[0]);
    }
    in.embedding_norm = this->norm(e.norm);
  }
  std::copy(added_.begin(), added_.end(), in.added);
  if (!last && (!stream_ || !added_.empty())) {
    in.stream_out = streams_[turn_];
    stream_ = streams_[turn_];
    turn_ = 1 - turn_;
  }
  added_.clear();
  return in;
}

device_step::StepProduct& Planner::product(const device_step::Input& input) {
  device_step::StepProduct& made = work.emplace_back().product;
  made.input = input;
  made.columns = input.width;
  made.state = state_;
  return made;
}

void Planner::finish(device_step::StepProduct& product) {
  product.rows = 0;
  product.vectored = product.columns % numbers_held(type_) == 0;
  for (const device_step::Piece& piece : product.pieces) {
    product.rows += piece.rows;
    product.vectored = product.vectored && reinterpret_cast<uintptr_t>(piece.matrix) % 16 == 0;
  }
}

void Planner::add(const float* y, const BlockLayer& block, Sublayer which) {
  const bool attention = which == Sublayer::attention, serial = block.spec.wiring == Wiring::serial;
  PARE_CHECK(added_.size() < 2, "two sublayers write at most");
  added_.push_back({.y = y,
                    .before = norm(attention ? block.attention_output_norm : block.mlp_output_norm),
                    .after = serial ? norm(attention ? block.attention_norm : block.mlp_norm, NormPlace::post)
                                    : device_step::StepNorm(),
                    .skip = attention ? block.spec.attention.skip : block.spec.mlp->skip || !serial});
}

// The angles of all places that there is room for.
void Planner::turns(device_step::Attend& attend, const Rope& rope) {
  auto found = std::ranges::find_if(turned_, [&](const auto& one) { return one.first == rope; });
  if (found == turned_.end()) {
    const at::Tensor frequencies = at::tensor(rope_frequencies(rope, 0), at::kDouble).to(options_.device());
    const at::Tensor places = at::arange(capacity_, options_.dtype(at::kLong)).unsqueeze(0);
    const Turn turn = turn_at(rope, frequencies, places, at::kFloat);
    device_step::Attend made{.planes = static_cast<int>(rope.width / 2), .halves = rope.layout == RopeLayout::half};
    made.cosine = vector(turn.cosine);
    made.sine = vector(turn.sine);
    turned_.emplace_back(rope, made);
    found = turned_.end() - 1;
  }
  attend.cosine = found->second.cosine;
  attend.sine = found->second.sine;
  attend.planes = found->second.planes;
  attend.halves = found->second.halves;
}

void Planner::attention(const BlockLayer& block, const LayerCache& cache) {
  const Attention& t = block.spec.attention;
  const AttentionLayer& layer = block.attention;
  const int64_t queries = t.heads * t.head_width, keys = t.kv_heads * t.head_width;
  const device_step::StepNorm before = norm(block.attention_norm, NormPlace::pre);
  device_step::StepProduct& projections = product(input(before));
  if (layer.projections.weight.defined()) {
    projections.pieces[0] = piece(layer.projections, 0, queries, query_);
    projections.pieces[1] = piece(layer.projections, queries, keys, key_);
    projections.pieces[2] = piece(layer.projections, queries + keys, keys, value_);
  } else {
    projections.pieces[0] = piece(layer.key, 0, keys, key_);
    projections.pieces[1] = piece(layer.value, 0, keys, value_);
    if (!is<SameAsKey>(t.query)) {
      projections.pieces[2] = piece(layer.query, 0, queries, query_);
    }
  }
  finish(projections);
  const bool parallel = block.spec.wiring == Wiring::parallel && block.mlp;
  if (parallel) {
    mlp(block);
  }

  Piecework& piecework = work.emplace_back();
  piecework.attends = true;
  device_step::Attend& attend = piecework.attend;
  attend = {.query = is<SameAsKey>(t.query) ? key_ : query_,
            .key = key_,
            .value = value_,
            .keys = cache.keys.mutable_data_ptr(),
            .values = cache.values.mutable_data_ptr(),
            .mixed = mixed_,
            .heads = static_cast<int>(t.heads),
            .kv_heads = static_cast<int>(t.kv_heads),
            .width = static_cast<int>(t.head_width),
            .capacity = static_cast<int>(capacity_),
            .window = static_cast<int>(std::min(t.window.value_or(0), capacity_)),
            .scale = static_cast<float>(scale_of(t)),
            .softcap = static_cast<float>(t.softcap.value_or(0)),
            .query_norm = norm(layer.query_norm),
            .key_norm = norm(layer.key_norm),
            .vectored = t.head_width % numbers_held(type_) == 0,
            .splits = static_cast<int>(splits_of(t, capacity_)),
            .parts = parts_,
            .shares = shares_,
            .tickets = tickets_,
            .state = state_};
  PARE_CHECK(cache.keys.is_contiguous() && cache.values.is_contiguous() && cache.keys.size(2) == capacity_ &&
                 cache.keys.scalar_type() == type_,
             "a cache in one piece, of the weights' type");
  if (t.alibi) {
    const at::Tensor slopes =
        Tables({at::kFloat, options_.device()}).alibi_slopes(t.heads, t.alibi->steepest).flatten().to(at::kFloat);
    attend.slopes = vector(slopes * (t.alibi->scaled ? scale_of(t) : 1));
  }
  if (t.rope) {
    turns(attend, *t.rope);
  }

  if (!layer.output.weight.defined() && !layer.output.bias.defined()) {
    add(mixed_, block, Sublayer::attention);
  } else {
    device_step::StepProduct& output = product({.stream = mixed_, .width = static_cast<int>(queries)});
    output.pieces[0] = piece(layer.output, 0, model_.architecture.width, attended_);
    finish(output);
    add(attended_, block, Sublayer::attention);
  }
  if (parallel) {
    add(written_, block, Sublayer::mlp);
  }
}

void Planner::mlp(const BlockLayer& block) {
  const DenseMlp& spec = std::get<DenseMlp>(block.spec.mlp->kind);
  const DenseMlpLayer& layer = std::get<DenseMlpLayer>(*block.mlp);
  const bool parallel = block.spec.wiring == Wiring::parallel;
  const device_step::StepNorm before = !parallel        ? norm(block.mlp_norm, NormPlace::pre)
                                       : block.mlp_norm ? norm(block.mlp_norm)
                                                        : norm(block.attention_norm, NormPlace::pre);
  device_step::StepProduct& reader = product(input(before));
  reader.curve = curve_of(spec.activation);
  if (spec.gated) {
    reader.pieces[0] = piece(layer.gate_up, 0, 2 * spec.width, hidden_);
    reader.pieces[0].rows = static_cast<int>(spec.width);
    reader.then = device_step::Then::gate;
  } else {
    reader.pieces[0] = piece(layer.up, 0, spec.width, hidden_);
    reader.then = device_step::Then::curve;
  }
  finish(reader);
  device_step::StepProduct& writer = product({.stream = hidden_, .width = static_cast<int>(spec.width)});
  writer.pieces[0] = piece(layer.down, 0, model_.architecture.width, written_);
  finish(writer);
}

// The kernels of pare/cuda/step.cu.
class CudaRunner : public StepRunner {
 public:
  struct Functions {
    void* (*make)(const device_step::StepList*, int, const char**) = nullptr;
    const char* (*run)(void*, int, int, const float**, int*, float*) = nullptr;
    void (*free)(void*) = nullptr;
  };
  CudaRunner(const Functions& functions, at::Device device) : functions_(functions), device_(device) {}
  ~CudaRunner() override { release(); }

  void take(const device_step::StepList& plan) override {
    release();
    const char* why = nullptr;
    step_ = functions_.make(&plan, device_.index(), &why);
    check(why);
  }
  Answer run(int64_t id, int64_t length, bool logits) override {
    Answer answer;
    int likeliest = 0;
    check(functions_.run(step_, static_cast<int>(id), static_cast<int>(length), logits ? &answer.logits : nullptr,
                         &likeliest, &answer.most));
    answer.likeliest = likeliest;
    return answer;
  }

 private:
  void release() {
    step_ ? functions_.free(step_) : void();
    step_ = nullptr;
  }
  static void check(const char* why) {
    if (why) {
      throw IoError(fmt::format("--device cuda: a step of decoding failed: {}", why));
    }
  }
  Functions functions_;
  at::Device device_;
  void* step_ = nullptr;
};

}  // namespace

std::unique_ptr<StepRunner> device_runner(at::Device device) {
  CudaRunner::Functions found;
  if (void* library = device.is_cuda() ? cuda_part() : nullptr) {
    found.make = reinterpret_cast<decltype(found.make)>(dlsym(library, "pare_step_make"));
    found.run = reinterpret_cast<decltype(found.run)>(dlsym(library, "pare_step_run"));
    found.free = reinterpret_cast<decltype(found.free)>(dlsym(library, "pare_step_free"));
  }
  return found.make && found.run && found.free ? std::make_unique<CudaRunner>(found, device) : nullptr;
}

struct DeviceEngine::State {
  const LoadedModel& model;
  std::unique_ptr<StepRunner> runner;
  std::optional<Planner> planner;
  std::vector<const void*> places;  // of the cache, as planned
};

DeviceEngine::DeviceEngine(const LoadedModel& model, std::unique_ptr<StepRunner> runner)
    : state_(new State{.model = model, .runner = std::move(runner)}) {}
DeviceEngine::~DeviceEngine() = default;

StepRunner::Answer DeviceEngine::step(int64_t id, Cache& cache, bool logits) {
  State& s = *state_;
  PARE_CHECK(cache.length > 0 && !cache.positions.defined() && !cache.mask.defined(), "a step follows a prefill");
  cache.reserve(cache.length + 1);
  std::vector<const void*> places;
  for (const LayerCache& layer : cache.layers) {
    places.push_back(layer.keys.const_data_ptr());
    places.push_back(layer.values.const_data_ptr());
  }
  if (places != s.places) {
    s.planner.emplace(s.model, cache);
    s.runner->take(s.planner->plan());
    s.places = std::move(places);
  }
  const StepRunner::Answer answer = s.runner->run(id, cache.length, logits);
  ++cache.length;
  return answer;
}

}  // namespace pare
