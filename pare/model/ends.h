#pragma once
// The two ends of a model: what turns tokens or pixels into the stream, and what turns the stream into an answer.

#include <ATen/core/Tensor.h>

#include <optional>

#include "pare/arch/architecture.h"
#include "pare/model/loader.h"
#include "pare/model/model.h"
#include "pare/model/norm.h"
#include "pare/model/step.h"

namespace pare {

struct EmbeddingLayer {
  at::Tensor token, position, type, class_token;
  Linear patch, projection;
  std::optional<NormLayer> norm;
  at::Tensor table;  // of a first layer that is looked up
};

struct HeadLayer {
  std::optional<NormLayer> final_norm, transform_norm;
  Linear transform, head;
};

struct Stream {
  at::Tensor x;      // [batch, tokens, width]
  at::Tensor table;  // the first layer's projections, or undefined
};

EmbeddingLayer load_embedding(Loader& loader, const Architecture& architecture);
HeadLayer load_head(Loader& loader, const Architecture& architecture, const EmbeddingLayer& embedding);

Stream embed(const EmbeddingLayer& layer, const Architecture& architecture, const Inputs& inputs, const Step& step,
             at::ScalarType dtype);
Outputs answer(const HeadLayer& layer, const Architecture& architecture, const at::Tensor& stream, const Inputs& inputs,
               Step& step);

}  // namespace pare
