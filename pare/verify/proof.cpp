#include "pare/verify/proof.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "pare/arch/norms.h"
#include "pare/support/progress.h"
#include "pare/verify/proof_attention.h"
#include "pare/verify/proof_ports.h"
#include "pare/verify/proof_settings.h"

namespace pare {

namespace {

// What of a stream's basis could differ between two models that compute the same. Norms, activations and answers allow
// some groups too (rotations, signed permutations); so far they count as the identity alone.
MapGroup group_of_stream(const Stream& reference, const Stream& candidate) {
  const auto pins = [](const Touch& touch) {
    return touch.kind != TouchKind::identity && touch.kind != TouchKind::sinusoidal;
  };
  const auto pinned = [&](const Stream& s) { return std::any_of(s.touches.begin(), s.touches.end(), pins); };
  return pinned(reference) || pinned(candidate) ? MapGroup::identity : MapGroup::general;
}

// The same numbers, whatever type they are stored in.
bool holds_same_numbers(const Weight& a, const Weight& b) {
  const auto equal = [](const at::Tensor& x, const at::Tensor& y) {
    return x.scalar_type() == y.scalar_type() ? at::equal(x, y) : at::equal(x.to(at::kDouble), y.to(at::kDouble));
  };
  if (a == b) {
    return true;
  }
  if (a.shape().empty() || !a.can_load_rows() || !b.can_load_rows()) {
    return equal(a.load(), b.load());
  }
  const int64_t rows = a.shape()[0], step = rows_at_once(element_count(a.shape()) / std::max<int64_t>(rows, 1));
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    if (!equal(a.load_rows(begin, count), b.load_rows(begin, count))) {
      return false;
    }
  }
  return true;
}

class Prover {
 public:
  Prover(const Model& reference, const Model& candidate, at::Device device)
      : a_(reference, ProofSide::Numbers::exact, device),
        b_(candidate, ProofSide::Numbers::rounded, device),
        reference_(reference),
        candidate_(candidate),
        options_(at::TensorOptions(at::kDouble).device(device)) {}

  Proof run() {
    for (const std::string& difference : differing_settings(reference_.architecture, candidate_.architecture)) {
      proof_.gaps.push_back(difference);
    }
    compare_stored();
    if (proof_.identical) {
      proof_.complete = true;
      return std::move(proof_);
    }
    if (!same_structure(reference_.architecture, candidate_.architecture)) {
      leave_unexplained("the two models are built differently");
      return std::move(proof_);
    }
    prepare();
    find_identities();
    find_bases();
    report();
    leave_unexplained("nothing was found to compare it with");
    proof_.complete = proof_.gaps.empty();
    return std::move(proof_);
  }

 private:
  // ---- what is the same as it is

  void compare_stored() {
    Progress progress("comparing tensors", a_.table().size());
    for (const TensorSpec& spec : a_.table()) {
      progress.advance();
      const TensorSpec* other = b_.table().find(spec.id);
      if (other && other->shape == spec.shape && holds_same_numbers(a_.weight(spec.id), b_.weight(spec.id))) {
        same_.insert(spec.id);
      }
    }
    Architecture named = candidate_.architecture;
    named.name = reference_.architecture.name;
    proof_.identical = named == reference_.architecture && same_.size() == a_.table().size();
    if (proof_.identical) {
      for (const TensorSpec& spec : a_.table()) {
        proof_.relations.push_back({spec.name, "same numbers", 0});
      }
    }
  }

  // Gains stored alike mean the same only with the same offset.
  bool are_same(const std::vector<TensorId>& parts) const {
    return same_gains_ && std::all_of(parts.begin(), parts.end(), [&](const TensorId& id) {
             return same_.contains(id) || (!a_.stores(id) && !b_.stores(id));
           });
  }

