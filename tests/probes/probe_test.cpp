// The whole probe on small models: every form of the schema, against plain algebra on taps, and what is known of
// symmetries, of identical tokens and of models that break.

#include "pare/probes/probe_batches.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "pare/arch/presets.h"
#include "pare/probes/collapses.h"
#include "pare/support/error.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

const char* const encoder = R"({"task": "encoder", "width": 12, "vocab": 23, "context": 40,
  "embedding": {"position": "learned"}, "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 4,
  "mask": "full", "bias": {"query": true, "key": true, "value": true, "output": true},
  "norm": {"kind": "layer", "place": "post", "bias": true}},
  "mlp": {"width": 30, "activation": "gelu", "norm": {"kind": "layer", "place": "post", "bias": true}}}]})";

const char* const decoder = R"({"width": 12, "vocab": 23, "context": 40, "blocks": [{"repeat": 3,
  "attention": {"heads": 4, "kv_heads": 2, "head_width": 6, "rope": {"theta": 100}, "norm": {"kind": "rms"}},
  "mlp": {"width": 20, "activation": "silu", "gated": true, "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}})";

ProbeResults probed(const Architecture& a, const Tensors& tensors, const Inputs& inputs,
                    const Interventions& interventions = {}) {
  Probe probe({a, as_weights(tensors)}, {.interventions = interventions});
  for (const Inputs& batch : probe_batches({&inputs, 1}, a)) {
    probe.measure(batch);
  }
  return probe.results();
}

ProbeResults probed(const char* text, const Interventions& interventions = {}) {
  const Architecture a = parse(text);
  return probed(a, generic_tensors(a), random_inputs(a, 3, 10), interventions);
}

const PointMeasures& point(const ProbeResults& results, const std::string& name) {
  for (const PointMeasures& one : results.points) {
    if (one.name == name) {
      return one;
    }
  }
  FAIL("no point " << name);
  return results.points.front();
}

int64_t plain_rank(const at::Tensor& x, double threshold = 1e-3) {
  const at::Tensor values = at::linalg_svdvals(x);
  return (values > threshold * values[0]).sum().item<int64_t>();
}

// Mean over the rows of a batch.
double mean_rank(const at::Tensor& batch) {
  double sum = 0;
  for (int64_t row = 0; row < batch.size(0); ++row) {
    sum += static_cast<double>(plain_rank(batch[row]));
  }
  return sum / static_cast<double>(batch.size(0));
}

std::vector<std::string> names_of(const ProbeResults& results) {
  std::vector<std::string> names;
  for (const PointMeasures& one : results.points) {
    names.push_back(one.name);
  }
  return names;
}

}  // namespace

TEST_CASE("every architecture can be probed, and nothing in its document is NaN") {
  int64_t probed_models = 0;
  for (const auto* list : {&causal_architectures(), &ending_architectures(), &image_architectures()}) {
    for (const auto& [name, text] : *list) {
      CAPTURE(name);
      const Architecture a = parse(text);
      const ProbeResults results = probed(a, generic_tensors(a), random_inputs(a, 2, 9));
      CHECK(results.sequences == 2);
      CHECK(results.findings.size() == 4);
      CHECK(results.warnings.empty());
      const std::vector<std::string> names = names_of(results);
      CHECK(std::set<std::string>(names.begin(), names.end()).size() == names.size());
      for (const PointMeasures& one : results.points) {
        CAPTURE(one.name);
        CHECK(one.ranks.rank.count == 2);
      }
      for (const NormMeasures& norm : results.norms) {
        CHECK(norm.rank_change.count == 2);
      }
      for (const LayerMeasures& layer : results.layers) {
        CHECK(layer.corpus_rank);
        for (const HeadMeasures& head : layer.heads) {
          CHECK(head.entropy.count == 2);
          CHECK(head.distance_to_uniform.least > -1e-12);
          CHECK((head.asymmetry.has_value() || !head.no_asymmetry.empty()));
          if (head.asymmetry) {
            CHECK(*head.asymmetry >= 0);
            CHECK(*head.asymmetry <= 1 + 1e-12);
          }
        }
      }
      const std::string document = to_json(results).dump();  // a NaN would be written as null without a reason
      CHECK(document.find("null,\"std\":null,\"min\":null,\"max\":null,\"count\":0}") == std::string::npos);
      CHECK_FALSE(text_of(results, HeadRows::heads).empty());
      ++probed_models;
    }
  }
  CHECK(probed_models > 50);
}

