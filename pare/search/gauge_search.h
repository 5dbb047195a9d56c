#pragma once
// Finds the gauges of one block's heads between two bases, and tells what its matrices say of those bases. Trials are
// judged by the relations of the heads (pare/proof/head_relations.h).

#include <optional>

#include "pare/linear/linear_system.h"
#include "pare/linear/map_fit.h"
#include "pare/proof/head_relations.h"

namespace pare {

class GaugeSearch {
 public:
  GaugeSearch(const HeadRelations& heads, const ModelView& reference, const ModelView& candidate);

  // The best gauges between two known streams; `out` is left out of it where it is not known yet.
  Gauges fit(const StreamMap& in, const StreamMap* out) const;
  // Those whose gauge is the identity anyway.
  bool knows_scores() const { return scores_ == MapGroup::identity; }
  bool knows_values() const { return values_ == MapGroup::identity; }

  // What the projections say of the stream they read, once the gauges are known.
  std::vector<MapSamples> input_samples(const Gauges& gauges) const;
  // And of the one they write.
  std::vector<MapSamples> output_samples(const Gauges& gauges) const;
  void add_equations(size_t in, size_t out, MatrixSystem& system) const;

  // A projection that only one side has a matrix for pins the basis of its stream down to the gauge of its heads.
  std::optional<Slot> pinned_input() const;
  bool pins_output() const { return heads_.pins(Slot::output); }
  at::Tensor fit_pinned_input(Slot slot, const std::vector<MapSamples>& samples) const;
  // `gauge` where the values pin it already, in the same way.
  StreamBasis fit_pinned_output(const std::vector<MapSamples>& samples, const at::Tensor& gauge) const;
  bool determines(Slot slot) const;  // the gauge of its heads, without rounding
  // Where the candidate has neither a value nor an output matrix: what reads the output reads the input too.
  bool passes_through() const;
  at::Tensor through_values(const at::Tensor& readers) const;

 private:
  HeadRelations::Tokens some_tokens() const;
  MapSamples bias_sample(Slot slot, const at::Tensor& gauges, bool of_reference) const;

  const HeadRelations& heads_;
  const ModelView &a_, &b_;
  MapGroup scores_, values_;
};

}  // namespace pare
