// Norms whose epsilon dwarfs their input: C diag(g/√ε) W and b + c W against plain algebra, every place where one can
// stand, what stays and why; bounds against what is measured; and that the prover follows, and only so far.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/algebra/constant_norms.h"
#include "pare/algebra/operations.h"
#include "pare/arch/norms.h"
#include "pare/passes/pass.h"
#include "pare/proof/norm_bounds.h"
#include "pare/rewrite/compatible.h"
#include "pare/search/prove.h"
#include "pare/support/error.h"
#include "tests/passes/helpers.h"
#include "tests/passes/random_architecture.h"

namespace pare::test {

namespace {

constexpr int64_t d = 8, L = 2, vocab = 19;

// Pre-norm throughout, with an epsilon that float64 cannot see a variance beside; patches change parts of it.
Architecture normed(const std::string& model = "{}", const std::string& attention = "{}", const std::string& mlp = "{}",
                    const std::string& wiring = "serial") {
  nlohmann::json block = nlohmann::json::parse(R"({
      "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms", "epsilon": 1e28}},
      "mlp": {"width": 11, "activation": "gelu", "norm": {"kind": "rms", "epsilon": 1e28}}})");
  block["repeat"] = L;
  block["wiring"] = wiring;
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  block["mlp"].merge_patch(nlohmann::json::parse(mlp));
  nlohmann::json patch = nlohmann::json::parse(R"({"final_norm": {"kind": "rms", "epsilon": 1e28}})");
  patch.merge_patch(nlohmann::json::parse(model));
  return small_architecture(d, block, patch.dump());
}

// Gains that make up for the epsilon, as in the models that are published so.
Tensors tensors_of(const Architecture& architecture, uint64_t seed = 0) {
  Tensors tensors = generic_tensors(architecture, seed);
  for (const auto& [module, epsilon] : large_epsilons(architecture)) {
    if (const auto gain = tensors.find(name_of(weight_of(module))); gain != tensors.end()) {
      gain->second = gain->second * std::sqrt(epsilon);
    }
  }
  return tensors;
}

Model model_of(const Architecture& architecture, uint64_t seed = 0) {
  return {architecture, as_weights(tensors_of(architecture, seed))};
}

Model stored_in(Model model, Dtype dtype) {
  for (auto& [name, weight] : model.weights) {
    weight = word(weight.dtype()).empty() ? weight : rounded(weight, dtype);
  }
  return model;
}

PassStep step_of(const Model& model, const std::string& head = "keep") {
  return run_passes(model, {call_of(find_pass("fold_constant_norm"), {{"head", head}})}).steps.at(0);
}

size_t norms_left(Architecture architecture) {
  return norms_of(architecture).size();
}

bool close(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && (a - b).abs().max().item<double>() <= 1e-13 * (1 + b.abs().max().item<double>());
}

const std::string layer = R"({"norm": {"kind": "layer", "bias": true, "epsilon": 1e28}})";
const std::string post = R"({"norm": {"kind": "layer", "place": "post", "bias": true, "epsilon": 1e28}})";
const std::string biased = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

}  // namespace

TEST_CASE("fold_constant_norm: every reader becomes C diag(g/√ε) W and b + c W") {
  const Architecture a = normed(
      R"({"final_norm": {"kind": "layer", "bias": true, "offset": 1, "epsilon": 1e28}})",
      R"({"norm": {"kind": "layer", "bias": true, "epsilon": 1e28}, )" + biased + "}",
      R"({"norm": {"kind": "layer", "bias": true, "epsilon": 1e28, "offset": 1}, "gated": true, "bias": {"up": true}})");
  const Tensors old = tensors_of(a);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  const Weights& after = step.proposal.after.weights;
  const at::Tensor centring = at::eye(d, at::kDouble) - 1.0 / d;
  const auto folded = [&](const std::string& norm, double offset, const std::vector<std::string>& readers) {
    CHECK_FALSE(after.contains(norm + ".weight"));
    CHECK_FALSE(after.contains(norm + ".bias"));
    const at::Tensor gain = at::diag(old.at(norm + ".weight") + offset) / 1e14, shift = old.at(norm + ".bias");
    for (const std::string& reader : readers) {
      INFO(reader);
      const at::Tensor w = old.at(reader + ".weight").t();  // [in, out]
      const at::Tensor b =
          old.contains(reader + ".bias") ? old.at(reader + ".bias") : at::zeros({w.size(1)}, w.options());
      CHECK(close(after.at(reader + ".weight").load().t(), at::matmul(at::matmul(centring, gain), w)));
      CHECK(close(after.at(reader + ".bias").load(), b + at::matmul(shift, w)));
    }
  };
  for (int64_t n = 0; n < L; ++n) {
    const std::string attention = fmt::format("blocks.{}.attention.", n), mlp = fmt::format("blocks.{}.mlp.", n);
    folded(attention + "norm", 0, {attention + "query", attention + "key", attention + "value"});
    folded(mlp + "norm", 1, {mlp + "up", mlp + "gate"});  // the gate had no bias
    CHECK(at::equal(after.at(mlp + "down.weight").load(), old.at(mlp + "down.weight")));
  }
  folded("norm", 1, {"head"});  // nor had the head
  CHECK(norms_left(step.proposal.after.architecture) == 0);
  CHECK(step.saved_parameters == (2 * L + 1) * 2 * d - L * 11 - vocab);
  CHECK(difference({a, as_weights(old)}, step.proposal.after) < 1e-13);
}