  void prepare() {
    const FoldedNorms folded = foldable_norms(a_, b_);
    a_.fold(folded);
    b_.fold(folded);
    same_gains_ = offsets(reference_.architecture) == offsets(candidate_.architecture);
    ports_ = ports_of(a_, b_);
    findings_.resize(ports_.size());
    const size_t blocks = reference_.architecture.blocks.size();
    for (size_t n = 0; n < blocks; ++n) {
      attentions_.emplace_back(a_, b_, static_cast<int64_t>(n));
    }
    heads_.resize(blocks);
    maps_.resize(a_.streams().all.size());
    known_.assign(maps_.size(), true);
  }

  static std::vector<std::optional<double>> offsets(Architecture a) {
    std::vector<std::optional<double>> found;
    for (const PlacedNorm& placed : norms_of(a)) {
      found.push_back(placed.norm->offset);
    }
    for (const Block& block : a.blocks) {
      found.push_back(block.attention.qk_norm ? std::optional(block.attention.qk_norm->offset) : std::nullopt);
    }
    return found;
  }

  // ---- one port

  // The reference's rows as the candidate should have them, or the candidate's as the reference has them.
  Finding check_rows(const ProofPort& port, int64_t begin, int64_t count) const {
    Effective a = port.load(a_, begin, count);
    const Effective b = port.load(b_, begin, count);
    const StreamMap none;
    const StreamMap& map = port.stream ? maps_[*port.stream] : none;
    if (port.role == Role::reader) {
      const Effective expected = read_through(a, map);
      const at::Tensor residual = b.value - expected.value;
      const at::Tensor rounding = expected.rounding + b.rounding + solving_error(b.value, map, Role::reader);
      const bool back = map.is_identity() || map.inverse.defined();
      return judged(residual, rounding, pulled_back(residual, map), back ? a.value : b.value);
    }
    a = through_samples(port, a);
    const Effective found = written_through(b, map);
    const at::Tensor residual = a.value - found.value;
    const at::Tensor rounding = a.rounding + found.rounding + solving_error(a.value, map, Role::writer);
    return judged(residual, rounding, residual, a.value);
  }

  // A matrix between two streams: the one that it reads is the candidate's from now on.
  Effective through_samples(const ProofPort& port, const Effective& rows) const {
    if (!port.samples_on || maps_[*port.samples_on].is_identity()) {
      return rows;
    }
    const at::Tensor map = maps_[*port.samples_on].map.t();
    const int64_t width = map.size(0), out = rows.value.size(1);
    const auto turned = [&](const at::Tensor& matrix, const at::Tensor& x) {
      return at::matmul(matrix, x.reshape({-1, width, out})).reshape({-1, out});
    };
    return {turned(map, rows.value), turned(map.abs(), rows.rounding)};
  }

  bool is_identity(const std::optional<size_t>& stream) const { return !stream || maps_[*stream].is_identity(); }

  Finding check(const ProofPort& port) const {
    if (is_identity(port.stream) && is_identity(port.samples_on) && are_same(port.parts)) {
      for (const TensorId& id : port.parts) {
        a_.use(id);
        b_.use(id);
      }
      return {.size = 1, .entries = port.samples};
    }
    Finding all;
    const int64_t width = port.stream ? a_.streams().all[*port.stream].width : 1;
    const int64_t step = port.sliced ? rows_at_once(width) : port.samples;
    for (int64_t begin = 0; begin < port.samples; begin += step) {
      merge(all, check_rows(port, begin, std::min(step, port.samples - begin)), begin);
    }
    return all;
  }

  // Most rows of a table obey, though some may be strange.
  static bool mostly_holds(const ProofPort& port, const Finding& finding) {
    return finding.holds() || (port.rows != RowsOf::tensor && std::ssize(finding.wrong_rows) * 2 < port.samples);
  }

  // ---- which streams have the basis they always had