TEST_CASE("points of a model with norms after the skip, in running order") {
  const ProbeResults results = probed(encoder);
  const std::vector<std::string> expected = {"residual.0",     "blocks.0.attention.output", "blocks.0.attention.norm",
                                             "residual.0.mid", "blocks.0.mlp.output",       "blocks.0.mlp.norm",
                                             "residual.1",     "blocks.1.attention.output", "blocks.1.attention.norm",
                                             "residual.1.mid", "blocks.1.mlp.output",       "blocks.1.mlp.norm",
                                             "residual.2"};
  CHECK(names_of(results) == expected);
  REQUIRE(results.norms.size() == 4);
  CHECK(results.points[results.norms[1].before].name == "blocks.0.mlp.norm");
  CHECK(results.points[results.norms[1].after].name == "residual.1");
}

TEST_CASE("points of a model with norms before its sublayers and at its end") {
  const ProbeResults results = probed(decoder);
  CHECK(names_of(results).size() == 3 * 6 + 2);
  REQUIRE(results.norms.size() == 7);
  CHECK(results.points[results.norms[0].before].name == "residual.0");
  CHECK(results.points[results.norms[0].after].name == "blocks.0.attention.input");
  CHECK(results.points[results.norms[6].after].name == "final");
  CHECK(results.norms[0].ones_outside.inapplicable == "RMSNorm subtracts no mean");
}

TEST_CASE("the numbers of a whole probe are those of plain algebra on what the executor recorded") {
  for (const char* text : {encoder, decoder}) {
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 3, 10);
    const ProbeResults results = probed(a, tensors, inputs);
    Taps taps;
    taps.record("*");
    double_model(a, tensors).forward(inputs, nullptr, &taps);
    const auto tap = [&](const std::string& name) { return taps.recorded().at(name); };
    for (const char* name : {"residual.0", "residual.1.mid", "blocks.1.mlp.output", "residual.2"}) {
      CHECK(point(results, name).ranks.rank.mean == doctest::Approx(mean_rank(tap(name))).epsilon(1e-12));
    }
    // Heads of layer 1, one by one.
    const at::Tensor probabilities = tap("blocks.1.attention.probabilities"), y = tap("blocks.1.attention.heads");
    const at::Tensor w = tensors.at("blocks.1.attention.output.weight");
    const Attention& t = a.blocks[1].attention;
    const int64_t k = t.head_width;
    for (int64_t h = 0; h < t.heads; ++h) {
      const HeadMeasures& head = results.layers[1].heads[h];
      double entropy = 0, gap = 0, dimension = 0;
      for (int64_t s = 0; s < 3; ++s) {
        const at::Tensor p = probabilities[s][h];
        entropy -= (p * (p + 1e-300).log()).sum(1).mean().item<double>() / 3;
        const at::Tensor values = at::linalg_svdvals(p);
        gap += (values[0] / values[1]).item<double>() / 3;
        dimension += static_cast<double>(plain_rank(at::matmul(y[s].select(1, h), w.narrow(1, h * k, k).t()))) / 3;
      }
      CHECK(head.entropy.mean == doctest::Approx(entropy).epsilon(1e-12));
      CHECK(head.gap.mean == doctest::Approx(gap).epsilon(1e-10));
      CHECK(head.output_dimension.mean == doctest::Approx(dimension).epsilon(1e-12));
      const at::Tensor q = tensors.at("blocks.1.attention.query.weight").narrow(0, h * k, k);
      const int64_t g = h * t.kv_heads / t.heads;
      const at::Tensor m = at::matmul(q.t(), tensors.at("blocks.1.attention.key.weight").narrow(0, g * k, k));
      CHECK(*head.asymmetry == doctest::Approx(((m - m.t()).norm() / (2 * m.norm())).item<double>()).epsilon(1e-12));
    }
    const at::Tensor together = at::matmul(y.flatten(2), w.t());
    CHECK(results.layers[1].multi_head_rank.mean == doctest::Approx(mean_rank(together)).epsilon(1e-12));
    CHECK(*results.layers[1].corpus_rank == plain_rank(together.flatten(0, 1)));
    CHECK(*results.layers[1].width_bound == 2.0 * 12 - static_cast<double>(plain_rank(together.flatten(0, 1))));
    CHECK(results.layers[1].recovery_ambiguity.mean == 10.0 * static_cast<double>((t.heads - 1) * k));
  }
}

