#include "pare/model/norm.h"

#include <ATen/ATen.h>

namespace pare {

namespace {

at::Tensor scaled_and_shifted(at::Tensor y, const Parameter& gain, const at::Tensor& bias) {
  if (gain.defined()) {
    y = y * gain.tensor();
  }
  return bias.defined() ? y + bias : y;
}

// The same on a line: y = (1 - t) n(x) + t c x.
at::Tensor mixed_norm(const NormLayer& norm, const NormBlend& blend, const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
  const at::Tensor wide = narrow ? x.to(at::kFloat) : x;
  const at::Tensor centred = norm.spec.kind == NormKind::layer ? wide - wide.mean(-1, true) : wide;
  const at::Tensor root = at::rsqrt(centred.square().mean(-1, true) + norm.spec.epsilon);
  if (at::GradMode::is_enabled()) {
    NormsSeen& seen = *blend.seen;
    if (!seen.again) {
      blend.sum.add_(root.detach().mean());
      blend.count.add_(1);
    }
    // Around the mean of all tokens, which takes no part in the gradient: its own is zero.
    const at::Tensor size = root.log();
    const at::Tensor spread = blend.mean_of_all ? (size - blend.mean_of_all(size.detach().mean())).square().mean()
                                                : size.var(/*unbiased=*/false);
    seen.unevenness = seen.unevenness.defined() ? seen.unevenness + spread : spread;
  }
  const at::Tensor y = centred * root * (1 - blend.t) + wide * (blend.t * blend.constant);
  const bool fades = blend.bias_fades && norm.bias.defined();
  return scaled_and_shifted(y.to(x.scalar_type()), norm.gain, fades ? norm.bias * (1 - blend.t) : norm.bias);
}

}  // namespace

at::Tensor NormLayer::operator()(const at::Tensor& x) const {
  if (blend) {
    return mixed_norm(*this, *blend, x);
  }
  switch (spec.kind) {
    case NormKind::layer:
      if ((gain.defined() && gain.tensor().dim() > 1) || (bias.defined() && bias.dim() > 1)) {  // of each head
        return scaled_and_shifted(at::layer_norm(x, {x.size(-1)}, {}, {}, spec.epsilon), gain, bias);
      }
      return at::layer_norm(x, {x.size(-1)}, gain.tensor(), bias, spec.epsilon);
    case NormKind::rms: {
      // The mean of squares overflows float16 and is coarse in bfloat16.
      const bool narrow = x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16;
      const at::Tensor wide = narrow ? x.to(at::kFloat) : x;
      const at::Tensor root = at::rsqrt(wide.square().mean(-1, true) + spec.epsilon);
      return scaled_and_shifted((wide * root).to(x.scalar_type()), gain, bias);
    }
    case NormKind::dyt:
      return scaled_and_shifted(at::tanh(alpha * x), gain, bias);
    case NormKind::scale:
      return scaled_and_shifted(spec.factor == 1 ? x : x * spec.factor, gain, bias);
  }
  return x;
}

std::optional<NormLayer> load_norm(Loader& loader, const std::optional<Norm>& spec, const ModuleId& module,
                                   bool of_each_head) {
  if (!spec) {
    return std::nullopt;
  }
  const auto made = [offset = spec->offset, of_each_head](const at::Tensor& stored) {
    const at::Tensor gain = offset == 0 ? stored : stored + offset;
    return of_each_head ? gain.unsqueeze(1) : gain;
  };
  const bool as_stored = spec->offset == 0 && !of_each_head;
  const Parameter gain = as_stored ? loader.tensor(weight_of(module)) : loader.made_from(weight_of(module), made);
  at::Tensor bias = loader.tensor(bias_of(module));
  if (of_each_head && bias.defined()) {
    bias = bias.unsqueeze(1);
  }
  NormLayer layer{*spec, gain, bias, loader.tensor({module, TensorKind::alpha})};
  if (const Blend* blend = loader.blend(); blend && blend->norms.contains(module)) {
    layer.blend = blend->norms.at(module);
  }
  return layer;
}

at::Tensor normalised(const std::optional<NormLayer>& norm, const at::Tensor& x) {
  return norm ? (*norm)(x) : x;
}

}  // namespace pare