TEST_CASE("fold_constant_norm: the same function without the norms, wherever they stand") {
  struct Case {
    std::string name;
    Architecture architecture;
    int64_t saved;
    size_t left = 0;
  };
  const std::string output = R"({"norm": null, "output_norm": {"kind": "layer", "bias": true, "epsilon": 1e28}})";
  const auto embedding = [](const std::string& more) {
    return R"({"embedding": {"norm": {"kind": "layer", "bias": true, "epsilon": 1e28}, )" + more + "}}";
  };
  for (const Case& c : std::vector<Case>{
           {"rms", normed(), (2 * L + 1) * d},
           {"no gain at all", normed("{}", R"({"norm": {"kind": "layer", "epsilon": 1e28, "gain": false}})"),
            (L + 1) * d},
           {"tied: the last one stays", normed(R"({"head": {"tied": true}})"), 2 * L * d, 1},
           {"Gemma's offset", normed("{}", R"({"norm": {"kind": "rms", "offset": 1, "epsilon": 1e28}})"),
            (2 * L + 1) * d},
           {"biases that are created", normed("{}", layer, layer), (4 * L + 1) * d - L * (3 * d + 11)},
           {"rope, grouped heads", normed("{}", R"({"rope": {}, "kv_heads": 1})"), (2 * L + 1) * d},
           {"gate", normed("{}", R"({"gate": "position"})"), (2 * L + 1) * d},
           {"collapsed", normed("{}", R"({"scores": "collapsed", "values": "collapsed"})"), (2 * L + 1) * d},
           {"neuron heads", normed("{}", "{}", R"({"kind": "heads", "activation": null, "norm": {"bias": true}})"),
            (3 * L + 1) * d},
           {"parallel: one norm, five readers", normed("{}", "{}", R"({"norm": null})", "parallel"), (L + 1) * d},
           {"parallel, two norms", normed("{}", "{}", "{}", "parallel"), (2 * L + 1) * d},
           {"shared blocks", normed(R"({"layers": [0, 1, 0]})"), (2 * L + 1) * d},
           {"norms of outputs, into what writes them", normed("{}", output, output), (4 * L + 1) * d - 2 * L * d},
           {"norms of collapsed outputs",
            normed("{}", R"({"values": "collapsed", "norm": null, "output_norm": {"kind": "layer", "epsilon": 1e28}})"),
            (2 * L + 1) * d},
           {"an embedding's, into its positions", normed(embedding(R"("scale": 1.7)")), (2 * L + 3) * d},
           {"into its tokens", normed(embedding(R"("position": "none", "scale": 1.7)")), (2 * L + 3) * d},
           {"into its types", normed(embedding(R"("position": "none", "types": 2)")), (2 * L + 3) * d},
           {"into its projection", normed(embedding(R"("position": "none", "factor": 5)")), (2 * L + 3) * d - d},
           {"before its projection", normed(embedding(R"("factor": 5, "factor_scope": "sum")")),
            (2 * L + 1) * d + 10 - d},
           {"a head's transform",
            normed(R"({"head": {"transform": {"activation": "gelu", "norm": {"kind": "layer", "epsilon": 1e28}}}})"),
            (2 * L + 2) * d},
           {"post-norms without skips",
            normed("{}", R"({"skip": false, "norm": {"place": "post"}})",
                   R"({"skip": false, "norm": {"place": "post"}})"),
            (2 * L + 1) * d},
           {"two norms after one another",
            normed("{}", R"({"output_norm": {"kind": "rms", "epsilon": 1e28}, "skip": false})"), (3 * L + 1) * d},
           {"norms of queries and keys",
            normed("{}", R"({"rope": {}, "kv_heads": 1, "qk_norm": {"kind": "rms", "epsilon": 1e28}})"),
            (2 * L + 1) * d + L * 8},
           {"and with a mean and a bias",
            normed("{}", R"({"qk_norm": {"kind": "layer", "epsilon": 1e28, "bias": true}, "bias": {"query": true}})"),
            (2 * L + 1) * d + L * (16 - d)},
           {"with gains for each head",
            normed("{}", R"({"rope": {}, "qk_norm": {"kind": "rms", "epsilon": 1e28}, "qk_norm_over": "each_head"})"),
            (2 * L + 1) * d + L * 16},
           {"and a mean and a bias for each",
            normed("{}", R"({"qk_norm": {"kind": "layer", "epsilon": 1e28, "bias": true}, "qk_norm_over": "each_head",
                             "kv_heads": 1})"),
            (2 * L + 1) * d + L * 12},
           {"over all queries and all keys",
            normed("{}", R"({"qk_norm": {"kind": "layer", "epsilon": 1e28, "bias": true}, "qk_norm_over": "layer",
                             "kv_heads": 1})"),
            (2 * L + 1) * d + L * 12},
       }) {
    INFO(c.name);
    const Model before = model_of(c.architecture);
    const PassStep step = step_of(before);
    REQUIRE(step.proposal.applies);
    CHECK(norms_left(step.proposal.after.architecture) == c.left);
    CHECK(step.saved_parameters == c.saved);
    CHECK(difference(before, step.proposal.after) < 1e-12);
    const PassStep structure = step_of({.architecture = c.architecture});
    CHECK(structure.proposal.after.architecture == step.proposal.after.architecture);
    // For all inputs, and only as long as nobody touches it.
    for (const Dtype dtype : {Dtype::f64, Dtype::f32}) {
      const Model stored = stored_in(before, dtype);
      Model after = stored_in(step_of(stored).proposal.after, dtype);
      const Proof proof = prove(stored, after, at::kCPU);
      CHECK_MESSAGE(proof.complete, c.name, " in ", word(dtype), ": ", proof.gaps.empty() ? "" : proof.gaps.front());
      CHECK(proof.moved > 0);
      const std::string reader = after.weights.contains("blocks.1.mlp.up.weight") ? "up" : "query";
      Weight& touched = after.weights.at("blocks.1.mlp." + reader + ".weight");
      const at::Tensor numbers = touched.load().clone();
      numbers[3][5].mul_(1.001);
      touched = Weight::leaf("touched", dtype, touched.shape(), [numbers] { return numbers; });
      CHECK_FALSE(prove(stored, after, at::kCPU).complete);
    }
  }
}

