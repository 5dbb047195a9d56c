#include "pare/algebra/remove_matrices.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/algebra/amplification.h"
#include "pare/algebra/basis.h"
#include "pare/algebra/matrix_survey.h"
#include "pare/algebra/prediction.h"
#include "pare/algebra/shift.h"
#include "pare/arch/streams.h"
#include "pare/support/error.h"
#include "pare/support/numbers.h"

namespace pare {

namespace {

class Planner {
 public:
  Planner(const Model& model, const RemovalQuery& what, const std::optional<Budget>& budget)
      : model_(model), what_(what), budget_(budget), streams_(find_streams(model.architecture)) {
    proposal_.after = model;
  }

  Proposal run() {
    const std::vector<SurveyedMatrix> sites = survey_matrices(model_, streams_, what_);
    find_candidates(sites);
    if (what_.asked && refuses_asked(sites)) {
      return std::move(proposal_);
    }
    choose();
    settle_tie();
    spend_budget();
    std::set<ModuleId> going;
    for (const auto& [stream, removal] : chosen_) {
      going.insert(removal.module());
    }
    for (Conditioning& c : proposal_.conditioning) {
      c.chosen = going.contains(c.matrix);
    }
    if (!chosen_.empty()) {
      apply();
    }
    return std::move(proposal_);
  }

 private:
  // A stream is refused only where none of its matrices can go, and then for every reason that was found.
  void find_candidates(const std::vector<SurveyedMatrix>& sites) {
    std::set<size_t> free;
    for (const SurveyedMatrix& site : sites) {
      if (site.measured) {
        proposal_.conditioning.push_back({site.removal.module(), site.removal.stored, site.removal.gauged});
      }
      if (site.possible) {
        free.insert(site.removal.stream);
        candidates_.push_back(site.removal);
        if (model_.has_weights()) {
          proposal_.preconditions.push_back(conditioning_of(site.removal));
        }
      }
    }
    for (const SurveyedMatrix& site : sites) {
      if (!free.contains(site.removal.stream)) {
        report(site.failed);
      }
    }
  }

  // A matrix that is gone already needs no refusal, unless all of them are.
  bool refuses_asked(const std::vector<SurveyedMatrix>& sites) {
    const auto is_there = [](const SurveyedMatrix& site) {
      return std::ranges::any_of(site.failed, [](const Precondition& f) { return !f.remedy.empty(); });
    };
    bool any = false;
    std::vector<const SurveyedMatrix*> gone, refused;
    for (const SurveyedMatrix& site : sites) {
      if (site.removal.target == *what_.asked) {
        any = any || site.possible;
        if (!site.possible) {
          (is_there(site) ? refused : gone).push_back(&site);
        }
      }
    }
    for (const SurveyedMatrix* site : !refused.empty() || any ? refused : gone) {
      report(site->failed);
    }
    return !refused.empty() || !any;
  }

  // Several targets of a block usually fail for one reason: it is given once.
  void report(const std::vector<Precondition>& failed) {
    for (const Precondition& f : failed) {
      if (reported_.emplace(f.where, f.found).second) {
        proposal_.preconditions.push_back(f);
      }
    }
  }

  void choose() {
    for (const Removal& removal : candidates_) {
      const auto [entry, first] = chosen_.emplace(removal.stream, removal);
      if (!first && is_better(removal, entry->second)) {
        entry->second = removal;
      }
    }
    std::map<size_t, std::set<int64_t>> readers;
    for (const Removal& removal : candidates_) {
      if (removal.target != Target::output) {
        readers[removal.stream].insert(removal.block);
      }
    }
    for (const auto& [stream, blocks] : readers) {
      if (blocks.size() > 1) {
        proposal_.notes.push_back(fmt::format("{} blocks share one stream, and so one basis: of their matrices {} goes",
                                              blocks.size(), chosen_.at(stream).name()));
      }
    }
  }

  // What was asked for by name first, then what loses fewer digits.
  bool is_better(const Removal& removal, const Removal& than) const {
    const bool asked = removal.target == what_.asked, other = than.target == what_.asked;
    return asked != other ? asked : removal.roundings() < than.roundings();
  }