  void find_identities() {
    std::vector<int64_t> obey(maps_.size(), 0), differ(maps_.size(), 0);
    for (size_t i = 0; i < ports_.size(); ++i) {
      const Finding& finding = findings_[i].emplace(check(ports_[i]));
      if (ports_[i].stream && finding.size > 0) {
        ++(mostly_holds(ports_[i], finding) ? obey : differ)[*ports_[i].stream];
      }
    }
    for (size_t s = 0; s < maps_.size(); ++s) {
      if (group_of_stream(a_.streams().all[s], b_.streams().all[s]) == MapGroup::identity) {
        continue;
      }
      known_[s] = obey[s] + differ[s] > 0 ? obey[s] >= differ[s] : !is_pinned(s);
    }
    for (size_t n = 0; n < attentions_.size(); ++n) {
      fit_heads(n);
    }
  }

  const BlockStreams& streams_of(size_t block) const { return a_.streams().blocks[block]; }

  bool is_pinned(size_t stream) const {
    for (size_t n = 0; n < attentions_.size(); ++n) {
      if ((streams_of(n).attention_input == stream && attentions_[n].pinned_input()) ||
          (streams_of(n).attention_output == stream && attentions_[n].pins_output())) {
        return true;
      }
    }
    return false;
  }

  bool is_untouched(size_t n) const {
    const BlockStreams& at = streams_of(n);
    const Attention &t = reference_.architecture.blocks[n].attention, &u = candidate_.architecture.blocks[n].attention;
    return maps_[at.attention_input].is_identity() && maps_[at.attention_output].is_identity() &&
           scale_of(t) == scale_of(u) && are_same(attentions_[n].parts());
  }

  void fit_heads(size_t n) {
    const BlockStreams& at = streams_of(n);
    if (known_[at.attention_input] && !is_untouched(n)) {
      const bool both = known_[at.attention_output];
      heads_[n] = attentions_[n].fit(maps_[at.attention_input], both ? &maps_[at.attention_output] : nullptr);
    }
  }

  // ---- the others

  void find_bases() {
    std::vector<size_t> changed;
    for (size_t s = 0; s < known_.size(); ++s) {
      if (!known_[s]) {
        changed.push_back(s);
      }
    }
    // Gauges tell of streams and streams of gauges: a few rounds, until everything agrees.
    constexpr int most_rounds = 4;
    for (int round = 0; round < most_rounds && !changed.empty(); ++round) {
      for (size_t s : changed) {
        fit_stream(s);
        for (size_t n = 0; n < attentions_.size(); ++n) {
          if (streams_of(n).attention_input == s || streams_of(n).attention_output == s) {
            fit_heads(n);
          }
        }
      }
      bool agrees = true;
      for (size_t i = 0; i < ports_.size(); ++i) {
        if (!is_identity(ports_[i].stream) || !is_identity(ports_[i].samples_on)) {
          findings_[i] = check(ports_[i]);
          agrees = agrees && findings_[i]->holds();
        }
      }
      for (size_t n = 0; n < attentions_.size() && agrees; ++n) {
        for (const AttentionProof::Named& named : check_heads(n)) {
          agrees = agrees && named.finding.holds();
        }
      }
      if (agrees) {
        break;
      }
    }
  }

  void fit_stream(size_t s) {
    std::vector<MapSamples> samples;
    std::vector<size_t> tables;  // which of them are rows of a table
    for (const ProofPort& port : ports_) {
      if (port.stream == s && (!port.samples_on || known_[*port.samples_on])) {
        if (port.rows != RowsOf::tensor) {
          tables.push_back(samples.size());
        }
        samples.push_back(samples_of(port));
      }
    }
    for (size_t n = 0; n < attentions_.size(); ++n) {
      add_head_samples(n, s, samples);
    }
    at::Tensor map = fit_once(s, samples);
    constexpr int most_trials = 12;
    for (int i = 0; i < most_trials && weigh_down_strange_rows(map, tables, samples); ++i) {
      map = fit_once(s, samples);
    }
    maps_[s] = stream_map(map);
    known_[s] = true;
  }

