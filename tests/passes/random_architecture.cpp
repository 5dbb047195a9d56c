#include "tests/passes/random_architecture.h"

#include <cmath>

#include "pare/arch/head.h"
#include "pare/arch/norms.h"
#include "pare/arch/validate.h"

namespace pare::test {

namespace {

// What models of today have besides, of numbers that were drawn for something else.
void more_forms(Block& block, int64_t drawn) {
  Attention& t = block.attention;
  if (t.alibi) {
    t.alibi->steepest = drawn % 2 == 0 ? 8 : 5;
  }
  if (t.qk_norm) {
    const bool behind = t.rope && drawn % 5 == 0;
    t.qk_norm->place = behind ? NormPlace::post : NormPlace::pre;
    t.qk_norm_over = behind           ? QkNormOver::head
                     : drawn % 5 == 1 ? QkNormOver::each_head
                     : drawn % 5 == 2 ? QkNormOver::layer
                                      : QkNormOver::head;
    t.qk_norm->bias = drawn % 11 == 3;
  }
  const auto scale = [drawn](std::optional<Norm>& norm, bool may_be_new) {
    if (norm ? norm->kind == NormKind::dyt && norm->bias : may_be_new) {
      const bool gain = drawn % 3 != 0;
      norm = Norm{.kind = NormKind::scale,
                  .place = norm ? norm->place : NormPlace::pre,
                  .gain = gain,
                  .bias = drawn % 4 == 0,
                  .offset = gain && drawn % 5 == 0 ? 1.0 : 0.0,
                  .factor = gain && drawn % 2 == 0 ? 1 : 0.5};
    }
  };
  scale(t.norm, false);
  scale(t.output_norm, drawn % 7 == 2);
  if (block.mlp) {
    scale(block.mlp->norm, false);
    scale(block.mlp->output_norm, drawn % 7 == 5 && block.mlp->norm);
    if (DenseMlp* dense = std::get_if<DenseMlp>(&block.mlp->kind); dense && dense->activation == Activation::gelu) {
      const bool trained = drawn % 6 == 1 && !dense->gated;
      dense->activation = trained ? Activation::xielu : drawn % 6 == 4 ? Activation::gelu_bloom : dense->activation;
    }
  }
}

void more_forms(Embedding& e, const Architecture& a) {
  if (e.patch && e.class_token) {
    e.registers = a.width == 12 ? 2 : 0;
    e.registers_placed = e.registers > 0 && e.patch->bias;
  }
  if (e.position == Position::sinusoidal && a.vocab % 3 == 0) {
    e.position = Position::sinusoidal_halves;
    e.position_offset = a.vocab % 2 == 0 ? 2 : 0;
  }
  if (!e.patch && a.vocab % 8 == 3) {
    e.masked = MaskedTokens{.id = 1};
  }
}

void more_forms(Head& head, const Architecture& a) {
  const bool language = is_language_model(a);
  head.scale = language && a.vocab % 5 == 2 ? 0.5 : 1;
  if (a.task == Task::classifier && a.context % 2 == 0) {
    head.pool = a.embedding.patch || a.vocab % 3 == 0 ? Pool::mean : a.vocab % 3 == 1 ? Pool::token : head.pool;
    head.pool_token = head.pool == Pool::token ? std::optional<int64_t>(0) : std::nullopt;
    head.pool_norm = head.pool == Pool::mean ? a.final_norm : std::nullopt;
  }
}

// Only where the schema allows all of it: what is drawn again would move the draws behind it.
Architecture with_more_forms(const Architecture& drawn) {
  Architecture a = drawn;
  for (Block& block : a.blocks) {
    more_forms(block, 2 * drawn.vocab + drawn.context + block.attention.heads);
  }
  more_forms(a.embedding, drawn);
  more_forms(a.head, drawn);
  a.context = a.embedding.patch ? patch_positions(a) : a.context;
  Problems problems;
  validate(a, problems);
  return problems.empty() ? a : drawn;
}

}  // namespace

Architecture ArchitectureDraw::draw() {
  for (;;) {  // what the schema forbids is drawn again
    Architecture a = attempt();
    Problems problems;
    validate(a, problems);
    if (problems.empty()) {
      return with_more_forms(a);
    }
  }
}

Architecture ArchitectureDraw::attempt() {
  Architecture a;
  a.name = "drawn";
  bare_ = chance(0.6);  // without norms, where the theorems of papers 0 and 1 live
  a.task = pick({Task::causal_lm, Task::causal_lm, Task::causal_lm, Task::masked_lm, Task::encoder, Task::classifier});
  a.width = pick<int64_t>({8, 12});
  a.vocab = between(5, 29);
  a.context = between(6, 9);
  Embedding& e = a.embedding;
  e.position = pick({Position::none, Position::learned, Position::learned, Position::sinusoidal});
  e.types = chance(0.2) ? 2 : 0;
  e.scale = chance(0.2) ? 1.7 : 1;
  e.norm = chance(bare_ ? 0.05 : 0.3) ? std::optional(norm(false)) : std::nullopt;
  if (chance(0.2)) {
    e.factor = between(3, 6);
    e.factor_scope = pick({FactorScope::token, FactorScope::sum});
    e.factor_bias = chance(0.5);
  }
  if (e.position == Position::learned && chance(0.2)) {
    e.position_offset = 2;
  }
  if ((a.task == Task::encoder || a.task == Task::classifier) && chance(0.4)) {
    a.vocab = 0;
    e.factor.reset();
    e.factor_bias = false;
    e.patch = Patch{.size = 2, .channels = 2, .image = 4, .bias = chance(0.5)};
    e.class_token = chance(0.5);
    e.position_offset = 0;
    a.context = patch_positions(a);
  }
  skips_ = pick({0, 0, 1, 1, 1, 2, 3});
  const int64_t kinds = between(1, 2);
  for (int64_t i = 0; i < kinds; ++i) {
    const int64_t repeat = between(1, 2);
    a.blocks.insert(a.blocks.end(), static_cast<size_t>(repeat), block(a));
  }
  const int64_t distinct = std::ssize(a.blocks);
  if (chance(0.3)) {
    std::vector<int64_t> layers;
    for (int64_t i = 0; i < distinct + 1; ++i) {
      layers.push_back(chance(0.5) ? std::min(i, distinct - 1) : between(0, distinct - 1));
    }
    a.layers = layers;
  }
  if (chance(bare_ ? 0.1 : 0.7)) {
    a.final_norm = norm(false);
  }
  a.head.tied = chance(0.4);
  a.head.bias = chance(0.3);
  if (a.task == Task::classifier) {
    a.head.classes = between(2, 5);
  }
  if (chance(0.2)) {
    a.head.transform = HeadTransform{.activation = Activation::gelu, .bias = chance(0.5)};
    if (chance(0.5)) {
      a.head.transform->norm = norm(false);
    }
  }
  if (chance(0.1)) {
    a.head.softcap = 3.0;
  }
  if (chance(0.05)) {
    a.first_layer = FirstLayer::table;
  }
  return a;
}

Architecture ArchitectureDraw::with_other_end(const Architecture& architecture) {
  for (;;) {
    Architecture a = architecture;
    if (is_language_model(a) && chance(0.3)) {
      a.head.sequence = SequenceHead{.classes = between(1, 3), .bias = chance(0.5)};
      if (chance(0.7)) {
        a.head.sequence->transform = HeadTransform{.activation = Activation::tanh, .bias = chance(0.5)};
        a.head.sequence->transform->norm = chance(0.3) ? std::optional(norm(false)) : std::nullopt;
      }
    } else if (chance(0.15)) {
      a.task = Task::encoder;
      a.head = Head{.transform = HeadTransform{.activation = Activation::identity, .width = between(3, 15)}};
    } else {
      a.task = pick({Task::classifier, Task::token_classifier, Task::question_answering, Task::next_sentence});
      a.head = Head{.bias = chance(0.5), .classes = 2};
      if (a.task == Task::classifier || a.task == Task::token_classifier) {
        a.head.classes = between(1, 5);
      }
      if (chance(0.3)) {
        a.head.transform = HeadTransform{.activation = pick({Activation::tanh, Activation::identity})};
        a.head.transform->width = chance(0.5) ? std::optional(between(3, 15)) : std::nullopt;
      }
    }
    a.head.pool = a.task == Task::encoder ? Pool::none : chance(0.6) ? Pool::last : Pool::first;
    Problems problems;
    validate(a, problems);
    if (problems.empty()) {
      return a;
    }
  }
}

Norm ArchitectureDraw::norm(bool may_be_post) {
  Norm n;
  n.kind = pick({NormKind::rms, NormKind::layer, NormKind::dyt});
  n.place = may_be_post && chance(0.3) ? NormPlace::post : NormPlace::pre;
  n.epsilon = 1e-5;
  n.gain = chance(0.8);
  n.bias = chance(0.4);
  n.offset = n.gain && chance(0.3) ? 1 : 0;
  return n;
}

Block ArchitectureDraw::block(const Architecture& a) {
  Block b;
  b.wiring = chance(0.25) ? Wiring::parallel : Wiring::serial;
  Attention& t = b.attention;
  t.head_width = chance(0.8) ? 4 : between(2, 6);
  t.heads = chance(0.8) ? a.width / 4 : between(1, 4);
  t.kv_heads = chance(0.6) ? t.heads : pick<int64_t>({1, t.heads, std::max<int64_t>(1, t.heads / 2)});
  if (chance(0.15)) {
    t.scale = 0.4;
  }
  const auto dense_or_identity = [&] { return chance(0.07) ? Projection(Identity{}) : Projection(Dense{}); };
  t.query = dense_or_identity();
  t.key = dense_or_identity();
  t.value = dense_or_identity();
  t.output = dense_or_identity();
  if (chance(0.08)) {
    t.query = SameAsKey{};
  } else if (chance(0.05)) {
    t.query = Nonlinear{.width = 5, .activation = Activation::gelu};
  }
  t.scores = chance(0.06) ? Form::collapsed : Form::factored;
  t.values = chance(0.06) ? Form::collapsed : Form::factored;
  t.bias = {.query = chance(0.4), .key = chance(0.4), .value = chance(0.4), .output = chance(0.4)};
  t.mask = a.task == Task::causal_lm ? Mask::causal : Mask::full;
  if (chance(0.15)) {
    t.window = between(1, 4);
  }
  if (chance(0.1)) {
    t.alibi = Alibi{.scaled = chance(0.5)};
  }
  if (chance(0.4)) {
    Rope rope{.theta = 100, .width = chance(0.5) ? t.head_width / 2 * 2 : 2};
    rope.layout = pick({RopeLayout::half, RopeLayout::interleaved});
    t.rope = rope;
  }
  if (chance(0.15)) {
    t.qk_norm = Norm{.kind = pick({NormKind::rms, NormKind::layer}), .gain = chance(0.7)};
  }
  if (chance(0.12)) {
    t.softcap = 2.0;
  }
  if (chance(0.15)) {
    t.gate = Gate::position;
  }
  if (chance(bare_ ? 0.05 : 0.7)) {
    t.norm = norm(b.wiring == Wiring::serial);
  }
  if (chance(bare_ ? 0.03 : 0.15)) {
    t.output_norm = norm(false);
  }
  t.skip = skips_ == 1 || skips_ == 2 || (skips_ == 3 && chance(0.5));
  // Only a matrix can be shrunk or left out. No heads is what validate() refuses, and then another is drawn: so that a
  // seed means the model that it always meant.
  const auto replace = [&t](Projection& projection, const Projection& kind) {
    t.kv_heads = is<Dense>(projection) ? t.kv_heads : 0;
    projection = kind;
  };
  if (chance(0.05)) {
    replace(t.value, Shrunk{});
  }
  if (chance(0.05)) {
    replace(t.key, Shrunk{});
  }
  if (chance(0.08)) {
    const char cache = pick({'k', 'v', 'x'});
    if (cache == 'k') {
      replace(t.value, FromKey{});
    } else if (cache == 'v') {
      replace(t.key, FromValue{});
    } else {
      t.remembered = Remembered::inputs;
    }
  }
  if (chance(0.85)) {
    Mlp m;
    const int64_t width = between(5, 14);
    const bool heads = chance(0.1), shared = heads && chance(0.5);
    const Activation activation = pick({Activation::gelu, Activation::silu, Activation::relu, Activation::tanh});
    if (heads) {
      m.kind = NeuronHeads{.width = width, .shared_value = shared, .output_bias = chance(0.5)};
    } else {
      DenseMlp dense{.width = width, .activation = activation, .gated = chance(0.4)};
      dense.bias = {.up = chance(0.5), .gate = dense.gated && chance(0.5), .down = chance(0.5)};
      m.kind = dense;
    }
    if (chance(bare_ ? 0.05 : 0.7)) {
      m.norm = norm(b.wiring == Wiring::serial);
    }
    if (chance(bare_ ? 0.03 : 0.15)) {
      m.output_norm = norm(false);
    }
    m.skip = skips_ == 2 || (skips_ == 3 && chance(0.5));
    if (DenseMlp* dense = std::get_if<DenseMlp>(&m.kind);
        dense && activation == Activation::tanh && has_plain_keys_and_values(t)) {
      if (dense->gated) {
        dense->activation = Activation::sigmoid;  // a gate that heads of width one can be
      } else if (width % 2 == 0) {                // a skip that can go into its MLP: see drawn_tensors
        dense->activation = width % 4 == 0 ? Activation::relu : Activation::gelu;
        dense->width = a.width + width;
        m.skip = true;
        b.wiring = Wiring::serial;
        m.norm.reset();
        m.output_norm.reset();
      }
    }
    b.mlp = m;
  }
  // No draw of its own, which would move all others, and none of the seeds that once failed.
  t.shaped = (2 * a.vocab + a.context + t.heads) % 9 == 8;
  return b;
}

namespace {

// Neurons of a skipping MLP that, turned round, absorb its skip: down[J] up[J] = -I, else as random as it was.
void plant_absorbable(const Architecture& a, Tensors& tensors) {
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const std::optional<Mlp>& m = a.blocks[n].mlp;
    const DenseMlp* dense = m ? std::get_if<DenseMlp>(&m->kind) : nullptr;
    if (!dense || dense->gated || !m->skip || dense->width <= a.width + 2 || dense->width % 5 == 0) {
      continue;
    }
    const at::Tensor up = tensors.at(name_of(weight_of(in_mlp(n, Slot::up))));
    at::Tensor& down = tensors.at(name_of(weight_of(in_mlp(n, Slot::down))));
    const int64_t kept = dense->width % 3;  // the first few stay as they are
    const at::Tensor read = up.narrow(0, kept, dense->width - kept), wrote = down.narrow(1, kept, dense->width - kept);
    const at::Tensor missing = -at::eye(a.width, at::kDouble) - at::matmul(wrote, read);
    const at::Tensor more = at::matmul(missing, at::linalg_pinv(read));
    down = at::cat({down.narrow(1, 0, kept), wrote + more}, 1);
  }
}

}  // namespace

