#include "pare/model/ends.h"

#include <ATen/ATen.h>

#include "pare/arch/head.h"
#include "pare/model/activation.h"

namespace pare {

namespace {

at::Tensor patches_of(const EmbeddingLayer& layer, const Architecture& a, const at::Tensor& pixels) {
  const Patch& patch = *a.embedding.patch;
  const int64_t side = patch.image / patch.size;
  const at::Tensor cut = pixels.view({pixels.size(0), patch.channels, side, patch.size, side, patch.size})
                             .permute({0, 2, 4, 1, 3, 5})
                             .reshape({pixels.size(0), side * side, patch.channels * patch.size * patch.size});
  const at::Tensor x = layer.patch(cut);
  if (!layer.class_token.defined()) {
    return x;
  }
  return at::cat({layer.class_token.expand({x.size(0), 1, a.width}), x}, 1);
}

at::Tensor softcapped(const at::Tensor& logits, const std::optional<double>& cap) {
  return cap ? *cap * at::tanh(logits / *cap) : logits;
}

// The vector that stands for a sequence: its first or its last real token.
at::Tensor pooled_token(const at::Tensor& x, const at::Tensor& mask, Pool pool) {
  if (!mask.defined()) {
    return x.select(1, pool == Pool::first ? 0 : x.size(1) - 1);
  }
  const at::Tensor counted = mask.to(at::kLong).cumsum(1);  // real tokens so far: stays the same from the last one on
  const at::Tensor number = pool == Pool::first ? at::ones_like(counted.select(1, 0)) : counted.select(1, -1);
  const at::Tensor place = (counted < number.unsqueeze(1)).sum(1).clamp_max(x.size(1) - 1);
  return x.gather(1, place.view({-1, 1, 1}).expand({x.size(0), 1, x.size(2)})).squeeze(1);
}

std::optional<TransformLayer> load_transform(Loader& loader, const std::optional<HeadTransform>& transform, Slot slot,
                                             Slot norm) {
  if (!transform) {
    return std::nullopt;
  }
  return TransformLayer{transform->activation, loader.linear(in_head(slot)),
                        load_norm(loader, transform->norm, in_head(norm))};
}

at::Tensor transformed(const std::optional<TransformLayer>& layer, const at::Tensor& x) {
  return layer ? normalised(layer->norm, activate(layer->activation, layer->dense(x))) : x;
}

}  // namespace

EmbeddingLayer load_embedding(Loader& loader, const Architecture& a) {
  const ModuleId patch = in_embedding(Slot::patch);
  EmbeddingLayer layer;
  layer.token = loader.tensor(weight_of(token_table));
  layer.position = loader.tensor(weight_of(position_table));
  layer.type = loader.tensor(weight_of(in_embedding(Slot::type)));
  layer.class_token = loader.tensor({in_embedding(Slot::class_token), TensorKind::whole});
  layer.patch = {loader.made_from(weight_of(patch), [](const at::Tensor& kernel) { return kernel.flatten(1); }),
                 loader.tensor(bias_of(patch))};
  layer.projection = loader.linear(in_embedding(Slot::projection));
  layer.table = loader.tensor(weight_of(in_embedding(Slot::table)));
  if (!layer.table.defined()) {  // which holds the results of the norm too
    layer.norm = load_norm(loader, a.embedding.norm, in_embedding(Slot::norm));
  }
  return layer;
}

HeadLayer load_head_front(Loader& loader, const Architecture& a) {
  HeadLayer layer;
  layer.final_norm = load_norm(loader, a.final_norm, final_norm);
  layer.transform = load_transform(loader, a.head.transform, Slot::transform, Slot::transform_norm);
  if (a.head.sequence) {
    layer.sequence_transform =
        load_transform(loader, a.head.sequence->transform, Slot::sequence_transform, Slot::sequence_transform_norm);
  }
  layer.sequence = loader.linear(in_head(Slot::sequence));
  return layer;
}

HeadLayer load_head(Loader& loader, const Architecture& a, const EmbeddingLayer& embedding) {
  HeadLayer layer = load_head_front(loader, a);
  layer.head = loader.linear(head_matrix);
  if (a.head.tied) {
    layer.head.weight = embedding.token;
  }
  return layer;
}

Embedded embed(const EmbeddingLayer& layer, const Architecture& a, const Inputs& inputs, const Step& step) {
  const at::Tensor rows = layer.kept.defined() ? at::searchsorted(layer.kept, inputs.ids) : inputs.ids;
  if (layer.table.defined()) {
    const at::Tensor both = at::embedding(layer.table, rows).to(step.tables().arithmetic().dtype);
    return {both.narrow(-1, 0, a.width), both.narrow(-1, a.width, both.size(-1) - a.width)};
  }
  const Embedding& e = a.embedding;
  at::Tensor x = e.patch ? patches_of(layer, a, inputs.pixels.to(step.tables().arithmetic().dtype))
                         : at::embedding(layer.token, rows).to(step.tables().arithmetic().dtype);
  if (e.scale != 1) {
    x = x * e.scale;
  }
  if (e.factor && e.factor_scope == FactorScope::token) {
    x = layer.projection(x);
  }
  if (layer.type.defined()) {
    x = x + (inputs.types.defined() ? at::embedding(layer.type, inputs.types) : layer.type.select(0, 0));
  }
  if (layer.position.defined()) {
    const at::Tensor& counted = step.positions().at;
    x = x + at::embedding(layer.position, e.position_offset == 0 ? counted : counted + e.position_offset);
  } else if (e.position == Position::sinusoidal) {
    x = x + step.tables().sinusoidal(step.positions(), embedding_width(a));
  }
  x = normalised(layer.norm, x);
  return {e.factor && e.factor_scope == FactorScope::sum ? layer.projection(x) : x, {}};
}

Features features(const HeadLayer& layer, const Architecture& a, const at::Tensor& stream, const Inputs& inputs,
                  Logits wanted, Step& step) {
  Features result;
  result.hidden = step.tap("", "final", normalised(layer.final_norm, stream));
  const bool encoder = a.task == Task::encoder;
  if (!encoder && wanted == Logits::none) {
    return result;
  }
  const bool of_sequence = answers_sequences(a) || has_pooler(a);
  const at::Tensor pooled =
      of_sequence || a.head.sequence ? pooled_token(result.hidden, inputs.mask, a.head.pool) : at::Tensor();
  at::Tensor read = of_sequence ? pooled : result.hidden;
  if (!encoder && !of_sequence && wanted == Logits::last) {
    read = pooled_token(result.hidden, inputs.mask, Pool::last).unsqueeze(1);
  }
  const at::Tensor x = transformed(layer.transform, read);
  if (!encoder) {
    result.x = x;
  } else if (has_pooler(a)) {
    result.pooled = step.tap("", "pooled", x);
  } else {
    result.hidden = x;
  }
  if (a.head.sequence) {
    result.sequence_logits =
        step.tap("", "sequence_logits", layer.sequence(transformed(layer.sequence_transform, pooled)));
  }
  return result;
}

at::Tensor logits(const Linear& head, const Architecture& a, const at::Tensor& x) {
  return softcapped(head(x), a.head.softcap);
}

}  // namespace pare
