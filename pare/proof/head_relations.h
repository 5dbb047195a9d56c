#pragma once
// What stands between a query and a key, and between a value and an output, checked for given bases and gauges: with
// q_A = D q_B and D' k_A = k_B the scores are the same, with v_A = E v_B and W_O,A E = Ψ W_O,B the sublayer is. One D
// and one E for each key/value head. In a first layer that is a table these are relations of its columns, token by
// token.

#include <functional>

#include "pare/proof/finding.h"
#include "pare/proof/proof.h"
#include "pare/proof/stream_map.h"
#include "pare/proof/witness.h"

namespace pare {

// A relation of one tensor, and how far it is from holding.
struct NamedFinding {
  TensorId tensor;
  How how;
  Finding finding;
};

class HeadRelations {
 public:
  // `wide`: the candidate, as if it were stored in float64.
  HeadRelations(const ModelView& reference, const ModelView& candidate, const ModelView& wide, int64_t block);

  std::vector<NamedFinding> check(const StreamMap& in, const StreamMap& out, const Gauges& gauges) const;

  // One relation each: of a query, a key or a value, for these tokens where a table has it; and of the output.
  using Tokens = std::vector<RowRange>;
  Finding check_read(Slot slot, const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_output(const StreamMap& in, const StreamMap& out, const at::Tensor& gauge) const;

  int64_t block() const { return block_; }
  bool is_tabled() const { return tabled_; }
  const Attention& spec(const ModelView& side) const;
  std::vector<TensorId> parts() const;        // on either side
  std::vector<TensorId> folded_norm() const;  // of them, what is a norm's
  bool has_matrix(Slot slot) const;           // on some side, where the other may have the identity
  bool stores(const ModelView& side, Slot slot) const { return side.stores(weight_of(in_attention(block_, slot))); }
  bool pins(Slot slot) const;  // one side stores this matrix, the other has the identity: a relation without rounding
  MapGroup group_of(Slot slot) const;  // which gauges may stand there
  int64_t heads_of(Slot slot) const;

  // What is compared: [W | b], with all that folds into it; the bias alone where there is no matrix to compare. Of a
  // table, what these tokens have there: [entries, tokens].
  Rounded projection(const ModelView& side, Slot slot, const Tokens& tokens = {}) const;
  Rounded output(const ModelView& side) const;      // [width, heads * k]
  double query_scale(const ModelView& side) const;  // what a change of the scores' scale put into the query

 private:
  Rounded tabled(const ModelView& side, Slot slot, const Tokens& tokens) const;
  // How closely a projection is compared, with a stream's basis and a gauge between the sides or without.
  Rigour rigour(Slot slot, const StreamMap& in, const at::Tensor& gauge) const;
  // Of what is compared, whose roundings are `carried` there: of the candidate, and of it in float64.
  at::Tensor unit(const std::function<at::Tensor(const ModelView& side)>& carried) const;
  double off_group(Slot slot, const at::Tensor& gauge) const;  // how far the gauges are from what may stand there
  at::Tensor seen_in_keys(const ModelView& side) const;  // 1 for entries whose constants a softmax does not ignore
  Finding check_turned(Slot slot, const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_key(const StreamMap& in, const at::Tensor& gauge, const Tokens& tokens) const;
  Finding check_all(Slot slot, const StreamMap& in, const at::Tensor& gauge) const;  // tokens
  Finding judged_heads(const at::Tensor& residual, const Allowance& allowed, const at::Tensor& moved,
                       const at::Tensor& whole) const;
  Finding check_collapsed(const StreamMap& in) const;
  // W_V' W_O' of each head, or W_Q' W_K, biases beside the matrices: whatever stands between the two.
  Finding check_products(Slot first, const StreamMap& in, const StreamMap& out) const;

  const ModelView &a_, &b_, &wide_;
  int64_t block_;
  size_t input_, output_;
  bool tabled_, made_table_;  // which one side computes
  MapGroup scores_ = MapGroup::identity, values_ = MapGroup::identity;
};

}  // namespace pare