TEST_CASE("prefixes: attention of a prefix is that of the prefix alone, whatever the mask") {
  for (const char* text : {encoder, decoder}) {
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 20);
    const ProbeResults results = probed(a, tensors, inputs);
    Inputs prefix = inputs;
    prefix.ids = inputs.ids.narrow(1, 0, 8);
    const ProbeResults alone = probed(a, tensors, prefix);
    const HeadMeasures& head = results.layers[1].heads[2];
    REQUIRE(head.by_context.size() == 3);  // 4, 8, 16
    CHECK(head.by_context[1].tokens == 8);
    CHECK(head.by_context[1].gap.mean == doctest::Approx(alone.layers[1].heads[2].gap.mean).epsilon(1e-10));
  }
}

TEST_CASE("means and spread do not depend on how sequences are batched, and padding is left out") {
  const Architecture a = parse(decoder);
  const Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 5, 8);
  const ProbeResults together = probed(a, tensors, inputs);
  Probe one_by_one({a, as_weights(tensors)}, {});
  for (int64_t row = 4; row >= 0; --row) {
    one_by_one.measure(rows_of(inputs, row, 1));
  }
  const Spread &first = point(together, "residual.3").ranks.effective_rank,
               &second = point(one_by_one.results(), "residual.3").ranks.effective_rank;
  CHECK(first.mean == doctest::Approx(second.mean).epsilon(1e-12));
  CHECK(*first.deviation() == doctest::Approx(*second.deviation()).epsilon(1e-9));
  CHECK(first.least == doctest::Approx(second.least).epsilon(1e-12));
  // Three tokens of padding before one row and behind another.
  Inputs padded;
  padded.ids = at::constant_pad_nd(inputs.ids.narrow(0, 0, 2), {3, 3});
  padded.mask = at::zeros({2, 14}, at::kBool);
  padded.mask.narrow(1, 3, 8).fill_(true);
  const ProbeResults of_padded = probed(a, tensors, padded), of_plain = probed(a, tensors, rows_of(inputs, 0, 2));
  CHECK(of_padded.tokens == 16);
  CHECK(point(of_padded, "final").ranks.stable_rank.mean ==
        doctest::Approx(point(of_plain, "final").ranks.stable_rank.mean).epsilon(1e-12));
}

TEST_CASE("identical tokens without positions stay at rank one for ever, with all residuals in place") {
  const Architecture a = parse(decoder);
  Inputs same;
  same.ids = at::full({2, 9}, 5, at::kLong);
  const ProbeResults results = probed(a, generic_tensors(a), same);
  for (const PointMeasures& one : results.points) {
    CHECK(one.ranks.rank.most == 1);
    CHECK(one.ranks.affine_rank.most == 0);
    CHECK(one.ranks.distance_to_rank_one.most < 1e-12);
  }
  // They were of rank one when they went in: nothing of that is the model's doing.
  for (const size_t collapse : {0, 1, 3}) {
    CHECK(results.findings[collapse].verdict == CollapseVerdict::undetermined);
    CHECK(results.findings[collapse].undecided.find("one direction before the first layer") != std::string::npos);
  }
  CHECK(results.findings[2].verdict == CollapseVerdict::structural);
  // Two sequences in three that differ are enough to see.
  Inputs mixed = random_inputs(a, 3, 9);
  mixed.ids[0].fill_(5);
  CHECK(probed(a, generic_tensors(a), mixed).findings[0].undecided.empty());
}

