#pragma once
// The two ends of a model: what turns tokens or pixels into the stream, and what turns the stream into an answer.

#include <ATen/core/Tensor.h>

#include <optional>

#include "pare/arch/architecture.h"
#include "pare/model/executor.h"
#include "pare/model/loader.h"
#include "pare/model/norm.h"
#include "pare/model/step.h"

namespace pare {

struct EmbeddingLayer {
  at::Tensor token, position, type, class_token, registers;
  at::Tensor kept;  // where the token tables are cut to some rows: which tokens these are, ascending
  Linear patch, projection;
  std::optional<NormLayer> norm;
  at::Tensor table;  // of a first layer that is looked up
};

struct TransformLayer {
  Activation activation = Activation::identity;
  Linear dense;
  std::optional<NormLayer> norm;
};

struct AttentionPoolLayer {
  AttentionPool spec;
  at::Tensor probe;
  Linear query, key, value, output, up, down;
  std::optional<NormLayer> norm;
};

struct HeadLayer {
  std::optional<NormLayer> final_norm, pool_norm;
  std::optional<TransformLayer> transform, sequence_transform;
  std::optional<AttentionPoolLayer> attention_pool;
  Linear head, sequence;
};

struct Embedded {
  at::Tensor x;      // [batch, tokens, width]
  at::Tensor table;  // the first layer's projections, or undefined
};

struct Features {
  at::Tensor hidden, pooled, sequence_logits;  // as in Outputs
  at::Tensor x;  // what the head's matrix reads; undefined for an encoder, and for Logits::none
};

EmbeddingLayer load_embedding(Loader& loader, const Architecture& architecture);
HeadLayer load_head(Loader& loader, const Architecture& architecture, const EmbeddingLayer& embedding);
// Without the head's own matrix and bias, for who multiplies with it piece by piece.
HeadLayer load_head_front(Loader& loader, const Architecture& architecture);

Embedded embed(const EmbeddingLayer& layer, const Architecture& architecture, const Inputs& inputs, const Step& step);
// The answer in two steps: all but the head's matrix, and the product with it, or with some of its rows.
Features features(const HeadLayer& layer, const Architecture& architecture, const at::Tensor& stream,
                  const Inputs& inputs, Logits wanted, Step& step);
at::Tensor logits(const Linear& head, const Architecture& architecture, const at::Tensor& x);

}  // namespace pare
