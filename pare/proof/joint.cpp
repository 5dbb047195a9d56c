#include "pare/proof/bases.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <tuple>

#include "pare/linear/linear_system.h"
#include "pare/linear/procrustes.h"

// Bases that no table and no matrix determines alone: too few tokens, a narrow factor, an MLP of few neurons. Queries,
// keys and values read the stream, but each in a gauge that is not known either. All of that is linear in the maps and
// the gauges together,
//   A Ψ = D B    A = Ψ B    O_A E = Ψ' O_B,
// but for D of the keys, which is D⁻ᵀ of the queries and is looked for by itself: one system of least squares. Where it
// is right is found by the relations, as ever.

namespace pare {

namespace {

// Of as many entries as this; those of larger models have tables.
constexpr int64_t most_unknowns = 1 << 14;

// How large each row is, so that each counts alike.
at::Tensor one_over(const at::Tensor& rows) {
  const at::Tensor sizes = rows.norm(2, {1}, true);
  return 1 / at::where(sizes > 0, sizes, at::ones_like(sizes));
}

// [n, width], each row of length one: whether they span the space well.
bool span(const std::vector<at::Tensor>& rows, int64_t width) {
  constexpr double well = 1e-3;
  if (rows.empty()) {
    return false;
  }
  const at::Tensor all = at::cat(rows);
  if (all.size(0) < width) {
    return false;
  }
  const at::Tensor values = at::linalg_svdvals(all);
  return values[-1].item<double>() > well * values[0].item<double>();
}

}  // namespace

void AttentionProof::add_equations(const JointMap& in, const JointMap& out, JointSystem& system) const {
  const Attention& t = spec(a_);
  const int64_t k = t.head_width, groups = t.kv_heads;
  const auto gauges = [&](const at::Tensor& like) {
    const size_t first = system.guess.size();
    system.guess.insert(system.guess.end(), static_cast<size_t>(groups), at::eye(k, like.options()));
    return first;
  };
  std::optional<size_t> scores, values;
  for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
    if (tabled_ && slot == Slot::value && values_ != MapGroup::identity) {  // no stream stands before a table
      const at::Tensor a = projection(a_, slot, some_tokens()).value, b = projection(b_, slot, some_tokens()).value;
      values = gauges(a);
      for (int64_t g = 0; g < groups; ++g) {
        const at::Tensor from = a.narrow(0, g * k, k), to = b.narrow(0, g * k, k);
        system.add({{{.unknown = *values + static_cast<size_t>(g), .right = to}}, from}, one_over(from));
      }
    }
    if (!has_matrix(slot)) {
      continue;
    }
    const at::Tensor a = projection(a_, slot).value, b = projection(b_, slot).value;
    const int64_t width = a.size(1) - 1;
    if (group_of(slot) == MapGroup::identity) {
      system.add({{in.term({.left = a.narrow(1, 0, width)})}, b.narrow(1, 0, width)}, one_over(b));
      continue;
    }
    // Keys have the other's inverse, which is itself where nothing but rotations are allowed.
    const bool turned = scores_ == MapGroup::rotation || scores_ == MapGroup::turning_rotation;
    const size_t first = slot == Slot::key && turned && scores ? *scores : gauges(a);
    (slot == Slot::value ? values : scores) = first;
    const int64_t heads = heads_of(slot);
    for (int64_t h = 0; h < heads; ++h) {
      const size_t gauge = first + static_cast<size_t>(h / (heads / groups));
      const at::Tensor from = a.narrow(0, h * k, k), to = b.narrow(0, h * k, k), size = one_over(from);
      system.add({{in.term({.left = from.narrow(1, 0, width)}),
                   {.unknown = gauge, .right = to.narrow(1, 0, width), .sign = -1}}},
                 size);
      system.add({{{.unknown = gauge, .right = to.narrow(1, width, 1)}}, from.narrow(1, width, 1)}, size);
    }
  }
  if (t.values != Form::factored) {
    return;
  }
  const at::Tensor a = output(a_).value, b = output(b_).value;
  for (int64_t h = 0; h < t.heads; ++h) {
    const at::Tensor from = a.narrow(1, h * k, k), to = b.narrow(1, h * k, k), size = one_over(from.t()).t();
    const MatrixTerm written = out.term({.right = to * size});
    if (!values) {
      system.add({{written}, from * size}, {});
      continue;
    }
    const size_t gauge = *values + static_cast<size_t>(h / (t.heads / groups));
    const at::Tensor scaled = at::diag(size.squeeze(0));
    system.add({{written, {.unknown = gauge, .left = from, .right = scaled, .sign = -1}}}, {});
  }
}