TEST_CASE("a model that does collapse is called so, by what goes in") {
  const Architecture a = parse(encoder);
  const ProbeResults results = probed(a, generic_tensors(a), random_inputs(a, 2, 9), {.zero_gains = 1});
  CHECK(results.findings[0].verdict == CollapseVerdict::collapsed);
  CHECK(results.findings[0].undecided.empty());
}

TEST_CASE("sequences are measured in their order, but for a few that wait for others of their length") {
  const Architecture a = parse(decoder);
  std::vector<Inputs> sequences;
  for (int64_t i = 0; i < 200; ++i) {  // short ones among long ones, and a single one of a length of its own
    const int64_t tokens = i == 3 ? 7 : i % 3 == 0 ? 2 : 9;
    sequences.push_back({.ids = at::full({1, tokens}, i % 23, at::kLong)});
    sequences.back().ids[0][0] = i / 23;  // together its number
  }
  std::vector<int64_t> numbers;
  for (const Inputs& batch : probe_batches(sequences, a)) {
    CHECK(batch.ids.size(0) <= 16);
    for (int64_t row = 0; row < batch.ids.size(0); ++row) {
      numbers.push_back(batch.ids[row][0].item<int64_t>() * 23 + batch.ids[row][1].item<int64_t>());
    }
  }
  REQUIRE(numbers.size() == 200);
  for (int64_t place = 0; place < 200; ++place) {
    CHECK(std::abs(numbers[place] - place) <= most_waiting);
  }
  CHECK(std::set<int64_t>(numbers.begin(), numbers.end()).size() == 200);
}

TEST_CASE("long sequences come one by one, short ones together") {
  const Architecture a = find_preset("bert-base").value();
  const auto largest = [&a](int64_t tokens) {
    const Inputs inputs{.ids = at::zeros({20, tokens}, at::kLong)};
    return probe_batches({&inputs, 1}, a).front().ids.size(0);
  };
  CHECK(largest(8) == 16);
  CHECK(largest(64) > 1);
  CHECK(largest(64) < 16);
  CHECK(largest(512) == 1);
}

TEST_CASE("a batch tells how much of it is behind, layer by layer, and an interrupt there counts none of it") {
  for (const auto& [text, gauge] : {std::pair{encoder, false}, {encoder, true}, {decoder, true}}) {
    const Architecture a = parse(text);
    Probe probe({a, as_weights(generic_tensors(a))}, {.interventions = {.permute_heads = gauge}});
    std::vector<double> told;
    probe.measure(random_inputs(a, 2, 10), [&told](double share) { told.push_back(share); });
    const size_t layers = layer_blocks(a).size(), prefixes = text == encoder ? 2 : 0;  // of 4 and 8 tokens
    REQUIRE(told.size() == layers * (1 + prefixes + (gauge ? 1 : 0)));
    CHECK(std::is_sorted(told.begin(), told.end()));
    CHECK(told.front() > 0);
    CHECK(told.back() == 1);
    const auto stop = [](double share) {
      if (share == 1) {
        throw Interrupted();
      }
    };
    CHECK_THROWS_AS(probe.measure(random_inputs(a, 3, 10), stop), Interrupted);
    CHECK(probe.results().sequences == 2);
    CHECK(probe.results().points.back().ranks.rank.count == 2);
  }
}

