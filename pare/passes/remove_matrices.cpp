#include "pare/passes/remove_matrices.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "pare/arch/streams.h"
#include "pare/arch/tensors.h"
#include "pare/passes/basis.h"
#include "pare/passes/shift.h"
#include "pare/support/error.h"
#include "pare/support/progress.h"
#include "pare/support/text.h"

namespace pare {

namespace {

struct Removal {
  size_t stream = 0;
  int64_t block = 0;
  Target target = Target::query;
  double stored = 1, gauged = 1;  // condition numbers
  bool absorbed = false;          // the stream's only writer: its readers take it by a product, nothing is inverted
  int64_t layers = 1;             // that read the stream: each adds its own rounding
  bool twice = false;  // a collapsed matrix lies on the stream with two axes, and takes Θ⁻¹ from both sides

  std::string module() const { return fmt::format("blocks.{}.attention.{}", block, word(target)); }
  std::string weight() const { return module() + ".weight"; }
  bool uses_gauge() const { return gauged < stored; }
  double condition() const { return absorbed ? 1 : twice ? gauged * gauged : gauged; }
  double cost() const { return condition() * static_cast<double>(layers); }
};

using Shapes = std::map<std::string, Shape>;

Shapes shapes_of(const Architecture& architecture) {
  Shapes shapes;
  for (TensorSpec& spec : tensor_table(architecture)) {
    shapes[spec.name] = std::move(spec.shape);
  }
  return shapes;
}

// Computed positions are no obstacle: they become a table, and are counted.
std::vector<std::string> obstacles(const Stream& stream) {
  std::vector<std::string> found;
  for (const Touch& touch : stream.touches) {
    if (touch.kind != TouchKind::sinusoidal) {
      found.push_back(describe(touch));
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

std::string few(const std::vector<std::string>& words) {
  constexpr size_t most = 3;
  if (words.size() <= most) {
    return fmt::format("{}", fmt::join(words, ", "));
  }
  return fmt::format("{}, and {} more", fmt::join(words.begin(), words.begin() + most, ", "), words.size() - most);
}

// Only one matrix writes the stream, and only an MLP reads it: then M* = P M, whatever P is.
bool is_absorbable(const Stream& stream, const std::string& weight) {
  return std::all_of(stream.ports.begin(), stream.ports.end(), [&](const Port& port) {
    const bool own = port.tensor == weight || port.tensor == weight.substr(0, weight.size() - 6) + "bias";
    return port.role == Role::writer ? own : port.tensor.find(".mlp.") != std::string::npos;
  });
}

class Planner {
 public:
  Planner(const Recipe& model, const Removable& what, const std::optional<Budget>& budget)
      : model_(model),
        what_(what),
        budget_(budget),
        streams_(find_streams(model.architecture)),
        blocks_(expanded_blocks(model.architecture)),
        shapes_(shapes_of(model.architecture)) {
    proposal_.after = model;
  }

  Proposal run() {
    find_candidates();
    choose();
    settle_tie();
    spend_budget();
    for (Conditioning& c : proposal_.conditioning) {
      c.chosen = std::any_of(chosen_.begin(), chosen_.end(),
                             [&](const auto& entry) { return entry.second.module() == c.matrix; });
    }
    if (!chosen_.empty()) {
      apply();
    }
    return std::move(proposal_);
  }

 private:
  size_t stream_of(int64_t block, Target target) const {
    const BlockStreams& at = streams_.blocks[static_cast<size_t>(block)];
    return target == Target::output ? at.attention_output : at.attention_input;
  }

  int64_t layers_on(size_t stream) const {
    int64_t count = 0;
    for (int64_t n : layer_blocks(model_.architecture)) {
      const BlockStreams& at = streams_.blocks[static_cast<size_t>(n)];
      count += at.attention_input == stream || (blocks_[static_cast<size_t>(n)].mlp && at.mlp_input == stream);
    }
    return std::max<int64_t>(count, 1);
  }

  void find_candidates() {
    const int64_t count = static_cast<int64_t>(blocks_.size());
    Progress progress("conditioning", static_cast<uint64_t>(count));
    for (int64_t n = 0; n < count; ++n) {
      progress.advance();
      if (what_.block && *what_.block != n) {
        continue;
      }
      std::vector<Precondition> failed;
      const size_t before = candidates_.size();
      for (Target target : what_.targets) {
        consider({.stream = stream_of(n, target), .block = n, .target = target}, failed);
      }
      if (candidates_.size() == before) {
        report(failed);
      }
    }
  }

  // Several targets of a block usually fail for one reason: the reasons are listed once.
  void report(const std::vector<Precondition>& failed) {
    for (const Precondition& f : failed) {
      const bool said =
          std::any_of(proposal_.preconditions.begin(), proposal_.preconditions.end(),
                      [&](const Precondition& other) { return other.where == f.where && other.found == f.found; });
      if (!said) {
        proposal_.preconditions.push_back(f);
      }
    }
  }

  void consider(Removal removal, std::vector<Precondition>& failed) {
    const auto shape = shapes_.find(removal.weight());
    const Stream& stream = streams_.all[removal.stream];
    const std::string block = fmt::format("blocks.{}", removal.block);
    if (shape == shapes_.end() || shape->second.size() != 2) {
      failed.push_back({.where = removal.module(), .expected = "a dense matrix of its own", .found = "there is none"});
      return;
    }
    const bool square = shape->second[0] == shape->second[1];
    const std::vector<std::string> others = obstacles(stream);
    if (!square) {
      failed.push_back({.where = removal.module(),
                        .expected = "a square matrix",
                        .found = fmt::format("it is {} x {}", shape->second[0], shape->second[1]),
                        .remedy = "another target, or heads * head_width = width"});
    }
    if (!others.empty()) {
      failed.push_back({.where = block,
                        .expected = "a stream that only matrices touch",
                        .found = few(others),
                        .remedy = "train the model without it"});
    }
    removal.layers = layers_on(removal.stream);
    removal.twice = std::any_of(stream.ports.begin(), stream.ports.end(),
                                [&](const Port& port) { return shapes_.at(port.tensor).size() == 3; });
    removal.absorbed = removal.target == Target::output && is_absorbable(stream, removal.weight());
    const bool possible = square && others.empty();
    if (model_.has_weights() && square && !removal.absorbed && (possible || what_.measure_all)) {
      measure(removal);
    }
    if (!possible) {
      return;
    }
    const bool well = removal.condition() <= largest_condition;
    Precondition conditioned{.where = removal.module(),
                             .expected = "well conditioned",
                             .found = fmt::format("condition number {:.3g}{}", removal.gauged,
                                                  removal.twice ? ", which collapsed matrices square" : ""),
                             .holds = well,
                             .remedy = well ? "" : "another target or layer",
                             .measured = removal.condition(),
                             .limit = largest_condition};
    if (!well) {
      failed.push_back(std::move(conditioned));
      return;
    }
    if (model_.has_weights()) {
      proposal_.preconditions.push_back(std::move(conditioned));
    }
    candidates_.push_back(removal);
  }

  void measure(Removal& removal) {
    const Attention& t = blocks_[static_cast<size_t>(removal.block)].attention;
    const at::Tensor stored = load_double(model_.weights.at(removal.weight()));
    removal.stored = removal.gauged = condition_number(stored);
    const at::Tensor gauge = gauge_of(t, removal.target, stored);
    if (gauge.defined()) {
      removal.gauged = std::min(removal.stored, condition_number(gauged_target(stored, gauge)));
    }
    proposal_.conditioning.push_back({removal.module(), removal.stored, removal.gauged});
  }

  void choose() {
    for (const Removal& removal : candidates_) {
      const auto [entry, first] = chosen_.emplace(removal.stream, removal);
      if (!first && removal.cost() < entry->second.cost()) {
        entry->second = removal;
      }
    }
    std::map<size_t, std::set<int64_t>> readers;
    for (const Removal& removal : candidates_) {
      if (removal.target != Target::output) {
        readers[removal.stream].insert(removal.block);
      }
    }
    std::set<size_t> said;
    for (const auto& [stream, blocks] : readers) {
      if (blocks.size() > 1 && said.insert(blocks.size()).second) {
        proposal_.notes.push_back(
            fmt::format("{} blocks share one stream, and so one basis: of their matrices one can go", blocks.size()));
      }
    }
  }

  // A tied table E writes one stream and, as the head, reads another: E Θ serves both when their bases are dual.
  void settle_tie() {
    if (!model_.architecture.head.tied) {
      return;
    }
    std::optional<size_t> written, read;
    for (size_t i = 0; i < streams_.all.size(); ++i) {
      for (const Port& port : streams_.all[i].ports) {
        if (port.tensor == "embed.token.weight") {
          (port.role == Role::writer ? written : read) = i;
        }
      }
    }
    if (!written) {  // the embeddings are rows of a first-layer table: the tensor is the head's alone
      return;
    }
    PARE_CHECK(read.has_value(), "a tied table is read by the head");
    if (written == read) {
      if (chosen_.contains(*written) && !is_orthogonal(chosen_.at(*written))) {
        untie("the embedding and the head lie on one stream");
      }
      return;
    }
    if (chosen_.contains(*written) && chosen_.contains(*read)) {
      const bool drop_read = chosen_.at(*written).cost() <= chosen_.at(*read).cost();
      const size_t dropped = drop_read ? *read : *written;
      proposal_.notes.push_back(fmt::format("{} stays: the tied table allows one free basis at its two ends, not two",
                                            chosen_.at(dropped).module()));
      chosen_.erase(dropped);
    }
    for (const auto& [one, other] : {std::pair(*written, *read), std::pair(*read, *written)}) {
      if (!chosen_.contains(one)) {
        continue;
      }
      if (obstacles(streams_.all[other]).empty()) {
        dual_ = {one, other};
      } else {
        untie(few(obstacles(streams_.all[other])));
      }
    }
  }

  // Then Θ⁻ᵀ = Θ, and one table serves both ends of one stream.
  bool is_orthogonal(const Removal& removal) const {
    if (!model_.has_weights() || removal.condition() > 1 + 1e-12) {
      return false;
    }
    at::Tensor matrix = load_double(model_.weights.at(removal.weight()));
    if (removal.uses_gauge()) {
      const Attention& t = blocks_[static_cast<size_t>(removal.block)].attention;
      matrix = gauged_target(matrix, gauge_of(t, removal.target, matrix));
    }
    const at::Tensor distance = (at::matmul(matrix, matrix.t()) - at::eye(matrix.size(0), matrix.options())).abs();
    return distance.max().item<double>() < 1e-12;
  }

  void untie(const std::string& reason) {
    untie_ = true;
    const Architecture& a = model_.architecture;
    proposal_.notes.push_back(
        fmt::format("the head must be untied ({}): {} parameters more", reason, with_commas(a.vocab * token_width(a))));
  }

  void spend_budget() {
    std::vector<Removal> order;
    for (const auto& [stream, removal] : chosen_) {
      order.push_back(removal);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Removal& a, const Removal& b) { return a.cost() < b.cost(); });
    for (const Removal& removal : order) {
      const double cost = removal.cost() * (dual_ && dual_->first == removal.stream ? 2 : 1);
      if (budget_ && proposal_.condition_sum + cost > budget_->condition_sum) {
        proposal_.notes.push_back(fmt::format("{} stays: its condition number {:.3g} would exceed the error allowed",
                                              removal.module(), removal.condition()));
        chosen_.erase(removal.stream);
        continue;
      }
      proposal_.condition_sum += cost;
    }
    if (dual_ && !chosen_.contains(dual_->first)) {
      dual_.reset();
    }
  }

  void apply() {
    Recipe model = untie_ ? untied(model_) : model_;
    const auto gauges = std::make_shared<Kept<at::Tensor>>();
    for (const auto& [stream, removal] : chosen_) {
      if (model.has_weights() && removal.uses_gauge()) {
        model = with_gauge(model, removal.block, removal.target, gauges);
      }
    }
    const auto factors = std::make_shared<Kept<Factors>>();
    std::map<size_t, Basis> bases;
    for (const auto& [stream, removal] : chosen_) {
      if (removal.absorbed) {
        absorb_bias(model, streams_.all[stream], removal);
      }
      bases[stream] = basis_for(model, removal, factors);
    }
    if (dual_) {
      bases[dual_->second] = dual(bases.at(dual_->first));
    }
    // Untied heads and absorbed biases are other ports, on the same streams.
    Recipe after = change_basis(model, find_streams(model.architecture), bases);
    std::vector<Block> blocks = expanded_blocks(after.architecture);
    for (const auto& [stream, removal] : chosen_) {
      after.weights.erase(removal.weight());
      Attention& t = blocks[static_cast<size_t>(removal.block)].attention;
      projection(t, removal.target).kind = ProjectionKind::identity;
    }
    after.architecture.blocks = folded_blocks(blocks);
    proposal_.after = std::move(after);
    proposal_.applies = true;
  }

  static Projection& projection(Attention& t, Target target) {
    switch (target) {
      case Target::query:
        return t.query;
      case Target::key:
        return t.key;
      case Target::value:
        return t.value;
      case Target::output:
        return t.output;
    }
    PARE_CHECK(false, "a target without a projection");
  }

  static Basis basis_for(const Recipe& model, const Removal& removal, const FactorStore& store) {
    if (!model.has_weights()) {
      return {};
    }
    const Weight weight = model.weights.at(removal.weight());
    const auto matrix = [weight] { return load_double(weight).t().contiguous(); };  // [in, out], as in the theorem
    if (removal.absorbed) {
      // M* = P M needs no inverse. The only writer is P itself, which goes.
      return {.write = [](const at::Tensor& rows) { return rows; },
              .read = [weight](const at::Tensor& rows) { return at::matmul(rows, load_double(weight)); }};
    }
    return removal.target == Target::output ? inverse_basis_of(removal.weight(), matrix, store)
                                            : basis_of(removal.weight(), matrix, store);
  }

  // b_M* = b_M + b_P M: the bias of an absorbed matrix goes where the matrix goes.
  void absorb_bias(Recipe& model, const Stream& stream, const Removal& removal) const {
    const std::string bias = removal.module() + ".bias";
    if (!shapes_.contains(bias)) {
      return;
    }
    shift_readers(model, stream, model.has_weights() ? model.weights.at(bias) : Weight{});
    std::vector<Block> blocks = expanded_blocks(model.architecture);
    blocks[static_cast<size_t>(removal.block)].attention.bias.output = false;
    model.architecture.blocks = folded_blocks(blocks);
    model.weights.erase(bias);
  }

  const Recipe& model_;
  const Removable& what_;
  const std::optional<Budget>& budget_;
  Streams streams_;
  std::vector<Block> blocks_;
  Shapes shapes_;
  std::vector<Removal> candidates_;
  std::map<size_t, Removal> chosen_;  // by stream
  std::optional<std::pair<size_t, size_t>> dual_;
  bool untie_ = false;
  Proposal proposal_;
};

}  // namespace

Proposal remove_matrices(const Recipe& model, const Removable& what, const std::optional<Budget>& budget) {
  return Planner(model, what, budget).run();
}

}  // namespace pare