// What of the equation is known goes to the other side.
void JointSystem::add(MatrixEquation equation, const at::Tensor& scale) {
  MatrixEquation kept;
  kept.constant = equation.constant.defined() && scale.defined() ? equation.constant * scale : equation.constant;
  for (MatrixTerm& term : equation.terms) {
    const auto scaled = [&](const at::Tensor& left, int64_t rows) {
      return !scale.defined() ? left : left.defined() ? left * scale : at::diag(scale.expand({rows, 1}).squeeze(1));
    };
    if (const auto known = this->known.find(term.unknown); known != this->known.end()) {
      const at::Tensor x = term.transposed ? known->second.t() : known->second;
      const at::Tensor half = term.left.defined() ? at::matmul(term.left, x) : x;
      at::Tensor whole = (term.right.defined() ? at::matmul(half, term.right) : half) * term.sign;
      whole = scale.defined() ? whole * scale : whole;
      kept.constant = kept.constant.defined() ? kept.constant - whole : -whole;
      continue;
    }
    term.left = scaled(term.left, guess[term.unknown].size(0));
    kept.terms.push_back(term);
  }
  if (!kept.terms.empty()) {
    equations.push_back(std::move(kept));
  }
}

void ProofBases::find() {
  find_identities();
  std::vector<size_t> changed;
  for (size_t s = 0; s < known_.size(); ++s) {
    if (!known_[s]) {
      changed.push_back(s);
    }
  }
  if (changed.empty()) {
    return;
  }
  const std::vector<bool> known = known_;
  const int64_t wrong = fit_in_turn(changed);
  if (wrong == 0) {
    return;
  }
  const Found first{known_, maps_, heads_, findings_, head_findings_};
  known_ = known;
  if (!fit_jointly(changed) || (count_wrong() > 0 && fit_in_turn(changed) >= wrong)) {
    std::tie(known_, maps_, heads_, findings_, head_findings_) = first;
  }
}

// Gauges tell of streams and streams of gauges: a few rounds, until everything agrees, and more where that helps. What
// is wrong then is handed back.
int64_t ProofBases::fit_in_turn(const std::vector<size_t>& changed) {
  constexpr int most_rounds = 24, few_rounds = 4;
  double wrong = std::numeric_limits<double>::infinity();
  for (int round = 0; round < most_rounds; ++round) {
    for (size_t s : changed) {
      fit_stream(s);
      for (size_t n = 0; n < attentions_.size(); ++n) {
        if (streams_of(n).attention_input == s || streams_of(n).attention_output == s) {
          fit_heads(n);
        }
      }
    }
    const auto left = static_cast<double>(count_wrong());
    if (left == 0 || (round + 1 >= few_rounds && left > wrong * 0.75)) {
      break;
    }
    wrong = left;
  }
  return count_wrong();
}

// Entries that disagree, under the maps and gauges as they are.
int64_t ProofBases::count_wrong() {
  int64_t wrong = 0;
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (!findings_[i]) {
      findings_[i] = check(ports_[i]);
    }
    wrong += findings_[i]->wrong;
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    for (const AttentionProof::Named& named : check_heads(n)) {
      wrong += named.finding.wrong;
    }
  }
  return wrong;
}