TEST_CASE("one token: everything has a value or a reason") {
  for (const char* text : {encoder, decoder}) {
    const Architecture a = parse(text);
    const ProbeResults results = probed(a, generic_tensors(a), random_inputs(a, 2, 1));
    CHECK(point(results, "residual.1").ranks.rank.mean == 1);
    CHECK(point(results, "residual.1").ranks.affine_rank.mean == 0);
    const HeadMeasures& head = results.layers[0].heads[0];
    CHECK(head.entropy.mean == 0);
    CHECK(head.relative_entropy.count == 0);
    CHECK(head.relative_entropy.reason == "one token sees only itself");
    CHECK(head.gap.reason == "one token sees only itself");
    CHECK(results.findings[0].verdict == CollapseVerdict::undetermined);
    CHECK(results.findings[3].verdict == CollapseVerdict::undetermined);
  }
}

TEST_CASE("a model that leaves the range of its type is measured where it is finite, and says so") {
  const Architecture a = parse(decoder);
  Tensors tensors = generic_tensors(a);
  tensors.at("embed.token.weight")[3].fill_(std::numeric_limits<double>::infinity());
  Inputs inputs = random_inputs(a, 3, 6);
  inputs.ids.fill_(7);
  inputs.ids.select(1, 2).fill_(8);
  inputs.ids[1][4] = 3;
  const ProbeResults results = probed(a, tensors, inputs);
  const Spread& last = point(results, "final").ranks.rank;
  CHECK(last.undefined == 1);
  CHECK(last.count == 2);
  CHECK(last.reason == "the activations are not finite");
  REQUIRE(results.warnings.size() == 1);
  CHECK(results.warnings[0].find("1 of 3 sequences have activations that are not finite, the first at residual.0") !=
        std::string::npos);
  CHECK(to_json(results).dump().find("nan") == std::string::npos);
}

TEST_CASE("an RMSNorm whose squares overflow makes zeros of finite activations, and that is said") {
  const Architecture a = parse(decoder);
  Tensors tensors = generic_tensors(a);
  tensors.at("embed.token.weight")[3].mul_(1e25);
  Inputs inputs = random_inputs(a, 3, 6);
  inputs.ids.fill_(7);
  inputs.ids.select(1, 2).fill_(8);
  inputs.ids[1][4] = 3;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    Probe probe({a, as_weights(tensors)}, {.arithmetic = {.dtype = type}});
    probe.measure(inputs);
    const std::vector<std::string> warnings = probe.results().warnings;
    REQUIRE(warnings.size() == (type == at::kFloat ? 1 : 0));
    CHECK((warnings.empty() || warnings[0].find("1 of 3 sequences have finite activations whose squares overflow in an "
                                                "RMSNorm, first in blocks.0.attention.norm") != std::string::npos));
  }
}

TEST_CASE("tokens that are zero decide nothing, and are not called one direction") {
  const Architecture a = parse(decoder);
  Tensors tensors = generic_tensors(a);
  tensors.at("embed.token.weight").zero_();
  const ProbeResults results = probed(a, tensors, random_inputs(a, 2, 9));
  CHECK(results.findings[0].verdict == CollapseVerdict::undetermined);
  CHECK(results.findings[0].undecided == "the tokens are zero before the first layer");
}

TEST_CASE("without residuals it is the same model with no skips") {
  for (const char* text : {encoder, decoder}) {
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 10);
    for (const auto& [attention, mlp] : {std::pair{true, false}, {false, true}, {true, true}}) {
      Architecture skipless = a;
      for (Block& block : skipless.blocks) {
        block.attention.skip = !attention;
        block.mlp->skip = !mlp;
      }
      const ProbeResults changed =
          probed(a, tensors, inputs, {.without_attention_residual = attention, .without_mlp_residual = mlp});
      const ProbeResults other = probed(skipless, tensors, inputs);
      CHECK(point(changed, "residual.2").ranks.stable_rank.mean == point(other, "residual.2").ranks.stable_rank.mean);
      CHECK(changed.effect.mean > 0.01);
      CHECK(point(changed, "residual.2").ranks.stable_rank.mean !=
            point(probed(a, tensors, inputs), "residual.2").ranks.stable_rank.mean);
    }
  }
}