TEST_CASE("fold_constant_norm: a scale is x diag(r g) + c, exactly, whatever its epsilon") {
  const auto scaled = [](const std::string& attention, const std::string& mlp) {
    nlohmann::json block = nlohmann::json::parse(R"({
        "attention": {"heads": 2, "head_width": 4, "norm": {"kind": "rms"}},
        "mlp": {"width": 11, "activation": "gelu", "norm": {"kind": "rms"}}})");
    block["repeat"] = L;
    block["attention"].merge_patch(nlohmann::json::parse(attention));
    block["mlp"].merge_patch(nlohmann::json::parse(mlp));
    return small_architecture(d, block, R"({"final_norm": {"kind": "rms"}, "head": {"tied": true}})");
  };
  const std::string output = R"({"output_norm": {"kind": "scale", "bias": true, "factor": 0.5, "epsilon": 9}})";
  const Architecture a = scaled(output, output);
  const Tensors old = generic_tensors(a, 0);
  const PassStep step = step_of({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  const Weights& after = step.proposal.after.weights;
  for (const std::string part : {"attention.output", "mlp.down"}) {
    for (int64_t n = 0; n < L; ++n) {
      const std::string name = fmt::format("blocks.{}.{}", n, part);
      const std::string norm = name.substr(0, name.rfind('.')) + ".output_norm";
      const at::Tensor factors = 0.5 * old.at(norm + ".weight");
      CHECK(close(after.at(name + ".weight").load(), factors.unsqueeze(1) * old.at(name + ".weight")));
      CHECK(close(after.at(name + ".bias").load(), old.at(norm + ".bias")));
    }
  }
  CHECK(step.saved_parameters == 2 * L * d);
  CHECK(difference({a, as_weights(old)}, step.proposal.after) < 1e-14);

  for (const Architecture& one : {
           a,
           scaled(R"({"output_norm": {"kind": "scale", "gain": false, "factor": -0.3}})", "{}"),
           scaled(R"({"norm": {"kind": "scale", "offset": 1}})", R"({"norm": {"kind": "scale", "factor": 4}})"),
           scaled(R"({"values": "collapsed", "output_norm": {"kind": "scale"}})", "{}"),
           scaled(R"({"norm": {"kind": "scale", "place": "post"}, "skip": false})", R"({"skip": false})"),
       }) {
    for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::bf16}) {
      const Model before = stored_in({one, as_weights(generic_tensors(one, 1))}, dtype);
      const PassStep made = step_of(before);
      REQUIRE(made.proposal.applies);
      CHECK(norms_left(made.proposal.after.architecture) < norms_left(one));
      Model candidate = stored_in(made.proposal.after, dtype);
      const Proof proof = prove(before, candidate, at::kCPU);
      CHECK_MESSAGE(proof.complete, word(dtype), ": ", proof.gaps.empty() ? "" : proof.gaps.front());
      const Model compat = stored_in(compatible(made.proposal.after, one), dtype);
      CHECK(norms_left(compat.architecture) == norms_left(one));
      CHECK(prove(before, compat, at::kCPU).complete);
      CHECK(difference(before, compat) < 1e3 * unit_roundoff(dtype));
      // Another factor, or another number in what took it, is another model.
      const std::string name = "blocks.1.attention.query.weight";
      const at::Tensor numbers = candidate.weights.at(name).load().clone();
      numbers[3][5].mul_(1.1);
      candidate.weights.at(name) = Weight::leaf("touched", dtype, numbers.sizes().vec(), [numbers] { return numbers; });
      CHECK_FALSE(prove(before, candidate, at::kCPU).complete);
    }
  }
  Architecture other = scaled(R"({"output_norm": {"kind": "scale", "factor": 0.5}})", "{}");
  const Model half{other, as_weights(generic_tensors(other, 2))};
  other.blocks[0].attention.output_norm->factor = 0.25;
  CHECK_FALSE(prove(half, {other, half.weights}, at::kCPU).complete);
}

