#pragma once
// All relations between two models, and what is left of them under a witness: for given bases, gauges and orders, by
// how much every tensor is off. Whoever looks for a witness sets it here and asks; what is found is computed here and
// nowhere else, so that a verdict rests on no search.

#include <optional>
#include <set>
#include <vector>

#include "pare/proof/head_relations.h"
#include "pare/proof/ports.h"

namespace pare {

class Relations {
 public:
  // Under identities. `same`: the tensors that both store with the same numbers.
  Relations(const ModelView& reference, const ModelView& candidate, const std::set<TensorId>& same);
  Relations(const Relations&) = delete;  // heads refer to what is in here

  const ModelView& reference() const { return a_; }
  const ModelView& candidate() const { return b_; }
  const std::vector<ProofPort>& ports() const { return ports_; }
  const std::vector<HeadRelations>& heads() const { return heads_; }  // by block
  const BlockStreams& streams_of(size_t block) const { return a_.streams().blocks[block]; }
  MapGroup group_of(size_t stream) const { return groups_[stream]; }

  // The witness, as it stands, and what was found under it. Findings are kept until what they rest on is set again.
  struct State {
    std::vector<StreamMap> maps;  // by stream
    std::vector<Gauges> gauges;   // by block
    std::vector<std::optional<Finding>> of_ports;
    std::vector<std::optional<std::vector<NamedFinding>>> of_heads;
  };
  const State& state() const { return state_; }
  void restore(State state) { state_ = std::move(state); }
  void set_basis(size_t stream, const StreamBasis& basis);
  void set_gauges(size_t block, const Gauges& gauges);
  const StreamMap& map(size_t stream) const { return state_.maps[stream]; }
  const Gauges& gauges(size_t block) const { return state_.gauges[block]; }

  const Finding& finding(size_t port);
  const std::vector<NamedFinding>& findings_of_heads(size_t block);
  int64_t count_wrong();  // entries that disagree
  // Most rows of a table obey, though some may be strange.
  static bool mostly_holds(const Finding& finding, int64_t rows);

  // A basis stands between the two sides.
  bool is_fitted(const ProofPort& port) const { return !is_identity(port.stream) || !is_identity(port.samples_on); }
  // Nothing that is in it was changed.
  bool is_untouched(const ProofPort& port) const;
  bool is_untouched(size_t block) const;
  How how(const ProofPort& port) const;

  // Rows of a port as they are compared, and the reference's of a matrix between two streams as they are once the one
  // that it reads is the candidate's.
  static Rounded rows_of(const ProofPort& port, const ModelView& side, int64_t begin, int64_t count);
  Rounded through_samples(const ProofPort& port, const Rounded& rows) const;

 private:
  bool are_same(const std::vector<TensorId>& parts) const;
  bool is_identity(const std::optional<size_t>& stream) const { return !stream || map(*stream).is_identity(); }
  bool is_absorbed(size_t stream) const;
  bool is_centred(const std::optional<size_t>& stream) const;
  bool is_scaled(const ProofPort& port) const;
  bool is_made(const ProofPort& port) const;  // of one side's form, or of what writes it without its mean
  Finding check(const ProofPort& port) const;
  Finding check_rows(const ProofPort& port, int64_t begin, int64_t count) const;
  // What the candidate's roundings come to where they are compared.
  at::Tensor carried(const ProofPort& port, const Rounded& rows) const;
  at::Tensor unit(const ProofPort& port, int64_t begin, int64_t count, const at::Tensor& rounding) const;
  at::Tensor through_samples_back(const ProofPort& port, const at::Tensor& rows) const;
  Rounded with_usual_samples(const ProofPort& port, const Rounded& rows) const;

  const ModelView &a_, &b_;
  const ModelView wide_;  // the candidate, as if it were stored in float64
  const std::set<TensorId>& same_;
  bool same_offsets_ = false;
  std::vector<MapGroup> groups_;  // by stream
  std::vector<ProofPort> ports_;
  std::vector<HeadRelations> heads_;
  State state_;
};

}  // namespace pare
