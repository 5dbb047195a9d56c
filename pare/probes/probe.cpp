#include "pare/probes/probe.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "pare/checkpoint/weights.h"
#include "pare/model/forward.h"
#include "pare/probes/collapses.h"
#include "pare/probes/merging.h"
#include "pare/probes/probe_batches.h"
#include "pare/probes/probe_points.h"
#include "pare/probes/recording.h"
#include "pare/probes/score_maps.h"
#include "pare/redundancy/redundancy.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/memory.h"

namespace pare {

namespace {

constexpr int64_t shortest_prefix = 4;

// What of a block is the same for all sequences.
struct BlockFacts {
  at::Tensor output;  // W_O, with the heads in the order in which they are shown
  at::Tensor order;   // that order
  OutputBases bases;
  std::vector<std::optional<double>> asymmetries;
  std::string no_asymmetry;
};

BlockFacts facts_of(const BlockLayer& block, bool tabled, const std::vector<int64_t>& order) {
  const Attention& t = block.attention.spec;
  BlockFacts facts;
  const at::Tensor stored = output_map(block.attention);
  facts.order = at::tensor(order, at::kLong).to(stored.device());
  facts.output = stored.view({stored.size(0), t.heads, -1}).index_select(1, facts.order).flatten(1, 2);
  facts.bases = output_bases(facts.output, t.heads);
  const ScoreMaps maps = score_maps(block.attention, tabled);
  facts.no_asymmetry = maps.missing;
  facts.asymmetries.resize(order.size());
  if (!maps.missing.empty()) {
    return facts;
  }
  std::vector<double> found(order.size());
  at::parallel_for(0, std::ssize(order), 1, [&](int64_t begin, int64_t end) {
    const at::NoGradGuard no_grad;
    for (int64_t h = begin; h < end; ++h) {
      const auto& [query, key] = maps.heads[order[h]];
      found[h] = asymmetry(query, key);
    }
  });
  for (size_t h = 0; h < found.size(); ++h) {
    if (std::isfinite(found[h])) {
      facts.asymmetries[h] = found[h];
    } else {
      facts.no_asymmetry = "the product of the query and the key matrix is zero";
    }
  }
  return facts;
}

// Then what attention is within a prefix does not depend on what comes after it.
bool looks_back_only(const Architecture& a) {
  return std::ranges::all_of(a.blocks, [](const Block& block) {
    const Attention& t = block.attention;
    return t.mask == Mask::causal && !(t.rope && depends_on_length(*t.rope));
  });
}

Blocks supply(const std::vector<BlockLayer>& blocks) {
  return [&blocks](int64_t n) -> const BlockLayer& { return blocks[n]; };
}

std::string attention_tap(int64_t layer, const char* name) {
  return fmt::format("blocks.{}.attention.{}", layer, name);
}

// Of the sequences that are measured now: they count together, at the end.
struct BatchRecord {
  std::map<size_t, StackRanks> ranks;  // by point: a norm compares two
  at::Tensor overflowing;              // [rows]: the squares in an RMSNorm left the range of its type
  std::string overflows_at;            // the first such norm
};

// Tells how much of a batch is behind: layers count by the tokens that they saw, also those of prefixes.
class Behind {
 public:
  Behind(const std::function<void(double)>& told, int64_t layers, int64_t tokens)
      : told_(told), all_(static_cast<double>(layers * tokens)) {}
  void layer_of(int64_t tokens) {
    done_ += static_cast<double>(tokens);
    check_interrupt();
    if (told_) {
      told_(done_ / all_);
    }
  }

 private:
  const std::function<void(double)>& told_;
  double all_, done_ = 0;
};

// 4, 8, 16, ... tokens: what of them is measured in runs of their own.
std::vector<int64_t> prefixes_of(int64_t tokens) {
  std::vector<int64_t> prefixes;
  for (int64_t prefix = shortest_prefix; prefix < tokens; prefix *= 2) {
    prefixes.push_back(prefix);
  }
  return prefixes;
}

}  // namespace

struct Probe::State {
  Model model;
  ProbeOptions options;
  std::vector<int64_t> order;  // which block each layer runs
  Tolerance tolerance;
  Tables tables;
  EmbeddingLayer embedding;
  std::vector<BlockLayer> blocks, plain_blocks;  // plain: as they were before an intervention
  HeadLayer head, plain_head;
  std::vector<BlockFacts> facts;  // by block
  std::vector<at::Tensor> grams;  // by layer: of what the heads wrote together, summed over all tokens
  ProbeResults results;           // of the sequences that are measured now
  ProbeResults blank;             // the same of none
  ProbeResults all;               // of those that count

  State(const Model& of, const ProbeOptions& wanted) : model(of), options(wanted), tables(wanted.arithmetic) {}

