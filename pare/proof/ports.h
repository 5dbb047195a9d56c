#pragma once
// Everything outside the heads that the two models have in common: matrices and tables on streams, and numbers that no
// basis reaches. head_relations.h has what stands between a query and a key, a value and an output.

#include <functional>
#include <optional>

#include "pare/proof/finding.h"
#include "pare/proof/model_view.h"
#include "pare/proof/proof.h"

namespace pare {

enum class RowsOf { tensor, tokens, positions, types };

struct ProofPort {
  std::string name;                   // the tensor that reports speak of
  std::vector<TensorId> parts;        // all that is in it, on either side
  std::optional<size_t> stream = {};  // none: numbers that no basis reaches
  Role role = Role::writer;
  std::optional<size_t> samples_on =
      {};  // the stream along a writer's samples, where a matrix reads one and writes another
  How how = How::basis;
  Rigour rigour = Rigour::stored;  // where nothing is fitted
  RowsOf rows = RowsOf::tensor;
  std::optional<double> usual = {};  // how large its numbers are, where they do not say it themselves
  int64_t samples = 0;
  bool sliced = false;  // a few rows can be had
  // Rows begin .. begin + count, each a sample: [count, width of the stream].
  std::function<Rounded(const ModelView& side, int64_t begin, int64_t count)> load = {};
};

std::vector<ProofPort> ports_of(const ModelView& reference, const ModelView& candidate);

}  // namespace pare