TEST_CASE("zeroed gains: H3 fails and the rank cannot exceed what is left; all of them leave the bias") {
  const ProbeResults half = probed(encoder, {.zero_gains = 0.5});
  for (const NormMeasures& norm : half.norms) {
    CHECK(norm.gains_nonzero.holds == 0);
    CHECK(half.points[norm.after].ranks.affine_rank.most <= 6);
    CHECK(norm.affine_rank_change.mean > 0);
  }
  const ProbeResults whole = probed(encoder);
  CHECK(whole.norms[0].gains_nonzero.holds == 1);
  CHECK(whole.norms[0].affine_rank_change.mean == 0);
  const ProbeResults none = probed(encoder, {.zero_gains = 1});
  CHECK(point(none, "residual.2").ranks.rank.mean == 1);
  CHECK(point(none, "residual.2").ranks.affine_rank.mean == 0);
  // Without a bias nothing is left at all.
  const ProbeResults nothing = probed(decoder, {.zero_gains = 1});
  CHECK(point(nothing, "final").ranks.rank.mean == 0);
  CHECK(point(nothing, "final").ranks.effective_rank.reason == "the activations are zero");
}

TEST_CASE("a gauge of the heads changes nothing but rounding, which grows with its condition number") {
  for (const char* text : {encoder, decoder}) {
    const double small = probed(text, {.gauge = 0.2}).effect.mean, large = probed(text, {.gauge = 20}).effect.mean;
    CHECK(small < 1e-13);
    CHECK(large > 1e-12);
    CHECK(large < 1e-4);
  }
  CHECK(probed(decoder, {.gauge = 3, .permute_heads = true}).effect.mean < 1e-12);
  CHECK(probed(decoder, {.gauge = 30}).warnings.empty());
  const std::vector<std::string> beyond = probed(decoder, {.gauge = 60}).warnings;
  REQUIRE(beyond.size() == 1);
  CHECK(beyond[0].find("exp(60) = 1e+26 cannot be undone in float64") != std::string::npos);
}

TEST_CASE("permuted heads are the same heads in another order, and the same function") {
  for (const std::string& text :
       {std::string(encoder), std::string(decoder), causal(R"(, "gate": "position")"), causal(R"(, "shaped": true)")}) {
    const ProbeResults plain = probed(text.c_str()),
                       permuted = probed(text.c_str(), {.permute_heads = true, .seed = 4});
    CHECK(permuted.effect.mean < 1e-13);
    bool moved_one = false;
    for (size_t layer = 0; layer < plain.layers.size(); ++layer) {
      // Each head of one is a head of the other, in all its numbers at once.
      std::multiset<std::string> one, other;
      const auto described = [](const HeadMeasures& head) {
        return fmt::format("{:.8f} {:.8f} {:.8f} {}", head.entropy.mean, head.gap.mean, *head.asymmetry,
                           head.output_dimension.mean);
      };
      for (size_t h = 0; h < plain.layers[layer].heads.size(); ++h) {
        one.insert(described(plain.layers[layer].heads[h]));
        other.insert(described(permuted.layers[layer].heads[h]));
        moved_one = moved_one || described(plain.layers[layer].heads[h]) != described(permuted.layers[layer].heads[h]);
      }
      CHECK(one == other);
    }
    CHECK(moved_one);
  }
}

TEST_CASE("what cannot be changed is refused, with all reasons") {
  const std::string bare = causal(R"(, "skip": false, "alibi": {"scaled": true}, "values": "collapsed")",
                                  R"({"width": 20, "activation": "gelu", "skip": false})");
  const Interventions all{.without_attention_residual = true,
                          .without_mlp_residual = true,
                          .zero_gains = 0.5,
                          .gauge = 1,
                          .permute_heads = true};
  try {
    check_interventions(all, parse(bare));
    FAIL("was not refused");
  } catch (const InputError& error) {
    CHECK(error.reasons.size() == 5);
  }
}

}  // namespace pare::test
