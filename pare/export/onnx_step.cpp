#include "pare/export/onnx_step.h"

#include <ATen/ATen.h>

#include "pare/model/rope.h"
#include "pare/model/tables.h"

namespace pare {

OnnxStep::OnnxStep(OnnxBuilder& builder, bool cached) : b_(builder), cached_(cached) {
  if (!b_.architecture().embedding.patch) {
    mask_ = "attention_mask";
    own_tokens_ = b_.node("Shape", {"input_ids"}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    from_ = cached_ ? b_.node("Sub", {b_.indices({0}), own_tokens_}) : "";
  }
}

OnnxName OnnxStep::at_hand(const OnnxName& all, int64_t axis) {
  return cached_ ? b_.node("Slice", {all, from_, b_.indices({INT64_MAX}), b_.indices({axis})}) : all;
}

const OnnxName& OnnxStep::positions(bool all) {
  if (!all_positions_.empty()) {
    return all ? all_positions_ : positions_;
  }
  const Embedding& e = b_.architecture().embedding;
  b_.enter("positions");
  if (mask_.empty()) {
    positions_ = b_.constant("positions", at::arange(patch_positions(b_.architecture()), at::kLong).unsqueeze(0));
    return all_positions_ = positions_;
  }
  OnnxName real = mask_, pads;
  if (e.position_pad) {  // not with a past, of which nobody knows the ids
    pads = b_.node("Equal", {"input_ids", b_.index(*e.position_pad)});
    real = b_.node("Where", {pads, b_.index(0), real});
  }
  const OnnxName counted = b_.node("Sub", {b_.node("CumSum", {real, b_.index(1)}), b_.index(1)});
  all_positions_ = b_.node("Max", {counted, b_.index(0)});
  if (e.position_pad) {
    all_positions_ = b_.node("Where", {pads, b_.index(-1), all_positions_});
  }
  positions_ = at_hand(all_positions_, 1);
  return all ? all_positions_ : positions_;
}

// Where tokens stand among those given, padding or not.
void OnnxStep::make_places() {
  if (!columns_.empty()) {
    return;
  }
  b_.enter("visible");
  if (mask_.empty()) {
    columns_ = b_.constant("places", at::arange(patch_positions(b_.architecture()), at::kLong));
  } else {
    const OnnxName keys = b_.node("Shape", {mask_}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
    columns_ = b_.node("Range", {b_.index(0), b_.node("Squeeze", {keys}), b_.index(1)});
  }
  rows_ = b_.unsqueeze(at_hand(columns_, 0), {1});
}

OnnxName OnnxStep::meets() {
  make_places();
  if (meets_.empty()) {
    meets_ = b_.node("Equal", {rows_, columns_});
  }
  return meets_;
}

OnnxName OnnxStep::diagonal() {
  if (diagonal_.empty()) {
    diagonal_ = b_.cast(meets(), OnnxType::f32);
  }
  return diagonal_;
}

OnnxName OnnxStep::allowed(const Attention& t) {
  OnnxName& made = allowed_[{t.mask, t.window.value_or(0)}];
  if (!made.empty() || (mask_.empty() && t.mask == Mask::full && !t.window)) {
    return made;
  }
  const OnnxName itself = mask_.empty() ? "" : meets();
  const OnnxName &queries = positions(false), keys = positions(true);
  make_places();
  b_.enter("visible");
  std::vector<OnnxName> rules;
  if (t.mask == Mask::causal) {
    rules.push_back(b_.unsqueeze(b_.node("LessOrEqual", {columns_, rows_}), {0}));
  }
  if (t.window) {  // in positions, not places: padding in between does not count
    const OnnxName apart = b_.node("Abs", {b_.node("Sub", {b_.unsqueeze(queries, {2}), b_.unsqueeze(keys, {1})})});
    rules.push_back(b_.node("Less", {apart, b_.index(*t.window)}));
  }
  if (!mask_.empty()) {
    rules.push_back(b_.unsqueeze(b_.cast(mask_, OnnxType::boolean), {1}));
  }
  OnnxName all = rules.front();
  for (size_t i = 1; i < rules.size(); ++i) {
    all = b_.node("And", {all, rules[i]});
  }
  if (!itself.empty()) {  // a padded query sees itself: an answer that means nothing, but is a number
    all = b_.node("Or", {all, itself});
  }
  return made = b_.unsqueeze(all, {1});
}

OnnxName OnnxStep::hidden(const Attention& t) {
  const OnnxName seen = allowed(t);
  OnnxName& made = hidden_[{t.mask, t.window.value_or(0)}];
  if (made.empty() && !seen.empty()) {
    b_.enter("visible");
    made = b_.node("Where", {seen, b_.wide_real(0), b_.wide_real(lowest_score)});
  }
  return made;
}

OnnxName OnnxStep::uniform(const Attention& t) {
  OnnxName& made = uniform_[{t.mask, t.window.value_or(0)}];
  if (made.empty()) {
    const OnnxName seen = allowed(t), itself = diagonal();
    b_.enter("visible");
    const OnnxName each = seen.empty() ? b_.node("Max", {itself, b_.wide_real(1)}) : b_.cast(seen, OnnxType::f32);
    made = b_.node("Div", {each, b_.node("ReduceSum", {each, b_.indices({-1})}, {{"keepdims", int64_t{1}}})});
  }
  return made;
}

OnnxName OnnxStep::alibi(const Attention& t) {
  const double scale = t.alibi->scaled ? scale_of(t) : 1;
  OnnxName& made = alibi_[{t.heads, scale}];
  if (!made.empty()) {
    return made;
  }
  const OnnxName &queries = positions(false), keys = positions(true);
  b_.enter("alibi");
  if (distances_.empty()) {
    const OnnxName between = b_.node("Sub", {b_.unsqueeze(keys, {1}), b_.unsqueeze(queries, {2})});
    distances_ = b_.unsqueeze(b_.cast(between, OnnxType::f32), {1});
  }
  const Tables tables({at::kDouble, at::kCPU});
  const at::Tensor slopes = tables.alibi_slopes(t.heads, t.alibi->steepest) * scale;
  const std::string name = fmt::format("alibi.{}.{:.17g}.{:g}", t.heads, scale, t.alibi->steepest);
  return made = b_.node("Mul", {distances_, b_.constant(name, slopes.to(at::kFloat))});
}

// In float64: far into a text float32 does not tell angles apart.
OnnxName OnnxStep::angles(const OnnxName& positions, const OnnxName& frequencies) {
  return b_.node("Mul", {b_.unsqueeze(b_.cast(positions, OnnxType::f64), {2}), frequencies});
}

// How far each plane turns per position: numbers, or what the longest sequence makes of them.
OnnxName OnnxStep::frequencies(const Rope& rope) {
  if (!depends_on_length(rope)) {
    return b_.doubles(rope_frequencies(rope, 0));
  }
  const OnnxName all = positions(true);
  b_.enter("positions");
  if (longest_.empty()) {
    const OnnxName last = b_.node("ReduceMax", {all}, {{"keepdims", int64_t{0}}});
    longest_ = b_.cast(b_.node("Add", {last, b_.index(1)}), OnnxType::f64);
  }
  const RopeScaling& s = *rope.scaling;
  const OnnxName longer = b_.node("Greater", {longest_, b_.doubles({s.original_context})});  // [1]
  const int64_t original = static_cast<int64_t>(s.original_context);
  if (s.kind == RopeScalingKind::longrope) {
    return b_.node("Where",
                   {longer, b_.doubles(rope_frequencies(rope, original + 1)), b_.doubles(rope_frequencies(rope, 0))});
  }
  // theta times stretch^(w / (w - 2)), to the power -2i/w: the plain frequency times stretch^(-2i / (w - 2)).
  std::vector<double> powers;
  for (int64_t i = 0; i < rope.width; i += 2) {
    powers.push_back(i == 0 ? 0 : -static_cast<double>(i) / static_cast<double>(rope.width - 2));
  }
  const OnnxName grown = b_.node("Mul", {longest_, b_.doubles({s.factor / s.original_context})});
  const OnnxName stretch = b_.node("Sub", {grown, b_.doubles({s.factor - 1})});
  const OnnxName used = b_.node("Where", {longer, stretch, b_.doubles({1})});
  return b_.node("Mul", {b_.doubles(rope_frequencies(rope, 0)), b_.node("Pow", {used, b_.doubles(powers)})});
}

OnnxTurn OnnxStep::turn(const Rope& rope, bool all) {
  for (const Turned& known : turns_) {
    if (known.rope == rope && known.all == (all && cached_)) {
      return known.turn;
    }
  }
  const OnnxName places = positions(all), each = frequencies(rope);
  b_.enter("positions");
  const OnnxName angle = angles(places, each);
  const auto made = [&](const char* wave) {
    OnnxName turned = b_.node(wave, {angle});
    if (rope.scaling && rope.scaling->attention_factor != 1) {
      turned = b_.node("Mul", {turned, b_.doubles({rope.scaling->attention_factor})});
    }
    return b_.unsqueeze(b_.cast(turned, b_.type()), {1});
  };
  const OnnxName cosine = made("Cos"), sine = made("Sin");
  turns_.push_back({rope, all && cached_, {cosine, sine}});
  return turns_.back().turn;
}

OnnxName OnnxStep::sinusoidal(int64_t width) {
  OnnxName& made = waves_[width];
  if (made.empty()) {
    const OnnxName places = positions(false);
    b_.enter("positions");
    const OnnxName angle = angles(places, b_.doubles(sinusoidal_frequencies(width)));
    const OnnxName sine = b_.unsqueeze(b_.node("Sin", {angle}), {3}),
                   cosine = b_.unsqueeze(b_.node("Cos", {angle}), {3});
    const OnnxName both = b_.reshape(b_.concat({sine, cosine}, 3), {0, 0, -1});
    const int64_t waves = (width + 1) / 2 * 2;
    made = b_.cast(waves == width ? both : b_.slice(both, 0, width, 2), b_.type());
  }
  return made;
}

}  // namespace pare
