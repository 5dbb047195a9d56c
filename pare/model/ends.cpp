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

// Where a token is masked it counts for nothing, and the others for more: as in training, whatever this text has.
at::Tensor without_masked(const MaskedTokens& masked, const at::Tensor& x, const Inputs& inputs) {
  at::Tensor hidden = inputs.ids == masked.id;
  if (inputs.mask.defined()) {
    hidden = hidden.logical_and(inputs.mask);
  }
  const at::Tensor tokens = inputs.mask.defined() ? inputs.mask.sum(1) : at::full({1}, x.size(1), x.options());
  const at::Tensor share = hidden.sum(1).to(x.scalar_type()) / tokens.to(x.scalar_type());
  const at::Tensor kept = x.masked_fill(hidden.unsqueeze(-1), 0);
  return kept * ((1 - masked.usual) / (1 - share)).view({-1, 1, 1});
}

at::Tensor with_registers(const at::Tensor& registers, const at::Tensor& x) {
  const at::Tensor all = registers.unsqueeze(0).expand({x.size(0), -1, -1});
  return at::cat({x.narrow(1, 0, 1), all, x.narrow(1, 1, x.size(1) - 1)}, 1);
}

at::Tensor softcapped(const at::Tensor& logits, const std::optional<double>& cap) {
  return cap ? *cap * at::tanh(logits / *cap) : logits;
}

at::Tensor mean_of_tokens(const at::Tensor& x, const at::Tensor& mask) {
  if (!mask.defined()) {
    return x.mean(1);
  }
  const at::Tensor counted = mask.to(x.scalar_type()).unsqueeze(-1);
  return (x * counted).sum(1) / counted.sum(1);
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

std::optional<AttentionPoolLayer> load_attention_pool(Loader& loader, const std::optional<AttentionPool>& spec) {
  if (!spec) {
    return std::nullopt;
  }
  const auto linear = [&](Slot slot) { return loader.linear(in_head(slot)); };
  return AttentionPoolLayer{.spec = *spec,
                            .probe = loader.tensor({in_head(Slot::pool_probe), TensorKind::whole}),
                            .query = linear(Slot::pool_query),
                            .key = linear(Slot::pool_key),
                            .value = linear(Slot::pool_value),
                            .output = linear(Slot::pool_output),
                            .up = linear(Slot::pool_up),
                            .down = linear(Slot::pool_down),
                            .norm = load_norm(loader, spec->norm, in_head(Slot::pool_mlp_norm))};
}

at::Tensor attention_pooled(const AttentionPoolLayer& layer, const at::Tensor& x, const at::Tensor& mask) {
  const auto by_heads = [&](const at::Tensor& y) {
    return y.view({y.size(0), y.size(1), layer.spec.heads, y.size(2) / layer.spec.heads}).transpose(1, 2);
  };
  const at::Tensor query = by_heads(layer.query(layer.probe.view({1, 1, -1}))).expand({x.size(0), -1, -1, -1});
  const std::optional<at::Tensor> seen =
      mask.defined() ? std::optional(mask.to(at::kBool).view({x.size(0), 1, 1, x.size(1)})) : std::nullopt;
  const at::Tensor mixed =
      at::scaled_dot_product_attention(query, by_heads(layer.key(x)), by_heads(layer.value(x)), seen);
  const at::Tensor y = layer.output(mixed.transpose(1, 2).reshape({x.size(0), x.size(2)}));
  return y + layer.down(activate(layer.spec.activation, layer.up(normalised(layer.norm, y))));
}

at::Tensor pooled_of(const HeadLayer& layer, const Head& head, const at::Tensor& x, const Inputs& inputs) {
  if (layer.attention_pool) {
    return attention_pooled(*layer.attention_pool, x, inputs.mask);
  }
  if (head.pool == Pool::mean) {
    return mean_of_tokens(x, inputs.mask);
  }
  if (head.pool == Pool::token) {  // where there is none, the first; without an id, that of the highest
    const at::Tensor real = inputs.mask.defined() ? inputs.mask.to(at::kBool) : at::ones_like(inputs.ids, at::kBool);
    const at::Tensor ids = inputs.ids.masked_fill(real.logical_not(), -1);  // padding is no token
    const at::Tensor wanted = head.pool_token ? (ids == *head.pool_token).to(at::kInt) : ids;
    const at::Tensor found = head.pool_token ? wanted.any(1, true) : real.any(1, true);
    const at::Tensor place = wanted.argmax(1).view({-1, 1, 1}).expand({x.size(0), 1, x.size(2)});
    return at::where(found, x.gather(1, place).squeeze(1), pooled_token(x, inputs.mask, Pool::first));
  }
  return pooled_token(x, inputs.mask, head.pool);
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
  layer.registers = loader.tensor({in_embedding(Slot::registers), TensorKind::whole});
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
  layer.attention_pool = load_attention_pool(loader, a.head.attention_pool);
  layer.pool_norm = load_norm(loader, a.head.pool_norm, in_head(Slot::pool_norm));
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
  if (e.masked) {
    x = without_masked(*e.masked, x, inputs);
  }
  if (layer.registers.defined() && e.registers_placed) {
    x = with_registers(layer.registers, x);
  }
  if (e.factor && e.factor_scope == FactorScope::token) {
    x = layer.projection(x);
  }
  if (layer.type.defined()) {
    x = x + (inputs.types.defined() ? at::embedding(layer.type, inputs.types) : layer.type.select(0, 0));
  }
  if (layer.position.defined()) {
    const at::Tensor counted =
        e.registers > 0 && !e.registers_placed ? step.positions().at.narrow(1, 0, x.size(1)) : step.positions().at;
    x = x + at::embedding(layer.position, e.position_offset == 0 ? counted : counted + e.position_offset);
  } else if (e.position != Position::none) {
    Positions counted = step.positions();
    if (e.registers > 0 && !e.registers_placed) {
      counted.at = counted.at.narrow(1, 0, x.size(1));
    }
    if (e.position_offset != 0) {
      counted = {counted.at + e.position_offset,
                 counted.first ? std::optional(*counted.first + e.position_offset) : std::nullopt};
    }
    x = x + step.tables().sinusoidal(counted, embedding_width(a), e.position);
  }
  if (layer.registers.defined() && !e.registers_placed) {
    x = with_registers(layer.registers, x);
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
  const at::Tensor pooled = of_sequence || a.head.sequence
                                ? normalised(layer.pool_norm, pooled_of(layer, a.head, result.hidden, inputs))
                                : at::Tensor();
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
  const at::Tensor plain = head(x);
  return softcapped(a.head.scale == 1 ? plain : plain * a.head.scale, a.head.softcap);
}

}  // namespace pare
