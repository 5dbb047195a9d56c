#include "pare/probes/probe_points.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

namespace pare {

namespace {

class PointWalk {
 public:
  size_t add(std::string name, PointKind kind, int64_t layer, Sublayer sublayer) {
    found.points.push_back({.name = std::move(name), .kind = kind, .layer = layer, .sublayer = sublayer});
    return found.points.size() - 1;
  }
  void norm(std::string name, const Norm& spec, int64_t layer, size_t before, size_t after) {
    found.norms.push_back({.name = std::move(name),
                           .layer = layer,
                           .kind = spec.kind,
                           .place = spec.place,
                           .before = before,
                           .after = after});
  }

  // One sublayer, from the stream to what it writes. Where its norm comes after the skip, the place of the sum.
  template <class Part>
  std::optional<size_t> sublayer(const Part& part, bool norm_stored, size_t stream, int64_t layer, Sublayer which) {
    const std::string prefix = fmt::format("blocks.{}.{}.", layer, which == Sublayer::attention ? "attention" : "mlp");
    const bool normed = part.norm && norm_stored;
    if (normed && part.norm->place == NormPlace::pre) {
      norm(prefix + "norm", *part.norm, layer, stream, add(prefix + "input", PointKind::read, layer, which));
    }
    if (part.output_norm) {
      const size_t before = add(prefix + "output_norm", PointKind::before_norm, layer, which);
      norm(prefix + "output_norm", *part.output_norm, layer, before,
           add(prefix + "output", PointKind::written, layer, which));
    } else {
      add(prefix + "output", PointKind::written, layer, which);
    }
    if (normed && part.norm->place == NormPlace::post) {
      return add(prefix + "norm", PointKind::before_norm, layer, which);
    }
    return std::nullopt;
  }

  ProbePoints found;
};

at::Tensor merged(const at::Tensor& heads) {
  return heads.flatten(2, 3);
}

}  // namespace

ProbePoints find_points(const Architecture& a) {
  PointWalk walk;
  const std::vector<int64_t> order = layer_blocks(a);
  const int64_t layers = std::ssize(order);
  size_t stream = walk.add("residual.0", PointKind::stream, 0, Sublayer::attention);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t n = order[layer];
    const Block& block = a.blocks[n];
    const Attention& t = block.attention;
    // The norm before a tabled layer is in its table.
    const bool attention_norm = !is_tabled(a, n) || (t.norm && t.norm->place == NormPlace::post);
    std::optional<size_t> sum = walk.sublayer(t, attention_norm, stream, layer, Sublayer::attention);
    const std::string prefix = fmt::format("blocks.{}.", layer);
    std::string norm_name = prefix + "attention.norm";
    const std::optional<Norm>* after_sum = &t.norm;
    if (block.mlp) {
      if (block.wiring == Wiring::serial) {
        stream = walk.add(fmt::format("residual.{}.mid", layer), PointKind::stream, layer, Sublayer::mlp);
        if (sum) {
          walk.norm(norm_name, **after_sum, layer, *sum, stream);
        }
      }
      sum = walk.sublayer(*block.mlp, true, stream, layer, Sublayer::mlp);
      norm_name = prefix + "mlp.norm";
      after_sum = &block.mlp->norm;
    }
    const bool last = layer + 1 == layers;
    stream = walk.add(fmt::format("residual.{}", layer + 1), PointKind::stream, layer + 1,
                      last ? Sublayer::end : Sublayer::attention);
    if (sum) {
      walk.norm(norm_name, **after_sum, layer, *sum, stream);
    }
  }
  if (a.final_norm) {
    walk.norm("norm", *a.final_norm, layers, stream, walk.add("final", PointKind::final, layers, Sublayer::end));
  }
  return walk.found;
}

void record_points(Taps& taps) {
  for (const char* glob :
       {"residual.*", "final", "blocks.*.attention.input", "blocks.*.attention.output", "blocks.*.attention.heads",
        "blocks.*.attention.probabilities", "blocks.*.mlp.input", "blocks.*.mlp.hidden", "blocks.*.mlp.output"}) {
    taps.record(glob);
  }
}

std::map<std::string, at::Tensor> values_at_points(const BlockLayer& block, const Taps& taps, int64_t layer) {
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, value] : taps.recorded()) {
    if (value.dim() == 3) {  // tokens × width; what heads and attention hold is not a point
      values[name] = value;
    }
  }
  const std::string attention = fmt::format("blocks.{}.attention.", layer);
  const std::string mlp = fmt::format("blocks.{}.mlp.", layer), stream = fmt::format("residual.{}", layer);
  if (block.attention_output_norm) {
    values[attention + "output_norm"] = block.attention.output(merged(taps.recorded().at(attention + "heads")));
  }
  const at::Tensor& attended = values.at(attention + "output");
  values[attention + "norm"] = block.spec.attention.skip ? values.at(stream) + attended : attended;
  if (!block.mlp) {
    return values;
  }
  if (block.mlp_output_norm) {
    const at::Tensor& hidden = values.at(mlp + "hidden");
    values[mlp + "output_norm"] = written_by(*block.mlp)(hidden);
  }
  if (block.spec.wiring == Wiring::serial) {
    const at::Tensor& written = values.at(mlp + "output");
    values[mlp + "norm"] = block.spec.mlp->skip ? values.at(stream + ".mid") + written : written;
  }
  return values;
}

}  // namespace pare
