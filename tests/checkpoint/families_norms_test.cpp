// Families whose norms or multipliers are their own (Granite, OLMo 2 and 3, Cohere, StableLM), on configurations and
// tensor names as transformers 5.22.2 saved them.

#include <fmt/format.h>

#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

const std::string matrices = R"(
model.embed_tokens.weight 11,16
model.layers.0.mlp.down_proj.weight 16,20
model.layers.0.mlp.gate_proj.weight 20,16
model.layers.0.mlp.up_proj.weight 20,16
model.layers.0.self_attn.k_proj.weight 8,16
model.layers.0.self_attn.o_proj.weight 16,16
model.layers.0.self_attn.q_proj.weight 16,16
model.layers.0.self_attn.v_proj.weight 8,16
model.norm.weight 16
)";
const std::string head = "lm_head.weight 11,16\n";
const std::string norm_before = "model.layers.0.input_layernorm.weight 16\n";
const std::string norm_between = "model.layers.0.post_attention_layernorm.weight 16\n";
const std::string olmo_norms = norm_between +
                               "model.layers.0.post_feedforward_layernorm.weight 16\n"
                               "model.layers.0.self_attn.k_norm.weight 8\nmodel.layers.0.self_attn.q_norm.weight 16\n";
const std::string layer_norm_biases =
    "model.norm.bias 16\nmodel.layers.0.input_layernorm.bias 16\nmodel.layers.0.post_attention_layernorm.bias 16\n";
const std::string norms_of_heads =
    "model.layers.0.self_attn.k_layernorm.norms.0.weight 8\nmodel.layers.0.self_attn.q_layernorm.norms.0.weight 8\n"
    "model.layers.0.self_attn.q_layernorm.norms.1.weight 8\n";
const std::string stablelm_tensors = matrices + head + norm_before + norm_between + layer_norm_biases + norms_of_heads;

json small(const char* type, json more = json::object()) {
  json config = {
      {"model_type", type},       {"hidden_size", 16},      {"intermediate_size", 20}, {"num_attention_heads", 2},
      {"num_key_value_heads", 1}, {"num_hidden_layers", 1}, {"vocab_size", 11},        {"max_position_embeddings", 16}};
  config.update(more);
  return config;
}

json stablelm() {
  return small("stablelm", {{"qk_layernorm", true}});
}

// Where each layer has a window, and where each turns.
std::string kinds(const Architecture& a) {
  std::string kinds;
  for (const Block& block : a.blocks) {
    kinds += block.attention.window ? "w" : "-";
    kinds += block.attention.rope ? "r" : "-";
    kinds += block.attention.rope && block.attention.rope->scaling ? "s " : " ";
  }
  return kinds;
}

json deep(const char* type, json more = json::object()) {
  more["num_hidden_layers"] = 5;
  return small(type, std::move(more));
}

}  // namespace

TEST_CASE("Granite, OLMo 2 and 3, Cohere, StableLM: names and configurations are what they were") {
  const json tied = {{"tie_word_embeddings", true}}, norms = {{"use_qk_norm", true}};
  for (const FamilySample& sample : std::vector<FamilySample>{
           {"granite", small("granite", {{"residual_multiplier", 0.22}, {"logits_scaling", 7.3}}),
            matrices + head + norm_before + norm_between},
           {"granite, tied", small("granite", tied), matrices + norm_before + norm_between},
           {"olmo2", small("olmo2"), matrices + head + olmo_norms},
           {"olmo3", small("olmo3"), matrices + head + olmo_norms},
           {"cohere", small("cohere"), matrices + norm_before},
           {"cohere, norms", small("cohere", norms),
            matrices + norm_before +
                "model.layers.0.self_attn.k_norm.weight 1,8\nmodel.layers.0.self_attn.q_norm.weight 2,8\n"},
           {"cohere2", small("cohere2"), matrices + norm_before},
           {"stablelm, norms", stablelm(), stablelm_tensors}}) {
    check_round_trip(sample);
  }
}

