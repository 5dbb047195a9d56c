// Paper 1 against its table of merged matrices, what parallel blocks leave, and the passes as a list: their order, and
// what `auto` takes.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, f = 11, V = 19, L = 3;

// No skip and no norm. Patches change parts of it; "null" is no MLP.
Architecture skipless(const std::string& model = "{}", const std::string& attention = "{}",
                      const std::string& mlp = "{}", const std::string& wiring = "serial", int64_t blocks = L) {
  nlohmann::json block = nlohmann::json::parse(R"({"attention": {"heads": 2, "head_width": 4, "skip": false},
      "mlp": {"width": 11, "activation": "gelu", "skip": false}})");
  block["repeat"] = blocks;
  block["wiring"] = wiring;
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json text = {{"width", d}, {"vocab", V}, {"context", 12}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = nlohmann::json::array({block});
  text.merge_patch(nlohmann::json::parse(model));
  return architecture_from_json(text, "test");
}

Model model_of(const Architecture& architecture, uint64_t seed = 3) {
  return {architecture, as_weights(generic_tensors(architecture, seed))};
}

PassStep step_of(const Model& model, const Options& options = {}) {
  return run_passes(model, {call_of(find_pass("merge_skipless"), options)}).steps.at(0);
}

void check_same(const Model& before, const Model& after, double roundings) {
  CHECK(difference(before, after) <= 1e-13 * std::max(1.0, roundings));
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= 1e-9 * (1 + b.abs().max().item<double>());
}

const std::string tied = R"({"head": {"tied": true}})";
const std::string output_bias = R"({"bias": {"output": true}})";

}  // namespace

// The output matrices could still go, but the query was asked for: there is none, and that is the reason.
TEST_CASE("merge_skipless: a target that is gone in every block is refused, not met with an internal error") {
  const Model model = model_of(skipless("{}", R"({"query": "identity"})"));
  const PassStep step = step_of(model, {{"target", "q"}});
  CHECK_FALSE(step.proposal.applies);
  REQUIRE(step.proposal.preconditions.size() == L);
  for (const Precondition& precondition : step.proposal.preconditions) {
    CHECK_FALSE(precondition.holds);
    CHECK(precondition.found == "there is none");
  }
  CHECK(step_of(model).proposal.applies);
}

// Table 1 of the paper, column (b), written [in, out]. QK-norm keeps the heads from being put into a better gauge.
TEST_CASE("merge_skipless: the merged matrices are those of the paper's table") {
  const Architecture a = skipless(tied, R"({"qk_norm": {"kind": "rms"}, "bias": {"output": true}})",
                                  R"({"gated": true, "bias": {"up": true, "gate": true, "down": true}})");
  const Tensors old = generic_tensors(a);
  const PassStep step = step_of({a, as_weights(old)}, {{"target", "q"}});
  REQUIRE(step.proposal.applies);
  const auto now = [&](const std::string& name) { return step.proposal.after.weights.at(name + ".weight").load().t(); };
  const auto before = [&](const std::string& name) { return old.at(name + ".weight").t(); };
  const auto bias = [&](const std::string& name) { return step.proposal.after.weights.at(name + ".bias").load(); };

  CHECK(close(now("embed.token").t(), at::matmul(before("embed.token").t(), before("blocks.0.attention.query"))));
  for (int64_t n = 0; n < L; ++n) {
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    INFO(attention);
    const at::Tensor q = before(attention + "query"), p = before(attention + "output");
    CHECK(close(now(attention + "key"), at::linalg_solve(q, before(attention + "key"))));
    CHECK(close(now(attention + "value"), at::linalg_solve(q, before(attention + "value"))));
    for (const char* arm : {"up", "gate"}) {
      CHECK(close(now(mlp + arm), at::matmul(p, before(mlp + arm))));
      const at::Tensor moved = at::matmul(old.at(attention + "output.bias"), before(mlp + arm));
      CHECK(close(bias(mlp + arm), old.at(mlp + arm + ".bias") + moved));
    }
    // The next query, or the dual of the first for the tied head.
    const at::Tensor first = before("blocks.0.attention.query");
    const at::Tensor next = n + 1 < L ? before(fmt::format("blocks.{}.attention.query", n + 1))
                                      : at::linalg_solve(first, at::eye(d, at::kDouble)).t();
    CHECK(close(now(mlp + "down"), at::matmul(before(mlp + "down"), next)));
    CHECK(close(bias(mlp + "down"), at::matmul(old.at(mlp + "down.bias"), next)));
    for (const char* gone : {"query.weight", "output.weight", "output.bias"}) {
      CHECK_FALSE(step.proposal.after.weights.contains(attention + gone));
    }
  }
}