  const BlockLayer& block(int64_t layer) const { return blocks[order[layer]]; }
  const BlockFacts& fact(int64_t layer) const { return facts[order[layer]]; }

  void load();
  void describe();
  LayerMeasures described_layer(int64_t layer) const;
  const NormLayer& layer_of(const NormMeasures& norm) const;
  void add_symmetries(Taps& taps) const;
  at::Tensor plain_answer(const Inputs& inputs, Behind& behind) const;
  void measure_prefix(const Inputs& inputs, int64_t tokens, Behind& behind);
  at::Tensor measure_layer(int64_t layer, const Taps& taps);  // what the heads wrote together
  void measure_points(const std::map<std::string, at::Tensor>& values, BatchRecord& batch);
  void measure_norms(const BatchRecord& batch);
  void count(int64_t rows, int64_t tokens, const BatchRecord& batch);
  void measure(const Inputs& inputs, const std::function<void(double)>& done);
  void measure_alone(const Inputs& sequences, const std::function<void(double)>& done);
};

void Probe::State::load() {
  const PromptlyFreed promptly;
  const Architecture& a = model.architecture;
  order = layer_blocks(a);
  tolerance = {options.threshold, 2 * unit_roundoff(dtype_of(options.arithmetic.dtype))};
  Loader loader(a, model.weights, options.arithmetic, false);
  embedding = load_embedding(loader, a);
  head = load_head_front(loader, a);
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    blocks.push_back(load_block(loader, a, n));
  }
  if (options.interventions.any()) {
    plain_blocks = blocks;
    plain_head = head;
    intervene(head, options.interventions, a.width, options.arithmetic);
  }
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    BlockLayer& loaded = blocks[n];
    intervene(loaded, options.interventions, n, options.arithmetic);
    facts.push_back(facts_of(loaded, is_tabled(a, n), head_order(loaded.attention.spec, options.interventions, n)));
  }
}

LayerMeasures Probe::State::described_layer(int64_t layer) const {
  const Architecture& a = model.architecture;
  const int64_t n = order[layer];
  const Block& spec = a.blocks[n];
  const Attention& t = spec.attention;
  LayerMeasures measures{.layer = layer, .block = n};
  for (const std::optional<double>& asymmetry : fact(layer).asymmetries) {
    HeadMeasures one;
    one.asymmetry = asymmetry;
    one.no_asymmetry = asymmetry ? "" : fact(layer).no_asymmetry;
    measures.heads.push_back(std::move(one));
  }
  for (const auto& [g, h] : fact(layer).bases.pairs) {
    measures.pairs.push_back({.first = g, .second = h});
  }
  measures.ambiguity_of_a_token = (t.heads - 1) * (fact(layer).output.size(1) / t.heads);
  const bool free = t.values == Form::factored && is<Dense>(t.value) && is<Dense>(t.output) && !is_tabled(a, n);
  measures.value_output_gauge = free ? t.kv_heads * t.head_width * t.head_width : 0;
  if (spec.mlp) {
    measures.mlp_width = std::visit([](const auto& kind) { return kind.width; }, spec.mlp->kind);
  }
  return measures;
}

const NormLayer& Probe::State::layer_of(const NormMeasures& norm) const {
  if (norm.layer == std::ssize(order)) {
    return *head.final_norm;
  }
  const BlockLayer& of = block(norm.layer);
  const bool of_output = norm.name.ends_with("output_norm");
  if (norm.name.find(".attention.") != std::string::npos) {
    return of_output ? *of.attention_output_norm : *of.attention_norm;
  }
  return of_output ? *of.mlp_output_norm : *of.mlp_norm;
}

// Everything that is known before a sequence is seen.
void Probe::State::describe() {
  const Architecture& a = model.architecture;
  ProbePoints found = find_points(a);
  results.threshold = options.threshold;
  results.dtype = std::string(word(dtype_of(options.arithmetic.dtype)));
  results.width = a.width;
  results.interventions = in_words(options.interventions);
  results.points = std::move(found.points);
  results.norms = std::move(found.norms);
  const Redundancy redundant = redundancy(a);
  if (redundant.is_exact()) {
    results.gauge.dimension = redundant.total;
  } else {
    results.gauge.undetermined =
        fmt::format("at least {}: {}", redundant.total, fmt::join(redundant.lower_bound, "; "));
  }
  for (int64_t layer = 0; layer < std::ssize(order); ++layer) {
    results.layers.push_back(described_layer(layer));
    grams.push_back(at::zeros({a.width, a.width}, fact(layer).output.options()));
  }
  for (NormMeasures& norm : results.norms) {
    const NormLayer& loaded = layer_of(norm);
    record_gains(norm, loaded.gain.defined() ? loaded.gain.tensor() : at::Tensor());
  }
  blank = all = results;
}