TEST_CASE("fold_constant_norm: a tied head is untied only when asked, and that is counted") {
  const Architecture a = normed(R"({"head": {"tied": true}, "final_norm": {"kind": "layer", "bias": true}})");
  const Model before = model_of(a);
  CHECK(has_reason(step_of(before), "norm: the head is tied to the embedding"));
  const PassStep step = step_of(before, "untie");
  CHECK(norms_left(step.proposal.after.architecture) == 0);
  CHECK(step.saved_parameters == (2 * L + 2) * d - vocab * d - vocab);
  CHECK(step.proposal.notes.back() ==
        fmt::format("the head has a matrix of its own, to take norm: {} parameters more", vocab * d + vocab - 2 * d));
  CHECK(difference(before, step.proposal.after) < 1e-13);
  CHECK(prove(before, step.proposal.after, at::kCPU).complete);
  for (const Precondition& p : step_of(before).proposal.preconditions) {
    CHECK((p.holds || p.remedy == fmt::format("head=untie, which costs {} parameters", vocab * d + vocab - 2 * d)));
  }
}

TEST_CASE("fold_constant_norm: what stays, and why") {
  struct Refusal {
    std::string name;
    Architecture architecture;
    std::string reason;
  };
  for (const Refusal& r : std::vector<Refusal>{
           {"an ordinary epsilon", normed(R"({"final_norm": {"epsilon": 1e-5}})"),
            "norm: it is a norm, with an epsilon of 1 or less"},
           {"DyT", normed(R"({"final_norm": {"kind": "dyt"}})"), "norm: it is a norm, with an epsilon of 1 or less"},
           {"post-norms", normed("{}", post, post), "blocks.0.attention.norm: blocks.0.mlp.norm reads it"},
           {"identity reader", normed("{}", R"({"query": "identity"})"),
            "blocks.1.attention.norm: blocks.1.attention.query has no matrix"},
           {"an encoder's last norm", normed(R"({"task": "encoder"})", R"({"mask": "full"})"),
            "norm: it is the model's answer (hidden)"},
           {"a slim cache takes a bias off again",
            normed("{}", R"({"norm": {"bias": true}, "cache": "k", )" + biased + "}"),
            "blocks.0.attention.norm: blocks.0.attention.key.weight cannot"},
           {"computed positions",
            normed(R"({"embedding": {"position": "sinusoidal", "norm": {"kind": "rms", "epsilon": 1e28}}})",
                   R"({"norm": null, "query": "identity"})"),
            "embed.norm: blocks.0.attention.query has no matrix"},
           {"beside a norm that stays", normed("{}", R"({"query": "identity"})", "{}", "parallel"),
            "blocks.0.mlp.norm: blocks.0.attention.norm stays, and the MLP would read what it writes"},
           {"keys that are the queries",
            normed("{}", R"({"query": "key", "qk_norm": {"kind": "rms", "epsilon": 1e28}})"),
            "blocks.0.attention.query_norm: queries, keys and values are not matrices of their own"},
       }) {
    INFO(r.name);
    const Model before = model_of(r.architecture);
    const PassStep step = step_of(before);
    CHECK_MESSAGE(has_reason(step, r.reason),
                  fmt::format("{}", reasons_of(step).empty() ? "" : reasons_of(step).back()));
    if (step.proposal.applies) {
      CHECK(difference(before, step.proposal.after) < 1e-13);
    }
  }
  const PassStep bare = step_of(model_of(normed(R"({"final_norm": null})", R"({"norm": null})", R"({"norm": null})")));
  CHECK(reasons_of(bare) == std::vector<std::string>{"model: it has no norms"});
}