bool ProofBases::is_determined(size_t s) const {
  std::vector<at::Tensor> written, read;
  const auto add = [&](const MapSamples& sample) {
    const bool writes = sample.role == Role::writer;
    const at::Tensor& rows = writes ? sample.candidate : sample.reference;
    (writes ? written : read).push_back(rows * one_over(rows));
  };
  for (size_t each : turning_with(s)) {
    for (const ProofPort& port : ports_) {
      if (port.stream == each && (!port.samples_on || known_[*port.samples_on])) {
        add(samples_of(port));
      }
    }
    for (size_t n = 0; n < attentions_.size(); ++n) {
      if (streams_of(n).attention_input == each && attentions_[n].knows_scores() && attentions_[n].knows_values()) {
        for (const MapSamples& sample : attentions_[n].input_samples({})) {
          add(sample);
        }
      }
    }
  }
  const int64_t width = a_.streams().all[s].width;
  return span(written, width) || span(read, width);
}

bool ProofBases::fit_jointly(const std::vector<size_t>& changed) {
  int64_t unknowns = 0;
  for (size_t s : changed) {
    unknowns += a_.streams().all[s].width * a_.streams().all[s].width;
  }
  if (unknowns > most_unknowns ||
      std::all_of(changed.begin(), changed.end(), [&](size_t s) { return is_determined(s); })) {
    return false;
  }
  JointSystem system;
  std::vector<JointMap> maps(maps_.size());
  for (size_t s = 0; s < maps_.size(); ++s) {
    if (const size_t first = turning_with(s).front(); first != s) {
      maps[s] = maps[first];
      continue;
    }
    maps[s].unknown = system.guess.size();
    system.guess.push_back(at::eye(a_.streams().all[s].width, options_));
    if (known_[s]) {
      system.known[maps[s].unknown] = maps_[s].is_identity() ? system.guess.back() : maps_[s].map;
    }
  }
  for (const ProofPort& port : ports_) {
    if (!port.stream) {
      continue;
    }
    if (port.samples_on && !known_[*port.samples_on]) {
      const at::Tensor a = loaded(port, a_, 0, port.samples).value, b = loaded(port, b_, 0, port.samples).value;
      const int64_t width = a_.streams().all[*port.samples_on].width;
      for (int64_t begin = 0; begin < port.samples; begin += width) {
        const at::Tensor from = a.narrow(0, begin, width), to = b.narrow(0, begin, width);
        system.add({{maps[*port.samples_on].term({.right = from, .transposed = true}),
                     maps[*port.stream].term({.left = to, .transposed = true, .sign = -1})}},
                   {});
      }
      continue;
    }
    const MapSamples samples = samples_of(port);
    const bool writes = samples.role == Role::writer;
    const at::Tensor scale = one_over(samples.candidate);
    system.add(
        {{maps[*port.stream].term({.left = writes ? samples.candidate : samples.reference, .transposed = writes})},
         writes ? samples.reference : samples.candidate},
        scale);
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    attentions_[n].add_equations(maps[streams_of(n).attention_input], maps[streams_of(n).attention_output], system);
  }
  const std::vector<at::Tensor> found = solve_together(system.equations, system.guess);
  for (size_t s : changed) {
    const at::Tensor& map = found[maps[s].unknown];
    if (!map.isfinite().all().item<bool>()) {
      return false;
    }
    set_map(s, {together_.contains(s) ? nearest_orthogonal(map) : map, {}}, {});
  }
  for (size_t n = 0; n < attentions_.size(); ++n) {
    fit_heads(n);
  }
  for (size_t s : changed) {  // how large readers are is known by those of heads too, whose gauges are there now
    if (!maps_[s].is_identity()) {
      std::vector<TableSamples> tables;
      set_map(s, {maps_[s].map, {}}, samples_for(turning_with(s), tables));
    }
  }
  return true;
}

}  // namespace pare