void Probe::State::add_symmetries(Taps& taps) const {
  for (int64_t layer = 0; layer < std::ssize(order); ++layer) {
    pare::add_symmetries(taps, block(layer).attention.spec, options.interventions, order[layer], layer,
                         options.arithmetic);
  }
}

at::Tensor Probe::State::plain_answer(const Inputs& inputs, Behind& behind) const {
  Forward run(model.architecture, tables, {&inputs, 1});
  run.embed(embedding);
  while (run.done() < run.layers()) {
    run.run_layer(supply(plain_blocks));
    behind.layer_of(tokens_of(inputs, model.architecture));
  }
  return run.finish(plain_head, Logits::none).front().hidden;
}

void Probe::State::measure_prefix(const Inputs& inputs, int64_t tokens, Behind& behind) {
  const Inputs prefix = each_of(inputs, [tokens](const at::Tensor& x) { return x.narrow(1, 0, tokens); });
  Taps taps;
  taps.record("blocks.*.attention.probabilities");
  add_symmetries(taps);
  Forward run(model.architecture, tables, {&prefix, 1}, nullptr, &taps);
  run.embed(embedding);
  while (run.done() < run.layers()) {
    const int64_t layer = run.done();
    run.run_layer(supply(blocks));
    record_prefix(results.layers[layer], taps.recorded().at(attention_tap(layer, "probabilities")).to(at::kDouble),
                  tolerance.epsilon);
    taps.clear();
    behind.layer_of(tokens);
  }
}

at::Tensor Probe::State::measure_layer(int64_t layer, const Taps& taps) {
  LayerMeasures& to = results.layers[layer];
  const at::Tensor probabilities = taps.recorded().at(attention_tap(layer, "probabilities")).to(at::kDouble);
  record_attention(to, block(layer).attention.spec, probabilities, tolerance.epsilon);
  if (looks_back_only(model.architecture)) {
    for (const int64_t tokens : prefixes_of(probabilities.size(2))) {
      record_prefix(to, probabilities.narrow(2, 0, tokens).narrow(3, 0, tokens), tolerance.epsilon);
    }
  }
  const at::Tensor written = taps.recorded().at(attention_tap(layer, "heads")).to(at::kDouble);
  return record_heads(to, written.index_select(2, fact(layer).order), fact(layer).bases, fact(layer).output, tolerance);
}

void Probe::State::measure_points(const std::map<std::string, at::Tensor>& values, BatchRecord& batch) {
  for (size_t p = 0; p < results.points.size(); ++p) {
    const auto found = values.find(results.points[p].name);
    if (found == values.end()) {
      continue;
    }
    check_interrupt();
    const at::Tensor x = found->second.to(at::kDouble);
    batch.ranks[p] = stack_ranks(x, tolerance);
    record_ranks(results.points[p].ranks, batch.ranks[p]);
    for (NormMeasures& norm : results.norms) {
      if (norm.before == p) {
        record_hypotheses(norm, x, tolerance);
        if (norm.kind == NormKind::rms) {
          const at::Tensor here = overflowing_rows(found->second).to(at::kCPU);
          batch.overflows_at = batch.overflows_at.empty() && here.any().item<bool>() ? norm.name : batch.overflows_at;
          batch.overflowing = batch.overflowing.defined() ? batch.overflowing | here : here;
        }
      }
    }
  }
}

void Probe::State::measure_norms(const BatchRecord& batch) {
  for (NormMeasures& norm : results.norms) {
    record_change(norm, batch.ranks.at(norm.before), batch.ranks.at(norm.after));
  }
}

void Probe::State::count(int64_t rows, int64_t tokens, const BatchRecord& batch) {
  results.shortest = results.sequences == 0 ? tokens : std::min(results.shortest, tokens);
  results.longest = std::max(results.longest, tokens);
  results.sequences += rows;
  results.tokens += rows * tokens;
  at::Tensor broken = at::zeros({rows}, at::kBool);
  for (const auto& [point, ranks] : batch.ranks) {
    const at::Tensor here = ranks.finite.logical_not().to(at::kCPU);
    if (results.first_broken.empty() && here.any().item<bool>()) {
      results.first_broken = results.points[point].name;
    }
    broken = broken | here;
  }
  results.broken += broken.sum().item<int64_t>();
  if (!batch.overflows_at.empty()) {
    results.overflowing += batch.overflowing.sum().item<int64_t>();
    results.first_overflowing = batch.overflows_at;
  }
}