TEST_CASE("merge_skipless: the same function in exactly as many parameters less") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
    Options options = {};
  };
  const std::string biases = R"({"bias": {"query": true, "key": true, "value": true, "output": true}})";
  const std::string inner = R"({"bias": {"up": true, "down": true}})";
  for (const Case& c : std::vector<Case>{
           {"serial, untied", skipless(), 2 * L * d * d},
           {"serial, tied", skipless(tied), 2 * L * d * d},
           {"serial, target k", skipless(tied), 2 * L * d * d, {{"target", "k"}}},
           {"serial, target v", skipless("{}", biases, inner), 2 * L * d * d + L * d, {{"target", "v"}}},
           {"an output bias goes with its matrix", skipless("{}", biases, inner), 2 * L * d * d + L * d},
           {"where the MLP has no bias it gets one", skipless("{}", output_bias), 2 * L * d * d + L * (d - f)},
           {"or two", skipless("{}", output_bias, R"({"gated": true})"), 2 * L * d * d + L * (d - 2 * f)},
           {"grouped heads", skipless(tied, R"({"kv_heads": 1, "rope": {}})", R"({"gated": true})"), 2 * L * d * d},
           {"rope in part", skipless("{}", R"({"rope": {"width": 2, "layout": "interleaved"}})"), 2 * L * d * d},
           {"qk-norm, softcap, gate",
            skipless("{}", R"({"qk_norm": {"kind": "layer"}, "softcap": 0.8, "gate": "position"})"), 2 * L * d * d},
           {"neuron heads", skipless("{}", output_bias, R"({"kind": "heads", "activation": null})"),
            2 * L * d * d + L * d},
           {"one block three times", skipless(R"({"layers": [0, 0, 0]})", "{}", "{}", "serial", 1), 2 * d * d},
           {"sinusoidal positions", skipless(R"({"embedding": {"position": "sinusoidal"}})"), 2 * L * d * d - 12 * d},
           {"encoder", skipless(R"({"task": "encoder"})", R"({"mask": "full"})"), 2 * L * d * d},
           {"parallel, tied: L", skipless(tied, "{}", "{}", "parallel"), L * d * d},
           {"parallel, untied: L + 1", skipless("{}", biases, inner, "parallel"), (L + 1) * d * d},
           {"no MLP, untied: L + 1", skipless("{}", biases, "null"), (L + 1) * d * d},
           {"no MLP, tied: L", skipless(tied, "{}", "null"), L * d * d},
           {"final norm: the last P stays", skipless(R"({"final_norm": {"kind": "rms"}})", "{}", "{}", "parallel"),
            L * d * d},
       }) {
    INFO(c.name);
    const Model before = model_of(c.architecture);
    const PassStep step = step_of(before, c.options);
    REQUIRE(step.proposal.applies);
    CHECK(step.saved_parameters == c.saved);
    check_same(before, step.proposal.after, step.proposal.roundings);
    CHECK(step_of({.architecture = c.architecture}, c.options).saved_parameters == c.saved);
    const bool parallel = c.architecture.blocks[0].wiring == Wiring::parallel;
    CHECK(std::any_of(step.proposal.notes.begin(), step.proposal.notes.end(),
                      [](const std::string& note) { return note.starts_with("parallel blocks: "); }) == parallel);
  }
}

TEST_CASE("merge_skipless: P M needs no inverse, so any P goes") {
  const Architecture a = skipless();
  Tensors tensors = generic_tensors(a);
  at::Tensor& output = tensors["blocks.1.attention.output.weight"];
  output[0].copy_(output[1]);
  const Model before{a, as_weights(tensors)};
  const PassStep step = step_of(before);
  CHECK(step.saved_parameters == 2 * L * d * d);
  check_same(before, step.proposal.after, step.proposal.roundings);

  // In a parallel block the MLP writes beside P: there it would have to be inverted, and Q goes instead.
  const Architecture parallel = skipless("{}", "{}", "{}", "parallel");
  tensors = generic_tensors(parallel);
  tensors["blocks.2.attention.output.weight"][0].zero_();
  const PassStep without = step_of({parallel, as_weights(tensors)});
  CHECK(without.saved_parameters == L * d * d);
  check_same({parallel, as_weights(tensors)}, without.proposal.after, without.proposal.roundings);
}