  // A tied table E writes one stream and, as the head, reads another: E Θ serves both when their bases are dual.
  void settle_tie() {
    if (!model_.architecture.head.tied) {
      return;
    }
    std::optional<size_t> written, read;
    for (size_t i = 0; i < streams_.all.size(); ++i) {
      for (const Port& port : streams_.all[i].ports) {
        if (port.tensor == weight_of(token_table)) {
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
        untie_for(*written, "the embedding and the head lie on one stream");
      }
      return;
    }
    if (chosen_.contains(*written) && chosen_.contains(*read)) {
      const bool drop_read = chosen_.at(*written).roundings() <= chosen_.at(*read).roundings();
      const size_t dropped = drop_read ? *read : *written;
      proposal_.notes.push_back(fmt::format("{} stays: the tied table allows one free basis at its two ends, not two",
                                            chosen_.at(dropped).name()));
      chosen_.erase(dropped);
    }
    for (const auto& [one, other] : {std::pair(*written, *read), std::pair(*read, *written)}) {
      if (!chosen_.contains(one)) {
        continue;
      }
      if (obstacles(streams_.all[other]).empty()) {
        dual_ = {one, other};
      } else {
        untie_for(one, abridged(obstacles(streams_.all[other])));
      }
    }
  }

  // Then Θ⁻ᵀ = Θ, and one table serves both ends of one stream.
  bool is_orthogonal(const Removal& removal) const {
    if (!model_.has_weights() || removal.condition() > 1 + 1e-12) {
      return false;
    }
    const at::Tensor matrix = in_best_gauge(model_, removal);
    const at::Tensor distance = (at::matmul(matrix, matrix.t()) - at::eye(matrix.size(0), matrix.options())).abs();
    return distance.max().item<double>() < 1e-12;
  }

  // The head gets a matrix of its own for the sake of one removal: only where that is worth it, or all there is.
  void untie_for(size_t stream, const std::string& reason) {
    const Architecture& a = model_.architecture;
    const int64_t cost = a.vocab * token_width(a), gain = a.width * a.width;
    if (cost > gain && chosen_.size() > 1) {
      proposal_.notes.push_back(fmt::format("{} stays: the head would have to be untied ({}), for {} parameters more",
                                            chosen_.at(stream).name(), reason, with_commas(cost)));
      chosen_.erase(stream);
      return;
    }
    untied_for_ = stream;
    untied_note_ = fmt::format("the head must be untied ({}): {} parameters more", reason, with_commas(cost));
  }

  void spend_budget() {
    std::vector<Removal> order;
    for (const auto& [stream, removal] : chosen_) {
      order.push_back(removal);
    }
    std::ranges::stable_sort(order, {}, &Removal::roundings);
    RoundingWalk walk;
    std::vector<std::string> staying;
    std::string reason;
    for (const Removal& removal : order) {
      RoundingWalk longer = walk;
      longer.step(removal.roundings() * (dual_ && dual_->first == removal.stream ? 2 : 1));
      if (budget_ && !budget_->allows(longer.roundings())) {
        if (staying.empty()) {
          reason = fmt::format("its condition number {:.3g} gives a {}", removal.condition(),
                               budget_->excess(longer.roundings()));
        }
        staying.push_back(removal.name());
        proposal_.over_budget = true;
        chosen_.erase(removal.stream);
        continue;
      }
      walk = longer;
    }
    if (!staying.empty()) {
      proposal_.notes.push_back(left_over(staying, "stays", reason));
    }
    proposal_.roundings = walk.roundings();
    if (dual_ && !chosen_.contains(dual_->first)) {
      dual_.reset();
    }
    if (untied_for_ && !chosen_.contains(*untied_for_)) {
      untied_for_.reset();
    }
  }

  void apply() {
    Model model = untied_for_ ? untied(model_) : model_;
    if (untied_for_) {
      proposal_.notes.push_back(untied_note_);
    }
    const Shelves shelves;
    for (const auto& [stream, removal] : chosen_) {
      if (model.has_weights() && removal.uses_gauge()) {
        apply_gauge(model, removal.block, removal.target, shelves.gauges);
      }
    }
    std::map<size_t, Basis> bases;
    for (const auto& [stream, removal] : chosen_) {
      if (removal.absorbed) {
        absorb_bias(model, streams_.all[stream], removal);
      }
      bases[stream] = basis_for(model, removal, shelves);
    }
    if (dual_) {
      bases[dual_->second] = dual(bases.at(dual_->first));
    }
    // Untied heads and absorbed biases are other ports, on the same streams.
    const Streams streams = find_streams(model.architecture);
    Model after = change_basis(model, streams, bases);
    if (dual_) {
      amplify(after, streams.all[dual_->second].ports, chosen_.at(dual_->first).inverted());
    }
    for (const auto& [stream, removal] : chosen_) {
      amplify(after, streams.all[stream].ports, removal.inverted());
      after.weights.erase(removal.weight());
      projection(after.architecture.blocks[removal.block].attention, removal.target) = Identity{};
    }
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
    PARE_UNREACHABLE("a target without a projection");
  }

  static Basis basis_for(const Model& model, const Removal& removal, const Shelves& shelves) {
    if (!model.has_weights()) {
      return {};
    }
    const Weight weight = model.weights.at(removal.weight());
    if (removal.absorbed) {
      // M* = P M needs no inverse. The only writer is P itself, which goes.
      return {.write = {"I", {}, [](const at::Tensor& rows, const auto&) { return rows; }},
              .read = {weight.formula().transposed(), {weight}, [](const at::Tensor& rows, const auto& in) {
                         return at::matmul(rows, in[0]);
                       }}};
    }
    const bool writes = removal.target == Target::output;
    const Weight matrix = computed(  // [in, out], as in the theorem
        weight.shape(), Formula::symbol(writes ? "P" : "Θ", removal.block, weight.formula()), {weight},
        [](std::vector<at::Tensor>& in) { return in[0].t().contiguous(); });
    return writes ? inverse_basis_of(matrix, shelves) : basis_of(matrix, shelves);
  }

  // b_M* = b_M + b_P M: the bias of an absorbed matrix goes where the matrix goes.
  void absorb_bias(Model& model, const Stream& stream, const Removal& removal) const {
    AttentionBias& bias = model.architecture.blocks[removal.block].attention.bias;
    if (!bias.output) {
      return;
    }
    const std::string name = name_of(bias_of(removal.module()));
    shift_readers(model, stream, model.has_weights() ? model.weights.at(name) : Weight{});
    bias.output = false;
    model.weights.erase(name);
  }

  const Model& model_;
  const RemovalQuery& what_;
  const std::optional<Budget>& budget_;
  Streams streams_;
  std::vector<Removal> candidates_;
  std::map<size_t, Removal> chosen_;  // by stream
  std::optional<std::pair<size_t, size_t>> dual_;
  std::optional<size_t> untied_for_;
  std::string untied_note_;
  std::set<std::pair<std::string, std::string>> reported_;  // where, and what was found
  Proposal proposal_;
};

}  // namespace

Proposal remove_matrices(const Model& model, const RemovalQuery& what, const std::optional<Budget>& budget) {
  return Planner(model, what, budget).run();
}

}  // namespace pare
