#include "pare/algebra/constant_norms.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "pare/model/blockwise.h"
#include "pare/proof/norm_bounds.h"
#include "pare/verify/questions.h"

namespace pare {

namespace {

constexpr int64_t sampled_sequences = 8;

double largest_variance(const at::Tensor& x, NormKind kind) {
  const at::Tensor rows = x.to(at::kDouble);
  return (kind == NormKind::layer ? rows.var(-1, false) : rows.square().mean(-1)).max().item<double>();
}

std::map<ModuleId, double> measured_shares(const Model& model) {
  const Architecture& a = model.architecture;
  std::map<ModuleId, double> shares;
  const auto add = [&](const std::optional<Norm>& norm, const ModuleId& module, const Taps& taps, std::string point) {
    const auto tapped = taps.recorded().find(point);
    if (norm && norm->place == NormPlace::pre && tapped != taps.recorded().end()) {
      double& most = shares[module];
      most = std::max(most, share_of_epsilon(largest_variance(tapped->second, norm->kind), norm->epsilon));
    }
  };
  for (const Inputs& inputs : draw_inputs(a, sampled_sequences, 0)) {
    Taps taps;
    taps.record("residual.*");
    BlockwiseRun run(model, {}, std::span(&inputs, 1), &taps);
    const std::vector<int64_t> order = layer_blocks(a);
    for (size_t layer = 0; layer <= order.size(); ++layer) {
      if (layer == order.size()) {
        run.finish();
        add(a.final_norm, final_norm, taps, fmt::format("residual.{}", layer));
        break;
      }
      run.run_layer();
      const int64_t n = order[layer];
      const Block& block = a.blocks[n];
      const std::string before = fmt::format("residual.{}", layer);
      add(block.attention.norm, in_attention(n, Slot::norm), taps, before);
      if (block.mlp) {
        add(block.mlp->norm, in_mlp(n, Slot::norm), taps, block.wiring == Wiring::parallel ? before : before + ".mid");
      }
      taps.clear();
    }
  }
  return shares;
}

}  // namespace

std::map<ModuleId, EpsilonShare> epsilon_shares(const Model& model, double limit) {
  std::map<ModuleId, EpsilonShare> shares;
  // Without weights any of them may be a constant: structure refuses only what no numbers could allow.
  for (const auto& [module, epsilon] : large_epsilons(model.architecture)) {
    shares[module] = {};
  }
  if (shares.empty() || !model.has_weights()) {
    return shares;
  }
  bool bounded = true;
  for (const auto& [module, most] : dominated_shares(model)) {
    shares[module] = {most, true};
    bounded = bounded && most <= limit;
  }
  if (bounded) {
    return shares;
  }
  for (const auto& [module, most] : measured_shares(model)) {
    if (const auto share = shares.find(module); share != shares.end() && !(share->second.most <= limit)) {
      share->second = {most, false};
    }
  }
  return shares;
}

}  // namespace pare
