#include "pare/export/onnx.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "pare/arch/executor_only.h"
#include "pare/export/onnx_file.h"
#include "pare/export/onnx_layers.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// Why a decoder's graph has no past; empty: it has one, or is of no decoder.
std::string no_past(const Architecture& a) {
  if (std::ranges::any_of(a.blocks, [](const Block& block) { return block.attention.mask == Mask::full; })) {
    return "some layers look ahead";
  }
  if (a.embedding.position_pad) {
    return fmt::format("positions leave out tokens of id {}, and a past does not tell its ids",
                       *a.embedding.position_pad);
  }
  if (a.head.sequence && a.head.pool == Pool::first) {
    return "its second head reads the first token of the text";
  }
  return "";
}

// Where a runtime computes more, or holds more, than pare does.
void note_what_costs(OnnxBuilder& b, bool cached) {
  const Architecture& a = b.architecture();
  if (std::ranges::any_of(a.blocks, [](const Block& block) {  // else pare has them in memory too
        const Attention& t = block.attention;
        return !t.softcap && !t.alibi && t.scores != Form::collapsed && t.values != Form::collapsed;
      })) {
    b.note(
        "attention holds all its scores, [batch, heads, tokens, all tokens] in float32; pare's is one fused operator");
  }
  if (cached) {
    b.note("each step copies its cache, and gives logits for all tokens that it is given; pare generate does neither");
  }
}

void note_what_differs(OnnxBuilder& b, bool cached) {
  const Architecture& a = b.architecture();
  if (a.task == Task::causal_lm && !cached) {
    b.note(fmt::format("no past_key_values: {}; give the whole text in each step", no_past(a)));
  }
  for (const Block& block : a.blocks) {
    const std::optional<Rope>& rope = block.attention.rope;
    if (cached && rope && depends_on_length(*rope)) {
      b.note(fmt::format(
          "{} RoPE turns all tokens anew when the text grows past {:g} tokens, and a past keeps its angles: "
          "there, give the whole text without a past",
          rope->scaling->kind == RopeScalingKind::dynamic ? "dynamic" : "long", rope->scaling->original_context));
    }
  }
  if (cached && std::ranges::any_of(a.blocks, [](const Block& block) {
        return is<FromKey>(block.attention.value) || is<FromValue>(block.attention.key) ||
               block.attention.remembered == Remembered::inputs;
      })) {
    b.note(
        "a slim cache has one tensor for each layer (present.N.key, .value or .input): its other half is computed "
        "for all tokens in each step");
  }
  if (b.type() == OnnxType::f16) {
    b.note(
        "weights, activations and cache are float16; norms, scores and softmax are float32. A CPU computes the rest in "
        "float32 too, and converts: it is no faster there");
  }
}

}  // namespace

std::vector<std::string> write_onnx(const std::filesystem::path& folder, const Model& model, Dtype dtype,
                                    uint64_t external_above) {
  const Architecture& a = model.architecture;
  PARE_CHECK(model.has_weights(), "a model without weights");
  refuse_if(dtype != Dtype::f32 && dtype != Dtype::f16, "an ONNX graph is written in float32 or float16, not in {}",
            word(dtype));
  if (const std::optional<std::string> form = executor_only(a)) {
    throw InputError(fmt::format("this model as an ONNX graph: {} cannot be written yet: --to hf can", *form));
  }
  OnnxBuilder b(model, dtype);
  const bool cached = a.task == Task::causal_lm && no_past(a).empty();
  declare_inputs(b, cached);
  OnnxStep step(b, cached);
  const OnnxEmbedded embedded = emit_embedding(b, step);
  OnnxName x = embedded.x, table = embedded.table;
  const std::vector<int64_t> layers = layer_blocks(a);
  for (int64_t layer = 0; layer < std::ssize(layers); ++layer) {
    x = emit_block(b, step, x, table, layers[layer], layer);
    table.clear();
  }
  emit_answers(b, step, x);
  note_what_differs(b, cached);
  note_what_costs(b, cached);
  b.problems.throw_if_any("this model as an ONNX graph");
  std::vector<std::string> notes = b.notes;
  write_onnx_file(folder, b.finish(), external_above);
  return notes;
}

}  // namespace pare
