#include "pare/proof/prover.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/proof/allowed_maps.h"
#include "pare/proof/orders.h"
#include "pare/proof/settings.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

// The worst of the heads' gauges. One that float64 cannot invert was not what explained them: their products did.
double condition_of(const at::Tensor& gauges) {
  if (!gauges.defined()) {
    return 0;
  }
  const at::Tensor values = at::linalg_svdvals(gauges);
  const at::Tensor conditions = values.select(1, 0) / values.select(1, -1);
  return at::where(conditions < 1e14, conditions, 1.0).max().item<double>();
}

void note_strange(const Finding& finding, std::vector<int64_t>& strange) {
  strange.insert(strange.end(), finding.wrong_rows.begin(), finding.wrong_rows.end());
  std::ranges::sort(strange);
  strange.erase(std::unique(strange.begin(), strange.end()), strange.end());
}

}  // namespace

Prover::Prover(const Model& reference, const Model& candidate, at::Device device)
    : Prover(reference, candidate, written_out(reference, candidate, device), device) {}

Prover::Prover(const Model& reference, const Model& candidate, const PlainForms& forms, at::Device device)
    : a_(reference, ModelView::Numbers::exact, device, forms.reference),
      b_(candidate, ModelView::Numbers::rounded, device, forms.candidate),
      premises_(forms.premises),
      alike_(same_structure(a_.architecture(), b_.architecture())) {
  proof_.gaps = forms.gaps;
  proof_.moved = forms.moved;
  for (const std::string& difference : differing_settings(a_.architecture(), b_.architecture())) {
    proof_.gaps.push_back(difference);
  }
  compare_stored(reference.architecture, candidate.architecture);
  if (is_open()) {
    share();
    const Folds folds = possible_folds(a_, b_);
    a_.fold(folds);
    b_.fold(folds);
  }
}

Proof Prover::verdict() {
  if (proof_.identical) {
    proof_.complete = true;
  } else if (!alike_) {
    leave_unexplained("the two models are built differently");
  } else {
    if (!relations_) {
      in_order({});
    }
    report();
    check_premises();
    leave_unexplained("nothing was found to compare it with");
    proof_.complete = proof_.gaps.empty();
  }
  return std::move(proof_);
}

// ---- what is the same as it is

void Prover::compare_stored(const Architecture& reference, const Architecture& candidate) {
  Progress progress("comparing tensors", a_.stored().size());
  for (const TensorSpec& spec : a_.stored()) {
    progress.advance();
    const TensorSpec* other = b_.stored().find(spec.id);
    if (other && other->shape == spec.shape && holds_same_numbers(a_.weight(spec.id), b_.weight(spec.id))) {
      same_sources_.insert(spec.id);
      proof_.same.insert(spec.name);
    }
  }
  same_ = same_sources_;
  std::erase_if(same_, [this](const TensorId& id) { return a_.is_made(id) || b_.is_made(id); });
  Architecture named = candidate;
  named.name = reference.name;
  proof_.identical = named == reference && same_sources_.size() == a_.stored().size();
  if (proof_.identical) {
    for (const TensorSpec& spec : a_.stored()) {
      proof_.relations.push_back({spec.name, How::same_numbers, 0});
    }
  }
}

// The same numbers in the same places are not the same any more where the places are others.
Relations& Prover::in_order(const std::vector<BlockOrder>& blocks) {
  std::map<TensorId, Order> orders = orders_of_tensors(a_, b_, blocks, proof_.gaps);
  std::erase_if(same_, [&orders](const TensorId& id) { return orders.contains(id); });
  share();
  b_.reorder(std::move(orders));
  return relations_.emplace(a_, b_, same_);
}

void Prover::share() {
  a_.share(same_sources_, same_);
  b_.share(same_sources_, same_);
}

// ---- the report

void Prover::report() {
  for (size_t i = 0; i < relations_->ports().size(); ++i) {
    const ProofPort& port = relations_->ports()[i];
    report_port(port, relations_->finding(i), relations_->how(port));
  }
  for (size_t n = 0; n < relations_->heads().size(); ++n) {
    report_heads(n);
  }
  for (const std::string& gap : misplaced(a_, b_, relations_->state().maps)) {
    proof_.gaps.push_back(gap);
  }
  double of_streams = 1;
  for (const StreamMap& map : relations_->state().maps) {
    of_streams += map.absorbed ? 1 : map.condition;
    if (!map.is_identity() && !map.inverse.defined() && !map.absorbed) {
      proof_.gaps.push_back(
          fmt::format("a basis was found that float64 cannot invert: condition {:.2g}", map.condition));
    }
  }
  proof_.condition = of_streams;
  for (const Gauges& heads : relations_->state().gauges) {
    proof_.condition += condition_of(heads.scores) + condition_of(heads.values);
  }
  // A basis, or numbers that cancel, may be such that one rounding is another function: then there is no proof. So
  // many roundings of what is stored there, times the condition of the bases, is what right rewrites move, and in
  // float64 what no gauge of heads may pass; never a quarter.
  if (proof_.gaps.empty() && !(proof_.moved <= 0.25 && moved_roundings_ <= 0x1p12 * of_streams)) {
    proof_.gaps.push_back(fmt::format(
        "the bases found (condition {:.3g}) make {:.2g} of a weight of one rounding: nothing is proved by that",
        of_streams, proof_.moved));
  }
}

