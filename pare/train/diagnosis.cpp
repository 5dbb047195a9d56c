#include "pare/train/diagnosis.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace pare {

namespace {

double largest_of(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.detach().to(at::kDouble).abs().max().item<double>();
}

// What the forward pass goes through, in its order, with the largest number of each. A NaN is the largest there is.
std::vector<std::pair<std::string, double>> stream_sizes(const Trainer& trainer, const TrainBatch& batch) {
  const at::NoGradGuard no_grad;
  const size_t layers = layer_blocks(trainer.executor().architecture()).size();
  Taps taps;
  for (const char* glob : {"residual.*", "blocks.*.attention.output", "blocks.*.mlp.output", "final"}) {
    taps.record(glob);
  }
  trainer.executor().forward(moved(batch.inputs, trainer.device()), nullptr, &taps, Logits::none);
  std::vector<std::pair<std::string, double>> sizes;
  const auto add = [&](const std::string& tap, const std::string& words) {
    if (const auto found = taps.recorded().find(tap); found != taps.recorded().end()) {
      sizes.emplace_back(words, largest_of(found->second));
    }
  };
  add("residual.0", "the embedding");
  for (size_t layer = 0; layer < layers; ++layer) {
    add(fmt::format("blocks.{}.attention.output", layer), fmt::format("layer {}: what the attention writes", layer));
    add(fmt::format("blocks.{}.mlp.output", layer), fmt::format("layer {}: what the MLP writes", layer));
    add(fmt::format("residual.{}", layer + 1), fmt::format("layer {}: the stream after it", layer));
  }
  add("final", "the final norm");
  return sizes;
}

std::string bad_place(const Trainer& trainer, const TrainBatch& batch) {
  const Model model = trainer.model();
  for (const auto& [name, parameter] : trainer.executor().parameters()) {
    if (!std::isfinite(largest_of(model.weights.at(name).load()))) {
      return fmt::format("the weight {} is not finite", name);
    }
  }
  const std::vector<std::pair<std::string, double>> sizes = stream_sizes(trainer, batch);
  for (const auto& [words, size] : sizes) {
    if (!std::isfinite(size)) {
      return fmt::format("the first numbers that are not finite are in {}", words);
    }
  }
  for (const auto& [name, gradient] : trainer.gradients()) {
    if (!std::isfinite(largest_of(gradient))) {
      return fmt::format("every intermediate is finite, but the gradient of {} is not", name);
    }
  }
  const auto largest = std::ranges::max_element(sizes, {}, [](const auto& entry) { return entry.second; });
  return fmt::format("the largest numbers, up to {:.3g}, are in {}", largest->second, largest->first);
}

std::string likely_cause(const TrainConfig& config, const BadStep& bad) {
  if (bad.step == 0) {
    return fmt::format(
        "the start itself, before any step: try another init.recipe than it has, or a smaller deviation");
  }
  const auto has_norm = [](const Block& block) { return block.attention.norm || (block.mlp && block.mlp->norm); };
  const std::vector<Block>& blocks = config.architecture.blocks;
  // A third of a rate that no run survives is no advice: then the usual one.
  constexpr double largest_sensible = 0.03;
  const double lr = config.optimiser.lr, advised = lr > largest_sensible ? OptimiserConfig().lr : lr / 3;
  std::string cause =
      fmt::format("the learning rate, {:.3g} there, is too large: try optimiser.lr={:.3g}{}", bad.rate, advised,
                  advised < config.optimiser.min_lr ? fmt::format(" optimiser.min_lr={:.3g}", advised / 10) : "");
  if (config.morph.to && bad.step <= config.morph.steps) {
    cause = fmt::format("what goes goes too fast: try more morph.steps than {}; or ", config.morph.steps) + cause;
  }
  if (config.optimiser.clip == 0) {
    cause += ", and clip gradients (optimiser.clip is 0)";
  }
  if (config.optimiser.warmup == 0) {
    cause += ", and warm up (optimiser.warmup is 0)";
  }
  if (std::ranges::none_of(blocks, has_norm)) {
    const bool sized = config.init.recipe == InitRecipe::norm_free || config.init.recipe == InitRecipe::orthogonal;
    cause += "; without norms nothing keeps the stream small";
    cause += sized || !config.from.empty() ? "" : ", and init.recipe=norm_free begins where it should";
  }
  return cause;
}

}  // namespace

std::string diagnosis(const TrainConfig& config, const Trainer& trainer, const TrainBatch& batch, const BadStep& bad) {
  const bool finite = std::isfinite(bad.found.loss);
  std::string text =
      finite && !std::isfinite(bad.found.gradient_norm)
          ? fmt::format("after step {} the gradient is not finite (loss {:.4g})", bad.step, bad.found.loss)
          : fmt::format("after step {} the loss is {:.4g}", bad.step, bad.found.loss);
  if (bad.step > 0) {
    text += fmt::format(", before it {:.4g}", bad.loss_before);
  }
  return fmt::format("{}: {}; likely cause: {}", text, bad_place(trainer, batch), likely_cause(config, bad));
}

}  // namespace pare