TEST_CASE("fold_constant_norm: an epsilon that does not dwarf the variance in the stored type is refused") {
  // Variances here are near one: 1e12 leaves 5e-13 of them, which float32 cannot see and float64 can.
  for (const auto& [epsilon, dtype, folds] : {std::tuple(1e12, Dtype::f32, true),
                                              {1e12, Dtype::f64, false},
                                              {1e4, Dtype::f32, false},
                                              {1e7, Dtype::bf16, true},
                                              {1e28, Dtype::f64, true}}) {
    CAPTURE(epsilon);
    CAPTURE(word(dtype));
    Architecture a = normed();
    for (const PlacedNorm& placed : norms_of(a)) {
      placed.norm->epsilon = epsilon;
    }
    const Model before = stored_in(model_of(a), dtype);
    const PassStep step = step_of(before);
    CHECK(step.proposal.applies == folds);
    for (const Precondition& p : step.proposal.preconditions) {
      CHECK(p.holds == folds);
      CHECK((p.measured.value() <= p.limit.value()) == folds);
    }
    if (folds) {
      CHECK(difference(before, step.proposal.after) < 16 * unit_roundoff(dtype));
    }
  }
}

TEST_CASE("fold_constant_norm: where only samples say that the variance is small, nothing is proved") {
  Architecture a = normed("{}", "{}", R"({"bias": {"up": true}})");
  for (const PlacedNorm& placed : norms_of(a)) {
    placed.norm->epsilon = 1e12;
  }
  Tensors tensors = tensors_of(a);
  // GELU of -40 is zero: what these neurons write, however large their matrices are, is nothing.
  tensors.at("blocks.0.mlp.up.bias").fill_(-40);
  tensors.at("blocks.0.mlp.up.weight").mul_(1e-3);
  tensors.at("blocks.0.mlp.down.weight").mul_(1e6);
  const Model before = stored_in({a, as_weights(tensors)}, Dtype::f32);
  const double limit = unseen_share(unit_roundoff(Dtype::f32));
  const std::map<ModuleId, EpsilonShare> shares = epsilon_shares(before, limit);
  CHECK(shares.at(in_attention(0, Slot::norm)).for_all);
  CHECK_FALSE(shares.at(in_attention(1, Slot::norm)).for_all);
  CHECK(shares.at(in_attention(1, Slot::norm)).most <= limit);
  const PassStep step = step_of(before);
  REQUIRE(step.proposal.applies);
  CHECK(norms_left(step.proposal.after.architecture) == 0);
  CHECK(step.proposal.notes.front().ends_with("on sampled inputs, so nothing is proved for all"));
  const Proof proof = prove(before, stored_in(step.proposal.after, Dtype::f32), at::kCPU);
  CHECK_FALSE(proof.complete);
  CHECK(std::count(proof.gaps.begin(), proof.gaps.end(),
                   "blocks.1.attention.norm: nothing bounds its input for all inputs to what its epsilon of 1e+12 "
                   "dwarfs") == 1);
}