void Probe::State::measure(const Inputs& inputs, const std::function<void(double)>& done) {
  const Architecture& a = model.architecture;
  const int64_t tokens = tokens_of(inputs, a), rows = batch_size(inputs);
  const bool changed = options.interventions.any();
  const bool runs_prefixes = !looks_back_only(a) && inputs.ids.defined();
  const std::vector<int64_t> prefixes = runs_prefixes ? prefixes_of(tokens) : std::vector<int64_t>();
  Behind behind(done, std::ssize(order),
                std::accumulate(prefixes.begin(), prefixes.end(), changed ? 2 * tokens : tokens));
  Taps taps;
  record_points(taps);
  add_symmetries(taps);
  Forward run(a, tables, {&inputs, 1}, nullptr, &taps);
  run.embed(embedding);
  BatchRecord batch;
  std::vector<at::Tensor> written;  // by layer
  while (run.done() < run.layers()) {
    const int64_t layer = run.done();
    run.run_layer(supply(blocks));
    written.push_back(measure_layer(layer, taps));
    measure_points(values_at_points(block(layer), taps, layer), batch);
    taps.clear();
    behind.layer_of(tokens);
  }
  const at::Tensor answer = run.finish(head, Logits::none).front().hidden.to(at::kDouble);
  measure_points(taps.recorded(), batch);
  measure_norms(batch);
  for (const int64_t prefix : prefixes) {
    measure_prefix(inputs, prefix, behind);
  }
  if (changed) {
    const at::Tensor plain = plain_answer(inputs, behind).to(at::kDouble);
    const at::Tensor changes = ((answer - plain).flatten(1).norm(2, 1) / plain.flatten(1).norm(2, 1)).to(at::kCPU);
    for (int64_t row = 0; row < rows; ++row) {
      results.effect.add(changes[row].item<double>());
    }
  }
  for (size_t layer = 0; layer < written.size(); ++layer) {
    grams[layer].addmm_(written[layer].t(), written[layer]);
  }
  count(rows, tokens, batch);
}

void Probe::State::measure_alone(const Inputs& sequences, const std::function<void(double)>& done) {
  PARE_CHECK(!sequences.mask.defined(), "sequences come without padding: see probe_batches");
  const at::NoGradGuard no_grad;
  results = blank;  // interrupted, no sequence counts in some layers and not in others
  measure(moved(sequences, options.arithmetic.device), done);
}

Probe::Probe(const Model& model, const ProbeOptions& options) {
  const at::NoGradGuard no_grad;
  check_interventions(options.interventions, model.architecture);
  state_ = std::make_unique<State>(model, options);
  state_->load();
  state_->describe();
}

Probe::~Probe() = default;

void Probe::measure(const Inputs& sequences, const std::function<void(double)>& done) {
  state_->measure_alone(sequences, done);
  merge(state_->all, state_->results);
}

std::string Probe::measured(const Inputs& sequences, const std::function<void(double)>& done) {
  state_->measure_alone(sequences, done);
  return packed(state_->results);
}

void Probe::count(const std::string& measured) {
  merge(state_->all, unpacked(measured, state_->blank));
}

void Probe::share(const Communicator& ranks) {
  for (const at::Tensor& gram : state_->grams) {
    ranks.all_reduce(gram);
  }
}

ProbeResults Probe::results() const {
  const at::NoGradGuard no_grad;
  const State& s = *state_;
  ProbeResults results = s.all;
  for (size_t layer = 0; layer < results.layers.size() && results.sequences > 0; ++layer) {
    LayerMeasures& measures = results.layers[layer];
    if (measures.multi_head_rank.count == 0) {  // no sequence had one: nothing was added up
      continue;
    }
    measures.corpus_rank = rank_of_gram(s.grams[layer], s.options.threshold);
    if (measures.mlp_width) {
      measures.width_bound = static_cast<double>(2 * results.width - *measures.corpus_rank);
    }
  }
  results.findings = find_collapses(results, s.model.architecture);
  const double roundoff = unit_roundoff(dtype_of(s.options.arithmetic.dtype));
  if (const std::optional<double> gauge = s.options.interventions.gauge; gauge && std::exp(*gauge) * roundoff > 1) {
    results.warnings.push_back(
        fmt::format("a basis of condition number exp({:g}) = {:.0e} cannot be undone in {}, which has {:.0e} to give: "
                    "what is shown is rounding. --gauge below {:.0f} is a symmetry",
                    *gauge, std::exp(*gauge), results.dtype, 1 / roundoff, std::floor(-std::log(roundoff))));
  }
  if (results.broken > 0) {
    results.warnings.push_back(
        fmt::format("{} of {} sequences have activations that are not finite, the first at {}: their numbers are left "
                    "out (in a wider --dtype they may be finite)",
                    results.broken, results.sequences, results.first_broken));
  }
  if (results.overflowing > 0) {
    results.warnings.push_back(
        fmt::format("{} of {} sequences have finite activations whose squares overflow in an RMSNorm, first in {}: "
                    "it makes zeros of them (in a wider --dtype it may not)",
                    results.overflowing, results.sequences, results.first_overflowing));
  }
  return results;
}

}  // namespace pare
