// What a table can say that no family says yet, and what every table has to keep.

#include "pare/checkpoint/family_table.h"

#include "pare/checkpoint/families/shared/decoder_heads.h"
#include "pare/checkpoint/fields.h"
#include "tests/checkpoint/family_samples.h"

using namespace pare;
using nlohmann::json;

namespace {

// Queries, keys and values in one matrix, one after the other, and so gate and up.
FamilyTable fused_table() {
  using namespace field;
  return {
      .model_type = "fused",
      .classes = "Fused",
      .base_prefix = "model.",
      .model = {.blocks = {{.attention = {.norm = rms_norm()},
                            .mlp = Mlp{.kind = DenseMlp{.gated = true}, .norm = rms_norm()}}},
                .final_norm = rms_norm()},
      .heads = decoder_heads({.tied = true, .tokens = "", .answers = ""}),
      .keys =
          {
              {{"hidden_size", "d_model"}, width, 8},
              {"vocab_size", vocab, 5},
              {"n_layers", layers, 2},
              {"n_heads", heads, 4},
              {"n_kv_heads", kv_heads, 2},
              {"inner", mlp_width},
              {"length", context, 16},
              {"eps", epsilon, 1e-6},
              {"window", window},
              {"rope_parameters", rope()},
          },
      .tensors =
          {
              {"wte", "embed.token"},
              {"h.{}.ln_1", "attention.norm"},
              {"h.{}.qkv", {"attention.query", "attention.key", "attention.value"}},
              {"h.{}.out", "attention.output", Stored::transposed},
              {"h.{}.ln_2", "mlp.norm"},
              {"h.{}.gate_up", {"mlp.gate", "mlp.up"}},
              {"h.{}.down", "mlp.down"},
              {"ln_f", "norm"},
          },
  };
}

}  // namespace

TEST_CASE("what every family says by itself it reads again") {
  for (const Family* family : families()) {
    CAPTURE(family->model_type);
    json config = {{"model_type", family->model_type}};
    if (family->model_type == "esm") {
      config["pad_token_id"] = 1;  // its class has no default that works
    } else if (family->model_type == "gemma3") {
      config["text_config"] = json::object();  // which describes the model
    }
    CHECK(survives(config));
    config["architectures"] = {family->bare_class};
    CHECK(survives(config));
  }
}

TEST_CASE("a table alone is a family: keys, defaults, what follows from others, fused matrices of unequal parts") {
  const Family family = make_family(fused_table());
  const Architecture a = read_architecture(family, {{"d_model", 16}, {"inner", 20}}, "config.json");
  CHECK(a.width == 16);
  CHECK(a.blocks.size() == 2);
  CHECK(a.blocks[1].attention.head_width == 4);
  CHECK(a.blocks[1].attention.kv_heads == 2);
  CHECK(!a.blocks[1].attention.window);
  CHECK(a.final_norm->epsilon == 1e-6);
  CHECK(read_architecture(family, json::object(), "config.json").blocks[0].attention.heads == 4);
  CHECK(dense_mlp(read_architecture(family, json::object(), "config.json").blocks[0]).width == 32);
  CHECK(read_architecture(family, {{"window", 3}}, "config.json").blocks[1].attention.window == 3);
  CHECK(family_config(family, a)["hidden_size"] == 16);
  CHECK(!family_config(family, a).contains("d_model"));

  const auto refused = [&](const json& config) {
    return message_of<InputError>([&] { read_architecture(family, config, "config.json"); });
  };
  CHECK(contains(refused({{"n_heads", 3}}), "n_heads 3 does not divide hidden_size 8"));
  CHECK(contains(refused({{"d_model", 4}, {"hidden_size", 8}}), "another name of the same setting"));
  CHECK(contains(refused({{"inner", 0}}), "inner is 0; expected a whole number from 1"));
  CHECK(contains(refused({{"rotary", 1}}), "'rotary'"));

  const Weights stored = random_weights(
      "model.wte.weight 5,16 model.h.0.ln_1.weight 16 model.h.0.qkv.weight 32,16 model.h.0.out.weight 16,16 "
      "model.h.0.ln_2.weight 16 model.h.0.gate_up.weight 40,16 model.h.0.down.weight 16,20 model.ln_f.weight 16 "
      "model.h.1.ln_1.weight 16 model.h.1.qkv.weight 32,16 model.h.1.out.weight 16,16 "
      "model.h.1.ln_2.weight 16 model.h.1.gate_up.weight 40,16 model.h.1.down.weight 16,20");
  const Weights ours = canonical_weights(family, a, stored, "model");
  const at::Tensor qkv = stored.at("model.h.1.qkv.weight").load(), both = stored.at("model.h.1.gate_up.weight").load();
  const auto is_rows = [&](const char* name, const at::Tensor& of, int64_t begin, int64_t end) {
    return at::equal(ours.at(name).load(), of.slice(0, begin, end));
  };
  CHECK(is_rows("blocks.1.attention.query.weight", qkv, 0, 16));
  CHECK(is_rows("blocks.1.attention.key.weight", qkv, 16, 24));
  CHECK(is_rows("blocks.1.attention.value.weight", qkv, 24, 32));
  CHECK(is_rows("blocks.1.mlp.gate.weight", both, 0, 20));
  CHECK(is_rows("blocks.1.mlp.up.weight", both, 20, 40));
  CHECK(at::equal(ours.at("blocks.0.attention.output.weight").load(), stored.at("model.h.0.out.weight").load().t()));
  for (const auto& [name, weight] : family_weights(family, a, ours)) {
    CAPTURE(name);
    CHECK(at::equal(weight.load(), stored.at(name).load()));
  }
}

TEST_CASE("a key of a table is known, also where nothing depends on it") {
  for (const char* kind : {"LlamaForCausalLM", "LlamaForTokenClassification"}) {
    const json config = {{"model_type", "llama"}, {"architectures", {kind}}, {"token_classification_bias", false}};
    CHECK(architecture_of(config).head.bias == false);
  }
  CHECK(architecture_of({{"model_type", "vit"}, {"pooler_act", "relu"}}).head.bias);
}

TEST_CASE("a family whose MLP is of another kind is told so, whatever the kind") {
  const Family family = make_family(fused_table());
  Architecture a = read_architecture(family, json::object(), "config.json");
  for (Block& block : a.blocks) {
    block.mlp->kind = NeuronHeads{.width = 7};
  }
  CHECK(contains(message_of<InputError>([&] { family_config(family, a); }), "blocks[0].mlp.kind is \"heads\""));
}

TEST_CASE("a field that was copied before it was made is found at once") {
  FamilyTable table = fused_table();
  table.keys.push_back({"early", Field{}});
  CHECK_THROWS_WITH(make_family(table), doctest::Contains("early has a field that is not there yet"));
}
