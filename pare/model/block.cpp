#include "pare/model/block.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "pare/support/memory.h"

namespace pare {

namespace {

const std::optional<NormLayer> kNoNorm;

const std::optional<NormLayer>& norm_at(const std::optional<NormLayer>& norm, NormPlace place) {
  return norm && norm->spec.place == place ? norm : kNoNorm;
}

struct Names {  // of the taps; left empty when nobody taps, since formatting costs as much as a small product
  std::string attention, mlp, residual;
  Names(const Step& step, int64_t layer) {
    if (step.tapped()) {
      attention = fmt::format("blocks.{}.attention.", layer);
      mlp = fmt::format("blocks.{}.mlp.", layer);
      residual = fmt::format("residual.{}", layer);
    }
  }
};

at::Tensor attention_output(const BlockLayer& block, const at::Tensor& input, const at::Tensor& table, Step& step,
                            int64_t layer, const std::string& prefix) {
  LayerCache* cache = step.cache() ? &step.cache()->layers[layer] : nullptr;
  const bool tabled = table.defined();
  const at::Tensor y = attend(block.attention, tabled ? table : input, tabled, step, cache, prefix);
  return step.dropped(step.tap(prefix, "output", normalised(block.attention_output_norm, y)), &DropoutRates::residual);
}

at::Tensor mlp_output(const BlockLayer& block, const at::Tensor& input, Step& step, const std::string& prefix) {
  const at::Tensor y = run_mlp(*block.mlp, step.tap(prefix, "input", input), step, prefix);
  return step.dropped(step.tap(prefix, "output", normalised(block.mlp_output_norm, y)), &DropoutRates::residual);
}

at::Tensor with_skip(bool skip, const at::Tensor& fade, const at::Tensor& x, const at::Tensor& y) {
  if (!skip) {
    return y;
  }
  return fade.defined() ? x * (1 - fade) + y : x + y;
}

at::Tensor fade_of(const Blend* blend, int64_t block, Sublayer sublayer) {
  return blend && blend->skips.contains({block, sublayer}) ? blend->t : at::Tensor();
}

}  // namespace

BlockLayer load_block(Loader& loader, const Architecture& architecture, int64_t n) {
  const Block& spec = architecture.blocks[n];
  const Attention& t = spec.attention;
  BlockLayer block{.spec = spec, .attention = load_attention(loader, architecture, n)};
  block.attention_output_norm = load_norm(loader, t.output_norm, in_attention(n, Slot::output_norm));
  if (!is_tabled(architecture, n) || (t.norm && t.norm->place == NormPlace::post)) {  // else it is in the table
    block.attention_norm = load_norm(loader, t.norm, in_attention(n, Slot::norm));
  }
  block.attention_fade = fade_of(loader.blend(), n, Sublayer::attention);
  block.mlp_fade = fade_of(loader.blend(), n, Sublayer::mlp);
  if (spec.mlp) {
    block.mlp = load_mlp(loader, *spec.mlp, n);
    block.mlp_norm = load_norm(loader, spec.mlp->norm, in_mlp(n, Slot::norm));
    block.mlp_output_norm = load_norm(loader, spec.mlp->output_norm, in_mlp(n, Slot::output_norm));
  }
  return block;
}

OneBlock::OneBlock(Loader& loader, const Architecture& architecture) : loader_(&loader), architecture_(&architecture) {}

const BlockLayer& OneBlock::operator()(int64_t n) {
  if (number_ != n) {
    release();
    const PromptlyFreed promptly;
    held_ = load_block(*loader_, *architecture_, n);
    number_ = n;
  }
  return *held_;
}

void OneBlock::release() {
  held_.reset();
  number_ = -1;
}

at::Tensor run_block(const BlockLayer& block, at::Tensor x, const at::Tensor& table, Step& step, int64_t layer) {
  const Names names(step, layer);
  x = step.tap(names.residual, "", x);
  const at::Tensor input =
      step.tap(names.attention, "input", normalised(norm_at(block.attention_norm, NormPlace::pre), x));
  const at::Tensor attended = attention_output(block, input, table, step, layer, names.attention);
  const at::Tensor sum = with_skip(block.spec.attention.skip, block.attention_fade, x, attended);

  if (block.spec.wiring == Wiring::parallel) {
    if (!block.mlp) {
      return sum;
    }
    return sum + mlp_output(block, block.mlp_norm ? (*block.mlp_norm)(x) : input, step, names.mlp);
  }

  x = normalised(norm_at(block.attention_norm, NormPlace::post), sum);
  if (!block.mlp) {
    return x;
  }
  x = step.tap(names.residual, ".mid", x);
  const at::Tensor y = mlp_output(block, normalised(norm_at(block.mlp_norm, NormPlace::pre), x), step, names.mlp);
  return normalised(norm_at(block.mlp_norm, NormPlace::post), with_skip(block.spec.mlp->skip, block.mlp_fade, x, y));
}

}  // namespace pare