TEST_CASE("merge_skipless: what it refuses, and how it says so") {
  struct Refusal {
    std::string name;
    Architecture architecture;
    std::string where, found;
  };
  const std::string skip = R"({"skip": true})", norm = R"({"norm": {"kind": "rms"}})";
  for (const Refusal& r : std::vector<Refusal>{
           {"attention skip", skipless("{}", skip), "blocks.0", "a skip around the attention"},
           {"MLP skip", skipless("{}", "{}", skip), "blocks.0", "a skip around the MLP"},
           {"both", skipless("{}", skip, skip), "blocks.0", "skips around attention and MLP"},
           {"parallel skip", skipless("{}", skip, "{}", "parallel"), "blocks.0", "a skip around the attention"},
           {"norms", skipless("{}", norm, norm), "blocks.0", "blocks.0.attention.norm writes it"},
           {"narrow heads", skipless("{}", R"({"heads": 1})"), "blocks.0.attention.query", "it is 4 x 8"},
           {"nothing left",
            skipless("{}", R"({"query": "identity", "key": "identity", "value": "identity", "output": "identity"})"),
            "blocks.0.attention.query", "there is none"},
       }) {
    INFO(r.name);
    const PassStep step = step_of(model_of(r.architecture));
    CHECK_FALSE(step.proposal.applies);
    CHECK(step.proposal.after.architecture == r.architecture);
    REQUIRE_FALSE(step.proposal.preconditions.empty());
    CHECK_FALSE(step.proposal.preconditions[0].holds);
    CHECK(step.proposal.preconditions[0].where == r.where);
    CHECK(step.proposal.preconditions[0].found == r.found);
  }
  // One skip in one block is enough, and only that block is named.
  Architecture mixed = skipless();
  mixed.blocks[1].mlp->skip = true;
  const PassStep step = step_of(model_of(mixed));
  CHECK_FALSE(step.proposal.applies);
  REQUIRE(step.proposal.preconditions.size() == 1);
  CHECK(step.proposal.preconditions[0].where == "blocks.1");
}

// A value bias folded after the output matrix is gone needs an output bias of its own again. And where the matrix
// before the head writes the stream itself, a tied table has one free basis at its two ends: eliminate_projection
// spends it on the first layer, and merge_skipless has to untie the head.
TEST_CASE("merge_skipless: what was asked for and is not there is said, also where its stream is free for another") {
  const Architecture a = skipless(R"({"layers": [0, 0]})", R"({"query": "key"})", "{}", "parallel", 1);
  const PassStep step = step_of(model_of(a), {{"target", "q"}});
  CHECK_FALSE(step.proposal.applies);
  REQUIRE_FALSE(step.proposal.preconditions.empty());
  CHECK(step.proposal.preconditions.back().where == "blocks.0.attention.query");
  CHECK(step.proposal.preconditions.back().found == "there is none");
}

TEST_CASE("run_passes: an order that loses is named, with the better one") {
  const auto warnings = [](const Architecture& a, const std::string& passes) {
    return run_passes({.architecture = a}, parse_passes(passes)).warnings;
  };
  const std::string biases = R"({"bias": {"value": true, "output": true}})", inner = R"({"bias": {"up": true}})";
  const Architecture a = skipless("{}", biases, inner);
  CHECK(warnings(a, "fold_value_bias,merge_skipless").empty());
  const std::vector<std::string> losing = warnings(a, "merge_skipless,fold_value_bias");
  REQUIRE(losing.size() == 1);
  CHECK(losing[0] == "this order saves 24 parameters less than 'fold_value_bias,merge_skipless{target=best}'");

  for (const std::string wiring : {"serial", "parallel"}) {
    for (const std::string& head : {std::string("{}"), tied}) {
      for (const std::string mlp : {"{}", "null"}) {
        INFO(wiring, " ", head, " ", mlp);
        const bool loses = head == tied && (wiring == "parallel" || mlp == "null");
        const std::vector<std::string> said =
            warnings(skipless(head, "{}", mlp, wiring), "eliminate_projection,merge_skipless");
        REQUIRE(said.size() == (loses ? 1 : 0));
        if (loses) {
          CHECK(said[0] == fmt::format("this order saves {} parameters less than "
                                       "'merge_skipless{{target=best}},eliminate_projection{{layer=all,target=best}}'",
                                       V * d - d * d));
        }
      }
    }
  }
}

