#pragma once
// What stands between a query and a key, and between a value and an output: with q_A = D q_B and D' k_A = k_B the
// scores are the same, with v_A = E v_B and W_O,A E = Ψ W_O,B the sublayer is. One D and one E for each key/value head.
// In a first layer that is a table these are relations of its columns, token by token.

#include <functional>
#include <map>
#include <optional>

#include "pare/linear/linear_system.h"
#include "pare/linear/map_fit.h"
#include "pare/proof/maps.h"
#include "pare/proof/proof.h"

namespace pare {

// The gauges of one block: [kv_heads, k, k]. Undefined: the identity.
struct HeadMaps {
  at::Tensor scores, values;
};

// The map of a stream, and what of it is a gauge of heads where a matrix that only one side has pins the rest.
struct PinnedMap {
  at::Tensor map, gauges;
};

// Maps and gauges that are looked for together: joint.cpp
struct JointSystem {
  std::vector<at::Tensor> guess;
  std::map<size_t, at::Tensor> known;  // those of the unknowns that are none
  std::vector<MatrixEquation> equations;

  void add(MatrixEquation equation, const at::Tensor& scale);  // of each row; undefined: as they are
};
struct JointMap {
  size_t unknown = 0;
  MatrixTerm term(MatrixTerm term) const {
    term.unknown = unknown;
    return term;
  }
};

class AttentionProof {
 public:
  // `wide`: the candidate, as if it were stored in float64.
  AttentionProof(const ProofSide& reference, const ProofSide& candidate, const ProofSide& wide, int64_t block);

  int64_t block() const { return block_; }
  std::vector<TensorId> parts() const;        // on either side
  std::vector<TensorId> folded_norm() const;  // of them, what is a norm's

  struct Named {
    TensorId tensor;
    How how;
    Finding finding;
  };
  std::vector<Named> check(const StreamMap& in, const StreamMap& out, const HeadMaps& heads) const;

  // The best gauges between two known streams; `out` is left out of it where it is not known yet.
  HeadMaps fit(const StreamMap& in, const StreamMap* out) const;

  // What the projections say of the stream they read, once the gauges are known.
  std::vector<MapSamples> input_samples(const HeadMaps& heads) const;
  // And of the one they write.
  std::vector<MapSamples> output_samples(const HeadMaps& heads) const;
  // Those whose gauge is the identity anyway.
  bool knows_scores() const { return scores_ == MapGroup::identity; }
  bool knows_values() const { return values_ == MapGroup::identity; }

  void add_equations(const JointMap& in, const JointMap& out, JointSystem& system) const;

  // A projection that only one side has a matrix for pins the basis of its stream down to the gauge of its heads.
  std::optional<Slot> pinned_input() const;
  bool pins_output() const { return pins(Slot::output); }
  at::Tensor fit_pinned_input(Slot slot, const std::vector<MapSamples>& samples) const;
  // `gauge` where the values pin it already, in the same way.
  PinnedMap fit_pinned_output(const std::vector<MapSamples>& samples, const at::Tensor& gauge) const;
  // Where the candidate has neither a value nor an output matrix: what reads the output reads the input too.
  bool passes_through() const;
  bool determines(Slot slot) const;  // the gauge of its heads, without rounding
  at::Tensor through_values(const at::Tensor& readers) const;

 private:
  // [W | b], with all that folds into it; the bias alone where there is no matrix to compare. Of a table, what these
  // tokens have there: [entries, tokens].
  using Tokens = std::vector<RowRange>;
  Effective projection(const ProofSide& side, Slot slot, const Tokens& tokens = {}) const;
  Effective tabled(const ProofSide& side, Slot slot, const Tokens& tokens) const;
  Tokens some_tokens() const;
  Effective output(const ProofSide& side) const;    // [width, heads * k]
  double query_scale(const ProofSide& side) const;  // what a change of the scores' scale put into the query
  // How closely a projection is compared, with a stream's basis and a gauge between the sides or without.
  Rigour rigour(Slot slot, const StreamMap& in, const at::Tensor& gauge) const;
  // Of what is compared, whose roundings are `carried` there: of the candidate, and of it in float64.
  at::Tensor unit(const std::function<at::Tensor(const ProofSide& side)>& carried) const;
  double off_group(Slot slot, const at::Tensor& gauge) const;  // how far the gauges are from what may stand there
  at::Tensor seen_in_keys(const ProofSide& side) const;  // 1 for entries whose constants a softmax does not ignore
  const Attention& spec(const ProofSide& side) const;
  bool has_matrix(Slot slot) const;
  bool pins(Slot slot) const;  // one side stores this matrix, the other has the identity: a relation without rounding
  MapGroup group_of(Slot slot) const;
  int64_t heads_of(Slot slot) const;
  MapSamples bias_sample(Slot slot, const at::Tensor& gauges, bool of_reference) const;
  Finding check_query(const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_key(const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_value(const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_turned(Slot slot, const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_read(Slot slot, const StreamMap& in, const at::Tensor& gauge) const;  // one of these, of all tokens
  Finding judged_heads(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& moved,
                       const at::Tensor& whole) const;
  Finding check_output(const StreamMap& in, const StreamMap& out, const at::Tensor& gauge) const;
  Finding check_collapsed(const StreamMap& in) const;
  // W_V' W_O' of each head, or W_Q' W_K, biases beside the matrices: whatever stands between the two.
  Finding check_products(Slot first, const StreamMap& in, const StreamMap& out) const;

  const ProofSide &a_, &b_, &wide_;
  int64_t block_;
  size_t input_, output_;
  bool tabled_, made_table_;  // which one side computes
  MapGroup scores_ = MapGroup::identity, values_ = MapGroup::identity;
};

}  // namespace pare