TEST_CASE("Granite's numbers stand where they multiply") {
  const json numbers = {{"embedding_multiplier", 12},
                        {"attention_multiplier", 0.125},
                        {"residual_multiplier", 0.22},
                        {"logits_scaling", 8}};
  const Architecture a = architecture_of(small("granite", numbers));
  CHECK(a.embedding.scale == 12);
  CHECK(a.blocks[0].attention.scale == 0.125);
  CHECK(a.blocks[0].attention.output_norm == Norm{.kind = NormKind::scale, .gain = false, .factor = 0.22});
  CHECK(a.blocks[0].mlp->output_norm == a.blocks[0].attention.output_norm);
  CHECK(a.head.scale == 0.125);
  json classifier = numbers;
  classifier["architectures"] = {"GraniteModel"};
  CHECK(architecture_of(small("granite", classifier)).head.scale == 1);  // there are no logits
  // 1 is the default, also of scores: not 1 / sqrt(head_width).
  CHECK(architecture_of(small("granite")).blocks[0].attention.scale == 1.0);
  CHECK_FALSE(architecture_of(small("granite")).blocks[0].attention.output_norm);
  for (double divisor : {3.0, 7.3, 1e-3, 0.1}) {
    CHECK(survives(small("granite", {{"logits_scaling", divisor}})));
  }
}

TEST_CASE("windows, and what turns how") {
  CHECK(kinds(architecture_of(deep("cohere2"))) == "wr wr wr -- wr ");
  CHECK(kinds(architecture_of(deep("cohere2", {{"sliding_window_pattern", 2}}))) == "wr -- wr -- wr ");
  const json types = {"full_attention", "sliding_attention", "full_attention", "full_attention", "sliding_attention"};
  CHECK(kinds(architecture_of(deep("cohere2", {{"layer_types", types}}))) == "-- wr -- -- wr ");
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 8}};
  CHECK(kinds(architecture_of(deep("olmo3", {{"rope_scaling", yarn}}))) == "wr wr wr -rs wr ");
  for (const char* type : {"cohere2", "olmo3"}) {
    CHECK(survives(deep(type)));
    CHECK(survives(deep(type, {{"layer_types", types}})));
    const json none = {"full_attention", "full_attention", "full_attention", "full_attention", "full_attention"};
    CHECK(survives(deep(type, {{"layer_types", none}})));
    CHECK(contains(message_of<InputError>([&] {
                     architecture_of(deep(type, {{"sliding_window", nullptr}}));
                   }),
                   "has a window even where no layer uses it"));
  }
  CHECK(survives(deep("olmo3", {{"rope_scaling", yarn}})));
  // Of older files transformers gives layers with a window no other base than the usual one.
  const Architecture older = architecture_of(deep("olmo3", {{"rope_theta", 100.0}}));
  CHECK(older.blocks[0].attention.rope->theta == 500000);
  CHECK(older.blocks[3].attention.rope->theta == 100);
}

TEST_CASE("gains that are stored head by head") {
  Weights stored = random_weights(stablelm_tensors);
  const Opened model = open(stablelm(), stored);
  const at::Tensor gains = model.weights.at("blocks.0.attention.query_norm.weight").load();
  REQUIRE(gains.sizes() == at::IntArrayRef({2, 8}));
  for (int64_t one = 0; one < 2; ++one) {
    const std::string name = fmt::format("model.layers.0.self_attn.q_layernorm.norms.{}.weight", one);
    CHECK(at::equal(gains[one], stored.at(name).load()));
    CHECK(bound_names(*model.family, model.architecture, stored).at(name).in_file == name);
  }

  const std::string second = "model.layers.0.self_attn.q_layernorm.norms.1.weight";
  Weights other = stored;
  other[second] = weight_of(at::randn({8}, at::kDouble));
  CHECK(contains(refusal(stablelm(), other), "is stored as F64, but that of the first head as F32"));
  other[second] = weight_of(at::randn({4}, at::kFloat));
  CHECK(contains(refusal(stablelm(), other), "norms.1.weight' has shape [4], expected [8]"));
  other.erase(second);
  CHECK(contains(refusal(stablelm(), other), "a tensor is missing: '" + second));
  other = stored;
  other["model.layers.0.self_attn.q_layernorm.norms.2.weight"] = weight_of(at::randn({8}, at::kFloat));
  CHECK(contains(refusal(stablelm(), other), "a tensor is unexpected"));
  CHECK(contains(refusal(small("stablelm"), stored), "3 tensors are unexpected"));
}