void Prover::note_changes(const Finding& finding) {
  proof_.moved = std::max(proof_.moved, finding.moved);
  moved_roundings_ = std::max(moved_roundings_, finding.moved_roundings);
  proof_.stretch = std::max(proof_.stretch, finding.stretch);
}

void Prover::report_port(const ProofPort& port, const Finding& finding, How how) {
  note_changes(finding);
  if (finding.holds()) {
    explain(port.parts, port.name, how, finding.residual);
    return;
  }
  fail(port.parts, port.name, finding);
  if (port.rows != RowsOf::tensor && Relations::mostly_holds(finding, port.samples)) {
    std::vector<int64_t>& strange = port.rows == RowsOf::tokens      ? proof_.strange_tokens
                                    : port.rows == RowsOf::positions ? proof_.strange_positions
                                                                     : proof_.strange_types;
    note_strange(finding, strange);
  }
}

// What a form rests on has to hold, as well as what was solved for it and then rounded can.
void Prover::check_premises() {
  for (const Premise& premise : premises_) {
    const at::Tensor residual = premise.found.value - premise.expected.value;
    const Allowance allowed = allowance(premise.found.rounding, premise.expected.rounding, Rigour::fitted,
                                        at::full({}, premise.unit, residual.options()));
    const Finding finding = judged(residual, allowed, residual, premise.expected.value);
    note_changes(finding);
    if (!finding.holds()) {
      fail(premise.sources, name_of(premise.tensor), finding);
    }
  }
}

void Prover::report_heads(size_t n) {
  if (relations_->is_untouched(n)) {
    for (const TensorId& id : relations_->heads()[n].parts()) {
      a_.use(id);
      b_.use(id);
      explain({id}, name_of(id), How::same_numbers, 0);
    }
    return;
  }
  for (const NamedFinding& named : relations_->findings_of_heads(n)) {
    note_changes(named.finding);
    if (named.finding.holds()) {
      const bool moved = named.how == How::same_up_to_rounding && b_.is_reordered(named.tensor);
      explain({named.tensor}, name_of(named.tensor), moved ? How::reordered : named.how, named.finding.residual);
    } else {
      std::vector<TensorId> parts = relations_->heads()[n].folded_norm();
      parts.insert(parts.end(), {named.tensor, bias_of(named.tensor.module)});
      fail(parts, name_of(named.tensor), named.finding);
      if (named.tensor == weight_of(in_embedding(Slot::table)) &&
          Relations::mostly_holds(named.finding, a_.architecture().vocab)) {
        note_strange(named.finding, proof_.strange_tokens);
      }
    }
  }
}

// Of several relations that a tensor is in, the one with the largest residual is told.
void Prover::explain(const std::vector<TensorId>& parts, const std::string& name, How how, double residual) {
  const auto tell = [&](const std::string& tensor, How way) {
    if (way == How::same_up_to_rounding && proof_.same.contains(tensor)) {
      told_.emplace(tensor, Relation{tensor, How::same_numbers, residual});
      return;
    }
    const auto [entry, first] = told_.emplace(tensor, Relation{tensor, way, residual});
    if (!first && entry->second.residual < residual) {
      entry->second = {tensor, way, residual};
    }
  };
  tell(name, how);
  for (const TensorId& id : parts) {
    if (const std::string part = name_of(id); part != name && (a_.stores(id) || b_.stores(id))) {
      const bool moved = how == How::same_up_to_rounding && b_.is_reordered(id);
      tell(part, !moved ? how : b_.is_scaled(id) ? How::scaled : How::reordered);
    }
    for (const ModelView* side : {&a_, &b_}) {
      for (const TensorId& source : side->is_made(id) ? side->sources(id) : std::vector<TensorId>()) {
        tell(name_of(source), how == How::same_up_to_rounding ? How::written_out : how);
      }
    }
  }
}

void Prover::fail(const std::vector<TensorId>& parts, const std::string& name, const Finding& finding) {
  proof_.gaps.push_back(fmt::format("{}: {} of {} entries are off, by up to {:.3g} roundings", name, finding.wrong,
                                    finding.entries, finding.residual));
  for (const TensorId& id : parts) {
    for (const TensorId& source : a_.sources(id)) {
      if (a_.stored().contains(source)) {
        proof_.unexplained.insert(name_of(source));
      }
    }
  }
}

void Prover::leave_unexplained(const std::string& reason) {
  for (const auto& [name, relation] : told_) {
    if (!proof_.unexplained.contains(name)) {
      proof_.relations.push_back(relation);
    }
  }
  for (const ModelView* side : {&a_, &b_}) {
    for (const TensorSpec& spec : side->stored()) {
      if (!side->used().contains(spec.id)) {
        proof_.gaps.push_back(fmt::format("{}: {}", spec.name, reason));
        if (side == &a_) {
          proof_.unexplained.insert(spec.name);
        }
      }
    }
  }
}

}  // namespace pare