TEST_CASE("run_passes: each pass starts from what the one before proposed, and a refusal changes nothing") {
  const Architecture a =
      skipless("{}", R"({"bias": {"key": true, "value": true, "output": true}})", R"({"bias": {"up": true}})");
  const Model before = model_of(a);
  const Pipeline all = run_passes(
      before, parse_passes("drop_key_bias,fold_value_bias,fold_norm_gain,merge_skipless,eliminate_projection"));
  REQUIRE(all.steps.size() == 5);
  const std::vector<int64_t> saved = {L * d, L * d, 0, 2 * L * d * d + L * d, 0};
  double squares = 0;
  for (size_t i = 0; i < 5; ++i) {
    CHECK(all.steps[i].saved_parameters == saved[i]);
    CHECK(all.steps[i].proposal.applies == (saved[i] > 0));
    squares += std::pow(all.steps[i].proposal.roundings, 2);
  }
  CHECK(all.roundings == doctest::Approx(std::sqrt(squares)));
  check_same(before, all.after, all.roundings);
}

namespace {

int64_t saved_by(const Pipeline& pipeline) {
  int64_t saved = 0;
  for (const PassStep& step : pipeline.steps) {
    saved += step.saved_parameters;
  }
  return saved;
}

// Of one pass of it; 0 where it was not taken.
int64_t saved_by(const Pipeline& pipeline, std::string_view pass) {
  for (const PassStep& step : pipeline.steps) {
    if (step.call.pass->id == pass) {
      return step.saved_parameters;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("choose_passes: as much as the budget allows, worst conditioned layers left out, with prediction and limit") {
  const Architecture a = skipless("{}", R"({"qk_norm": {"kind": "rms"}, "skip": true})");
  Tensors tensors = generic_tensors(a);
  for (const char* name : {"query", "key", "value"}) {  // no target of block 1 is any good
    at::Tensor& matrix = tensors[fmt::format("blocks.1.attention.{}.weight", name)];
    matrix[0].copy_(matrix[5] + 1e-6 * matrix[0]);
  }
  const Model before{a, as_weights(tensors)};
  const double u = unit_roundoff(Dtype::f64);
  const Pipeline plenty = choose_passes(before), tight = choose_passes(before, {1e4 * u});
  CHECK(saved_by(plenty, "eliminate_projection") == L * d * d);
  CHECK(plenty.roundings > 1e5);
  REQUIRE(tight.steps.size() == 2);
  CHECK(saved_by(tight, "eliminate_projection") == 2 * d * d);
  CHECK(saved_by(tight, "shrink_head_pairs") > 0);
  CHECK(tight.roundings <= 1e4);
  REQUIRE(tight.steps[0].proposal.notes.size() == 1);
  CHECK(tight.steps[0].proposal.notes[0].starts_with("blocks.1.attention."));
  CHECK(tight.steps[0].proposal.notes[0].find("predicted error") != std::string::npos);
  CHECK(tight.steps[0].proposal.notes[0].find("in float64, allowed 1.11e-12") != std::string::npos);
  check_same(before, tight.after, tight.roundings);
  const Pipeline nothing = choose_passes(before, {0.5 * u});
  CHECK(nothing.steps.empty());
  REQUIRE(nothing.left_out.size() == 2);
  CHECK(nothing.left_out[0].starts_with("eliminate_projection: blocks."));
  CHECK(nothing.left_out[1].starts_with("shrink_head_pairs: "));
  CHECK(nothing.left_out[1].find("predicted error") != std::string::npos);
}

TEST_CASE("choose_passes: the larger saving, and nothing that grows the model") {
  const Architecture serial = skipless(tied, R"({"bias": {"key": true}})");
  const Pipeline merged = choose_passes(model_of(serial));
  REQUIRE(merged.steps.size() == 3);
  CHECK(merged.steps[0].call.pass->id == "drop_key_bias");
  CHECK(merged.steps[1].call.pass->id == "merge_skipless");
  CHECK(merged.steps[2].call.pass->id == "shrink_head_pairs");  // of each layer one pair: the other has lost a matrix
  CHECK(saved_by(merged) == L * d + 2 * L * d * d + L * 2 * 4 * 4);

  const std::string skip = R"({"skip": true})";
  const auto eliminated = [&](const std::string& model) {
    return saved_by(choose_passes(model_of(skipless(model, skip, skip))), "eliminate_projection");
  };
  CHECK(eliminated(tied) == 0);  // untying costs more than a query
  CHECK(eliminated("{}") == d * d);
  // A value bias without an output bias to take it.
  const Pipeline unbiased =
      choose_passes(model_of(skipless("{}", R"({"bias": {"value": true}, "skip": true, "norm": {"kind": "dyt",
      "gain": false}, "kv_heads": 1})",
                                      skip)));
  CHECK(saved_by(unbiased, "fold_value_bias") == 0);
  CHECK(std::find(unbiased.saving_nothing.begin(), unbiased.saving_nothing.end(), "fold_value_bias") !=
        unbiased.saving_nothing.end());
}

TEST_CASE("choose_passes: a head is not untied for less than it costs") {
  const Architecture a = skipless(R"({"head": {"tied": true}, "final_norm": {"kind": "rms"}})",
                                  R"({"skip": true, "qk_norm": {"kind": "rms"}})");
  Tensors tensors = generic_tensors(a);
  CHECK(saved_by(choose_passes({a, as_weights(tensors)}), "eliminate_projection") == (L - 1) * d * d);
  for (const char* name : {"query", "key", "value"}) {
    at::Tensor& matrix = tensors[fmt::format("blocks.0.attention.{}.weight", name)];
    matrix[0].copy_(matrix[5] + 1e-6 * matrix[0]);
  }
  const Pipeline tight = choose_passes({a, as_weights(tensors)}, {1e4 * unit_roundoff(Dtype::f64)});
  CHECK(saved_by(tight, "eliminate_projection") == (L - 1) * d * d);
  CHECK(tight.after.architecture.head.tied);
}

// One head of width 5 of 8: collapsed, Q and K (80 numbers) are 64; shrunk, they are 80 - 25. With width 8 both
// save 64.
TEST_CASE("choose_passes: what takes more from others than it saves is left out, and said") {
  const auto headed = [](int64_t width) {
    return skipless("{}",
                    fmt::format(R"({{"heads": 1, "kv_heads": 1, "head_width": {}, "norm": {{"kind": "rms"}},
        "skip": true}})",
                                width),
                    R"({"norm": {"kind": "rms"}, "skip": true})");
  };
  const Pipeline narrow = choose_passes(model_of(headed(5)));
  CHECK(saved_by(narrow, "collapse_heads") == 0);
  CHECK(saved_by(narrow, "shrink_head_pairs") == L * 2 * 25);
  REQUIRE(narrow.left_out.size() == 1);
  CHECK(narrow.left_out[0] == fmt::format("collapse_heads: without it the others save {} parameters more", L * 2 * 9));
  CHECK(saved_by(choose_passes(model_of(headed(8))), "collapse_heads") == L * 2 * 64);
}

// Under RoPE only values and outputs shrink, so a value is the wrong one to eliminate, however well conditioned.
TEST_CASE("choose_passes: the matrix that goes is the one that leaves most to others") {
  const Architecture a = skipless("{}", R"({"skip": true, "rope": {}})");
  Tensors tensors = generic_tensors(a);
  for (int64_t n = 0; n < L; ++n) {
    at::Tensor& value = tensors[fmt::format("blocks.{}.attention.value.weight", n)];
    value = std::get<0>(at::linalg_qr(value));
  }
  const Pipeline chosen = choose_passes({a, as_weights(tensors)});
  CHECK(saved_by(chosen) == L * d * d + L * 2 * 4 * 4);
  for (const Block& block : chosen.after.architecture.blocks) {
    CHECK_FALSE(is<Identity>(block.attention.value));
  }
}

}  // namespace pare::test
