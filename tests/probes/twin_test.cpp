// Twins: the rules and the Jacobian agree on small twins of well-known models, and on random small models.

#include "pare/probes/twin.h"

#include <random>

#include "pare/arch/count.h"
#include "pare/arch/norms.h"
#include "pare/arch/presets.h"
#include "pare/arch/validate.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

// Small models of usual features, in any combination. What the passes' own draw has beside them is mostly too narrow
// somewhere for a count by symmetries, which the rules then say.
class SmallDraw {
 public:
  explicit SmallDraw(uint64_t seed) : random_(seed) {}

  Architecture draw() {
    Architecture a;
    a.name = "small";
    a.width = 6;
    a.vocab = 9;
    a.context = 8;
    a.embedding.position = chance(0.6) ? Position::learned : Position::none;
    a.embedding.types = chance(0.2) ? 2 : 0;
    normed_ = chance(0.7);
    gained_ = chance(0.6);
    norm_bias_ = chance(0.5);
    kind_ = chance(0.45) ? NormKind::layer : chance(0.8) ? NormKind::rms : NormKind::dyt;
    biases_ = chance(0.5);
    const bool parallel = a.embedding.position == Position::learned && chance(0.25);
    a.blocks.assign(2, block(parallel));
    if (chance(0.15)) {
      a.layers = std::vector<int64_t>{0, 1, 1};
    }
    if (normed_) {
      a.final_norm = norm();
    }
    a.head.tied = chance(0.4);
    a.head.bias = chance(0.3);
    return a;
  }

 private:
  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }
  Norm norm() const { return {.kind = kind_, .epsilon = 0.1, .gain = gained_, .bias = norm_bias_}; }

  Block block(bool parallel) {
    Block b;
    b.wiring = parallel ? Wiring::parallel : Wiring::serial;
    Attention& t = b.attention;
    t.heads = 2;
    t.kv_heads = chance(0.3) ? 1 : 2;
    t.head_width = 3;
    t.bias = {.query = biases_ && chance(0.8), .key = biases_, .value = biases_, .output = biases_ && chance(0.8)};
    if (chance(0.3)) {
      t.head_width = 4;
      t.rope = Rope{.theta = 100, .width = chance(0.5) ? 4 : 2};
    } else if (chance(0.2)) {
      t.qk_norm = Norm{.epsilon = 0.1, .gain = chance(0.5)};
    } else if (chance(0.15)) {
      t.softcap = 2;
    }
    Mlp m;
    m.kind = DenseMlp{.width = 8,
                      .activation = chance(0.2) && normed_ ? Activation::relu : Activation::gelu,
                      .gated = chance(0.4),
                      .bias = {.up = biases_, .down = biases_ && chance(0.8)}};
    if (normed_) {
      t.norm = norm();
      m.norm = norm();
    } else {
      t.skip = chance(0.7);
      m.skip = t.skip && chance(0.6);
    }
    b.mlp = m;
    return b;
  }

  std::mt19937_64 random_;
  bool normed_ = false, gained_ = false, norm_bias_ = false, biases_ = false;
  NormKind kind_ = NormKind::rms;
};

}  // namespace

TEST_CASE("the count of a well-known model is complete, by its twin") {
  for (const char* name : {"gpt2", "mistral-7b", "bert-base", "roberta-base", "albert-base", "opt-350m", "vit-b-16",
                           "gemma-2b", "skipless-mistral-7b"}) {
    CAPTURE(name);
    const TwinProof proof = prove_redundancy(find_preset(name).value());
    CHECK(proof.measured.parameters < 2000);
    CHECK(proof.measured.gap > least_gap);
    CHECK(proof.counted.total == proof.measured.redundant());
    CHECK(proof.is_complete());
  }
}

TEST_CASE("a twin keeps features and inequalities") {
  for (const std::string& name : preset_names()) {
    CAPTURE(name);
    const Architecture a = find_preset(name).value(), twin = small_twin(a);
    Problems problems;
    validate(twin, problems);
    CHECK(problems.empty());
    const Attention &before = a.blocks[0].attention, &after = twin.blocks[0].attention;
    CHECK((before.heads * before.head_width <=> a.width) == (after.heads * after.head_width <=> twin.width));
    CHECK((before.head_width < a.width) == (after.head_width < twin.width));
    CHECK((before.heads > before.kv_heads) == (after.heads > after.kv_heads));
    CHECK((a.vocab <=> a.width) == (twin.vocab <=> twin.width));
    CHECK(a.layers.has_value() == twin.layers.has_value());
    CHECK(redundancy(a).symmetries.size() == redundancy(twin).symmetries.size());
  }
}

TEST_CASE("count and Jacobian agree over random small models") {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    CAPTURE(seed);
    const Architecture a = SmallDraw(seed).draw();
    CAPTURE(architecture_to_json(a).dump());
    const Redundancy counted = redundancy(a);
    if (!counted.is_exact()) {
      continue;
    }
    const JacobianRank measured = jacobian_rank(a, seed);
    if (!measured.is_determined()) {
      continue;
    }
    ++compared;
    CHECK(measured.redundant() == counted.total);
  }
  CHECK(compared >= 22);
}

}  // namespace pare::test