  void add_head_samples(size_t n, size_t s, std::vector<MapSamples>& samples) const {
    const AttentionProof& attention = attentions_[n];
    const bool fitted = known_[streams_of(n).attention_input] && known_[s];
    if (streams_of(n).attention_input == s && (fitted || (attention.knows_scores() && attention.knows_values()))) {
      for (MapSamples& sample : attention.input_samples(heads_[n])) {
        samples.push_back(std::move(sample));
      }
    }
    if (streams_of(n).attention_output == s && (known_[streams_of(n).attention_input] || attention.knows_values())) {
      for (MapSamples& sample : attention.output_samples(heads_[n])) {
        samples.push_back(std::move(sample));
      }
    }
  }

  at::Tensor fit_once(size_t s, const std::vector<MapSamples>& samples) const {
    for (size_t n = 0; n < attentions_.size(); ++n) {
      const std::optional<Slot> pinned = attentions_[n].pinned_input();
      if (streams_of(n).attention_input == s && pinned) {
        return attentions_[n].fit_pinned_input(*pinned, samples);
      }
      if (streams_of(n).attention_output == s && attentions_[n].pins_output()) {
        return attentions_[n].fit_pinned_output(samples);
      }
    }
    const int64_t width = a_.streams().all[s].width;
    return fit_map(samples, maps_[s].is_identity() ? at::eye(width, options_) : maps_[s].map);
  }

  // Enough rows to know a map by, from all over the tensor.
  MapSamples samples_of(const ProofPort& port) const {
    const int64_t width = a_.streams().all[*port.stream].width, enough = 4 * width + 64;
    if (!port.sliced || port.samples <= enough) {
      const Effective a = port.load(a_, 0, port.samples), b = port.load(b_, 0, port.samples);
      return {port.role, through_samples(port, a).value, b.value};
    }
    constexpr int64_t places = 32;
    const int64_t count = (enough + places - 1) / places, stride = (port.samples - count) / (places - 1);
    std::vector<at::Tensor> a, b;
    for (int64_t i = 0; i < places; ++i) {
      a.push_back(port.load(a_, i * stride, count).value);
      b.push_back(port.load(b_, i * stride, count).value);
    }
    return {port.role, at::cat(a), at::cat(b)};
  }

  // Rows far from the map count less in the next fit, in proportion: least squares become least distances, which a
  // minority of strange rows cannot move.
  bool weigh_down_strange_rows(const at::Tensor& map, const std::vector<size_t>& tables,
                               std::vector<MapSamples>& samples) const {
    bool any = false;
    for (size_t i : tables) {
      MapSamples& sample = samples[i];
      const at::Tensor off = (sample.reference - at::matmul(sample.candidate, map.t())).norm(2, {1}, true);
      const at::Tensor size = at::matmul(sample.candidate.abs(), map.abs().t()).norm(2, {1}, true).clamp_min(1e-300);
      const at::Tensor fraction = off / size;
      const double middle = fraction.median().item<double>(), worst = fraction.max().item<double>();
      constexpr double as_usual = 30;  // times the median
      if (!(worst > as_usual * std::max(middle, 1e-16))) {
        continue;
      }
      any = true;
      sample.weights = (std::max(middle, 1e-16) / fraction.clamp_min(1e-300)).clamp_max(1).sqrt();
      if (middle < 1e-2) {  // the map is found: strange rows are out
        sample.weights = (fraction <= as_usual * std::max(middle, 1e-16)).to(at::kDouble).clamp_min(1e-12);
      }
    }
    return any;
  }

  // ---- the report

  std::vector<AttentionProof::Named> check_heads(size_t n) const {
    const BlockStreams& at = streams_of(n);
    return attentions_[n].check(maps_[at.attention_input], maps_[at.attention_output], heads_[n]);
  }

  void report() {
    for (size_t i = 0; i < ports_.size(); ++i) {
      report_port(ports_[i], *findings_[i]);
    }
    for (size_t n = 0; n < attentions_.size(); ++n) {
      report_heads(n);
    }
    for (const StreamMap& map : maps_) {
      proof_.condition += map.condition;
    }
    if (proof_.gaps.empty() && !(proof_.moved <= most_moved)) {
      proof_.gaps.push_back(fmt::format(
          "the bases found (condition {:.3g}) make {:.2g} of a weight of one rounding: nothing is proved by that",
          proof_.condition, proof_.moved));
    }
  }