void make_norms_constant(Architecture& architecture, Tensors& tensors) {
  constexpr double root = 1e14;
  const auto change = [&](Norm& norm, const ModuleId& module) {
    const bool normalises = norm.kind == NormKind::rms || norm.kind == NormKind::layer;
    norm.epsilon = normalises ? root * root : norm.epsilon;
    const auto gain = tensors.find(name_of(weight_of(module)));
    if (normalises && gain != tensors.end()) {
      gain->second = gain->second * root;
    }
  };
  for (const PlacedNorm& placed : norms_of(architecture)) {
    change(*placed.norm, placed.module);
  }
  for (int64_t n = 0; n < std::ssize(architecture.blocks); ++n) {
    if (std::optional<Norm>& heads = architecture.blocks[n].attention.qk_norm) {
      change(*heads, in_attention(n, Slot::query_norm));
      change(*heads, in_attention(n, Slot::key_norm));
    }
  }
}

// Generic weights; some matrices get rows of very different sizes, or almost lose their rank.
Tensors drawn_tensors(const Architecture& architecture, ArchitectureDraw& draw, uint64_t seed) {
  Tensors tensors = generic_tensors(architecture, seed);
  plant_absorbable(architecture, tensors);
  const bool hostile = draw.chance(0.4);
  for (auto& [name, tensor] : tensors) {
    const bool projection = name.find(".attention.") != std::string::npos && name.ends_with(".weight");
    if (!hostile || !projection || tensor.dim() != 2 || !draw.chance(0.5)) {
      continue;
    }
    if (draw.chance(0.5)) {
      const at::Tensor sizes = at::pow(10.0, at::linspace(-2, 1, tensor.size(0), at::kDouble)).unsqueeze(1);
      tensor = tensor * sizes;
    } else {
      const double nearly = std::pow(10.0, -static_cast<double>(draw.between(1, 14)));
      tensor[0].copy_(tensor[tensor.size(0) - 1] + nearly * tensor[0]);
    }
  }
  return tensors;
}

}  // namespace pare::test