TEST_CASE("fold_constant_norm: compat puts norms back that do nothing, or says why none can stand there") {
  const std::string both = R"({"norm": {"kind": "layer", "bias": true, "epsilon": 1e28}, )" + biased + "}";
  const Architecture a = normed(R"({"head": {"tied": true}})", both, layer);
  const Model before = model_of(a);
  Model after = step_of(before).proposal.after;
  const Model written = compatible(after, a);
  CHECK(norms_left(written.architecture) == 2 * L + 1);
  CHECK(at::equal(written.weights.at("blocks.1.mlp.norm.weight").load(), at::full({d}, 1e14, at::kDouble)));
  CHECK(at::equal(written.weights.at("blocks.1.mlp.norm.bias").load(), at::zeros({d}, at::kDouble)));
  CHECK(difference(before, written) < 1e-12);
  CHECK(prove(before, written, at::kCPU).complete);

  const auto refusal = [](const Model& model, const Architecture& source) -> std::string {
    try {
      compatible(model, source);
    } catch (const Refused& refused) {
      return refused.what();
    }
    return "";
  };
  const std::string gone = ": the norm is gone, and one that does nothing cannot stand there: ";
  // A reader that sees the mean again, as behind a change of basis.
  Weight& up = after.weights.at("blocks.1.mlp.up.weight");
  const at::Tensor other = up.load() + 0.1;
  up = Weight::leaf("other", Dtype::f64, up.shape(), [other] { return other; });
  CHECK(refusal(after, a) == "blocks.1.mlp.norm" + gone + "it would take the mean off, which its readers see");
  const auto refusal_of = [&](const Architecture& b) { return refusal(step_of(model_of(b)).proposal.after, b); };
  CHECK(refusal_of(normed("{}", R"({"norm": {"kind": "rms", "epsilon": 1e28, "gain": false}})"))
            .ends_with(gone + "it has no gain to make up for its epsilon"));
  CHECK(refusal_of(normed("{}", R"({"norm": null, "output_norm": {"kind": "layer", "epsilon": 1e28}})"))
            .ends_with(gone + "more than matrices reads it"));
  CHECK(refusal_of(normed("{}", R"({"qk_norm": {"kind": "layer", "epsilon": 1e28}})"))
            .ends_with(gone + "it would take the mean off each head"));
}

TEST_CASE("bounds of norms' inputs hold for whatever is asked") {
  int64_t compared = 0;
  double closest = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    ArchitectureDraw draw(seed);
    const Architecture a = draw.draw();
    const Model model{a, as_weights(drawn_tensors(a, draw, seed))};
    const std::map<ModuleId, double> most = largest_mean_squares(model, std::numeric_limits<double>::infinity());
    Taps taps;
    taps.record("residual.*");
    Executor(model, at::kDouble).forward(random_inputs(a, 3, std::min<int64_t>(a.context, 6), seed), nullptr, &taps);
    const auto compare = [&](const std::optional<Norm>& norm, const ModuleId& module, const std::string& point) {
      if (!norm || norm->place != NormPlace::pre || !most.contains(module)) {
        return;
      }
      const double seen = taps.recorded().at(point).square().mean(-1).max().item<double>();
      CHECK_MESSAGE(seen <= most.at(module),
                    fmt::format("seed {}: {}: {} > {}", seed, name_of(module), seen, most.at(module)));
      compared += std::isfinite(most.at(module)) ? 1 : 0;
      closest = std::max(closest, seen / most.at(module));
    };
    const std::vector<int64_t> order = layer_blocks(a);
    for (size_t layer = 0; layer < order.size(); ++layer) {
      const Block& block = a.blocks[order[layer]];
      const std::string before = fmt::format("residual.{}", layer);
      if (!is_tabled(a, order[layer])) {
        compare(block.attention.norm, in_attention(order[layer], Slot::norm), before);
      }
      if (block.mlp) {
        compare(block.mlp->norm, in_mlp(order[layer], Slot::norm),
                block.wiring == Wiring::parallel ? before : before + ".mid");
      }
    }
    compare(a.final_norm, final_norm, fmt::format("residual.{}", order.size()));
  }
  CHECK(compared > 50);
  CHECK(closest > 0.5);  // and are not just large
}

}  // namespace pare::test