  void report_port(const ProofPort& port, const Finding& finding) {
    const bool untouched = is_identity(port.stream) && is_identity(port.samples_on) && are_same(port.parts);
    proof_.moved = std::max(proof_.moved, finding.moved);
    if (finding.holds()) {
      explain(port.parts, port.name, untouched ? "same numbers" : port.how, finding.residual);
      return;
    }
    fail(port.parts, port.name, finding);
    if (port.rows != RowsOf::tensor && mostly_holds(port, finding)) {
      std::vector<int64_t>& strange = port.rows == RowsOf::tokens      ? proof_.strange_tokens
                                      : port.rows == RowsOf::positions ? proof_.strange_positions
                                                                       : proof_.strange_types;
      strange.insert(strange.end(), finding.wrong_rows.begin(), finding.wrong_rows.end());
    }
  }

  void report_heads(size_t n) {
    if (is_untouched(n)) {
      for (const TensorId& id : attentions_[n].parts()) {
        a_.use(id);
        b_.use(id);
        explain({id}, name_of(id), "same numbers", 0);
      }
      return;
    }
    for (const AttentionProof::Named& named : check_heads(n)) {
      proof_.moved = std::max(proof_.moved, named.finding.moved);
      if (named.finding.holds()) {
        explain({named.tensor}, name_of(named.tensor), named.how, named.finding.residual);
      } else {
        fail({named.tensor, bias_of(named.tensor.module)}, name_of(named.tensor), named.finding);
      }
    }
  }

  // Of several relations that a tensor is in, the one with the largest residual is told.
  void explain(const std::vector<TensorId>& parts, const std::string& name, const std::string& how, double residual) {
    const auto tell = [&](const std::string& tensor) {
      const auto [entry, first] = told_.emplace(tensor, Relation{tensor, how, residual});
      if (!first && entry->second.residual < residual) {
        entry->second = {tensor, how, residual};
      }
    };
    tell(name);
    for (const TensorId& id : parts) {
      if (const std::string part = name_of(id); part != name && (a_.stores(id) || b_.stores(id))) {
        tell(part);
      }
    }
  }

  void fail(const std::vector<TensorId>& parts, const std::string& name, const Finding& finding) {
    proof_.gaps.push_back(fmt::format("{}: {} of {} entries are off, by up to {:.3g} roundings", name, finding.wrong,
                                      finding.entries, finding.residual));
    for (const TensorId& id : parts) {
      if (a_.stores(id)) {
        proof_.unexplained.insert(name_of(id));
      }
    }
  }

  void leave_unexplained(const std::string& reason) {
    for (const auto& [name, relation] : told_) {
      if (!proof_.unexplained.contains(name)) {
        proof_.relations.push_back(relation);
      }
    }
    for (const ProofSide* side : {&a_, &b_}) {
      for (const TensorSpec& spec : side->table()) {
        if (!side->used().contains(spec.id)) {
          proof_.gaps.push_back(fmt::format("{}: {}", spec.name, reason));
          if (side == &a_) {
            proof_.unexplained.insert(spec.name);
          }
        }
      }
    }
  }

  ProofSide a_, b_;
  const Model &reference_, &candidate_;
  at::TensorOptions options_;
  Proof proof_;
  std::set<TensorId> same_;
  bool same_gains_ = false;
  std::vector<ProofPort> ports_;
  std::vector<std::optional<Finding>> findings_;
  std::vector<AttentionProof> attentions_;
  std::vector<HeadMaps> heads_;  // by block
  std::vector<StreamMap> maps_;  // by stream
  std::vector<bool> known_;      // by stream: the map is what it will be
  std::map<std::string, Relation> told_;
};

}  // namespace

Proof prove(const Model& reference, const Model& candidate, at::Device device) {
  const at::NoGradGuard no_grad;
  return Prover(reference, candidate, device).run();
}

}  // namespace pare
