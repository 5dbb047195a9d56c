#include "pare/train/conditioning.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

#include "pare/algebra/matrix_survey.h"
#include "pare/algebra/prediction.h"
#include "pare/algebra/remove_matrices.h"

namespace pare {

// The nearest orthogonal matrix of each, by X ← 1.5 X - 0.5 X Xᵀ X: products alone, which a GPU can record. A singular
// value grows by half each time until it is near 1, so 24 times reach from 1e-4.
static at::Tensor orthogonalised(const at::Tensor& matrices) {
  constexpr int times = 24;
  at::Tensor x = matrices / matrices.flatten(1).norm(2, 1).clamp_min(1e-30).view({-1, 1, 1});
  for (int i = 0; i < times; ++i) {
    x = at::baddbmm(x, at::bmm(x, x.transpose(1, 2)), x, /*beta=*/1.5, /*alpha=*/-0.5);
  }
  return x;
}

ConditioningLoss::ConditioningLoss(const Architecture& last, at::Device device) {
  const Streams streams = find_streams(last);
  std::set<size_t> taken;
  const RemovalQuery query{.targets = targets_of(std::nullopt)};
  for (const SurveyedMatrix& site : survey_matrices({last, {}}, streams, query)) {
    if (!site.possible || !taken.insert(site.removal.stream).second) {
      continue;
    }
    const std::vector<int64_t> alike =
        rows_scaled_alike(last.blocks[site.removal.block].attention, site.removal.target);
    const at::Tensor numbers = at::tensor(alike);
    const at::Tensor same = (numbers.unsqueeze(0) == numbers.unsqueeze(1)).to(at::kDouble);
    matrices_.push_back({site.removal.block, site.removal.weight(), (same / same.sum(1, true)).to(device)});
  }
}

at::Tensor ConditioningLoss::penalty(const Architecture& now,
                                     const std::map<std::string, at::Tensor>& parameters) const {
  std::vector<at::Tensor> scaled;
  for (const Matrix& matrix : matrices_) {
    at::Tensor w = parameters.at(matrix.weight);
    const at::ScalarType wide = w.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    w = w.to(wide);
    const std::optional<Norm>& norm = now.blocks[matrix.block].attention.norm;
    const auto gain = parameters.find(name_of(weight_of(in_attention(matrix.block, Slot::norm))));
    if (norm && norm->place == NormPlace::pre && gain != parameters.end()) {
      w = w * (gain->second.to(wide) + norm->offset);
    }
    const at::Tensor squares = at::mv(matrix.alike.to(wide), w.square().sum(1));
    scaled.push_back(w * squares.clamp_min(1e-30).rsqrt().unsqueeze(1));
  }
  const at::Tensor all = at::stack(scaled);
  return (all - orthogonalised(all.detach())).square().sum() / static_cast<double>(all.size(1));
}

RewriteOutlook rewrite_outlook(const Model& model) {
  const Proposal found = remove_matrices(model, {.targets = targets_of(std::nullopt)}, std::nullopt);
  RewriteOutlook outlook;
  for (const Conditioning& one : found.conditioning) {
    if (one.chosen) {
      outlook.conditions[name_of(one.matrix)] = one.gauged;
    }
  }
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    outlook.predicted_error[std::string(word(dtype))] = predicted_error(found.roundings, dtype);
  }
  return outlook;
}

double RewriteOutlook::worst() const {
  double worst = 1;
  for (const auto& [matrix, condition] : conditions) {
    worst = std::max(worst, condition);
  }
  return worst;
}

}  // namespace pare
