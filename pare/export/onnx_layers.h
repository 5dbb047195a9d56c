#pragma once
// Each part of a model as operators. What pare/model computes is what these say; a stored form that is written out when
// a model is loaded is written out by operators over constants, which a runtime computes once.

#include <optional>

#include "pare/export/onnx_builder.h"
#include "pare/export/onnx_step.h"

namespace pare {

// The identity where there is none.
OnnxName emit_norm(OnnxBuilder& b, const OnnxName& x, const std::optional<Norm>& norm, const ModuleId& module,
                   int64_t width);
OnnxName emit_activation(OnnxBuilder& b, Activation activation, const OnnxName& x);

// x: the sublayer's input [batch, tokens, width]; `table`: the looked-up [query | key | value], "" elsewhere. What the
// layer remembers goes in and comes out under its number.
OnnxName emit_attention(OnnxBuilder& b, OnnxStep& step, const OnnxName& x, const OnnxName& table, int64_t block,
                        int64_t layer);
OnnxName emit_mlp(OnnxBuilder& b, const OnnxName& x, const Mlp& mlp, int64_t block);
OnnxName emit_block(OnnxBuilder& b, OnnxStep& step, const OnnxName& x, const OnnxName& table, int64_t block,
                    int64_t layer);

struct OnnxEmbedded {
  OnnxName x, table;
};
void declare_inputs(OnnxBuilder& b, bool cached);
OnnxEmbedded emit_embedding(OnnxBuilder& b, OnnxStep& step);
// What the model says, as outputs of the graph.
void emit_answers(OnnxBuilder& b, OnnxStep& step, const OnnxName& stream);

// What the axes that may vary are called.
constexpr const char *batch_axis = "batch_size", *tokens_axis = "sequence_length", *past_axis = "past_sequence_length",
                     *all_axis = "total_sequence_length";

}  // namespace pare
