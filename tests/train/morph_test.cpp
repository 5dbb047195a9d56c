// One Architecture turned into another: at t = 0 the old model, at t = 1 the new one's executor on the new weights, in
// between what the gradients say; what cannot be mixed is refused, with the reason.

#include "pare/train/morph.h"

#include <ATen/ATen.h>

#include <cmath>

#include "pare/train/initialise.h"
#include "pare/train/morph_target.h"
#include "tests/support/helpers.h"
#include "tests/train/gradient_check.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

struct MorphCase {
  std::string name, source, changes;
  bool shifts = false;  // a norm's bias goes into the readers', so that gradients are not only scaled
};

std::string normed(const std::string& kind, const std::string& attention, const std::string& mlp,
                   const std::string& rest) {
  const std::string norm = R"(, "norm": )" + kind;
  return R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
    "attention": {"heads": 4, "head_width": 3)" +
         norm + attention + R"(}, "mlp": {"width": 20, "activation": "gelu")" + norm + mlp + R"(}}], "final_norm": )" +
         kind + rest + "}";
}

const std::string rms = R"({"kind": "rms"})", layer = R"({"kind": "layer", "bias": true})",
                  offset = R"({"kind": "rms", "offset": 1})", bare = R"({"kind": "layer", "gain": false})";
const std::string all_biases = R"(, "bias": {"query": true, "key": true, "value": true, "output": true})";
const std::string mlp_biases = R"(, "bias": {"up": true, "down": true})";
const std::string no_norms = R"({"norms": "none"})";

std::vector<MorphCase> morph_cases() {
  const std::string llama =
      R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2,
    "attention": {"heads": 4, "kv_heads": 2, "head_width": 3, "rope": {"theta": 100, "width": 2}, "norm": {"kind": "rms"}},
    "mlp": {"width": 20, "activation": "silu", "gated": true, "norm": {"kind": "rms"}}}], "final_norm": {"kind": "rms"}, "head": {"tied": true}})";
  return {
      {"norms, head of its own", normed(rms, "", "", ""), no_norms},
      {"norms, tied", normed(rms, "", "", R"(, "head": {"tied": true})"), no_norms},
      {"norms, tied, with an offset", normed(offset, "", "", R"(, "head": {"tied": true})"), no_norms},
      {"norms of a Llama", llama, no_norms},
      {"norms and MLP skips, tied: the table writes another stream", llama,
       R"({"norms": "none", "mlp": {"skip": false}})"},
      {"norms and all skips", normed(rms, "", "", ""),
       R"({"norms": "none", "attention": {"skip": false}, "mlp": {"skip": false}})"},
      {"LayerNorms, whose biases fold", normed(layer, all_biases, mlp_biases, R"(, "head": {"bias": true})"), no_norms,
       true},
      {"LayerNorms, whose biases fade", normed(layer, "", "", R"(, "head": {"tied": true})"), no_norms},
      {"LayerNorms without gain", normed(bare, "", "", ""), no_norms},
      {"some norms", normed(layer, all_biases, mlp_biases, ""), R"({"mlp": {"norm": null}})", true},
      {"untied", normed(rms, "", "", R"(, "head": {"tied": true})"), R"({"norms": "none", "head": {"tied": false}})"},
      {"new biases", normed(layer, "", "", ""),
       R"({"norms": "none", "attention": {"bias": {"query": true, "key": true, "value": true}}, "mlp": {"bias": {"up": true}}, "head": {"bias": true}})",
       true},
      {"biases that fade", normed(rms, all_biases, mlp_biases, ""),
       R"({"attention": {"bias": {"query": false, "key": false, "value": false, "output": false}}, "mlp": {"bias": {"up": false}}})"},
      {"query", normed(rms, all_biases, "", ""), R"({"attention": {"query": "identity"}})"},
      {"query, another scale", normed(rms, all_biases, "", ""),
       R"({"attention": {"query": "identity", "scale": 0.9}})"},
      {"key", normed(rms, all_biases, "", ""), R"({"attention": {"key": "identity"}})"},
      {"query and key", normed(rms, all_biases, "", ""),
       R"({"attention": {"query": "identity", "key": "identity", "scale": 0.2}})"},
      {"value", normed(rms, all_biases, "", ""), R"({"attention": {"value": "identity"}})"},
      {"output", normed(rms, all_biases, "", ""), R"({"attention": {"output": "identity"}})"},
      {"value and output", normed(rms, "", "", ""), R"({"attention": {"value": "identity", "output": "identity"}})"},
      {"skips", normed(rms, "", "", ""), R"({"attention": {"skip": false}})"},
      {"MLP width", normed(rms, "", mlp_biases, ""), R"({"mlp": {"width": 13}})"},
      {"MLP width, gated", llama, R"({"mlp": {"width": 7}})"},
      {"norms of heads",
       normed(rms, R"(, "qk_norm": {"kind": "rms"}, "bias": {"query": true}, "rope": {"theta": 100, "width": 2})", "",
              ""),
       R"({"attention": {"qk_norm": null}})"},
      {"norms of outputs",
       normed(rms, R"(, "output_norm": {"kind": "rms"})", R"(, "output_norm": {"kind": "rms"})", ""),
       R"({"attention": {"output_norm": null}, "mlp": {"output_norm": null}})"},
      {"a norm of the embedding",
       R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned", "norm": {"kind": "layer", "bias": true}},
           "blocks": [{"repeat": 2, "attention": {"heads": 4, "head_width": 3}, "mlp": {"width": 20, "activation": "gelu"}}]})",
       no_norms},
      {"a post norm of a block without skip",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2,
           "attention": {"heads": 4, "head_width": 3, "norm": {"kind": "rms", "place": "post"}},
           "mlp": {"width": 20, "activation": "gelu"}}]})",
       R"({"norms": "none", "attention": {"skip": false}})"},
      {"parallel",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "wiring": "parallel",
           "attention": {"heads": 4, "head_width": 3, "norm": {"kind": "layer"}}, "mlp": {"width": 20, "activation": "gelu"}}]})",
       R"({"norms": "none", "attention": {"skip": false}})"},
      {"a shared block, collapsed, and neuron heads",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"attention": {"heads": 2, "head_width": 6,
           "scores": "collapsed", "values": "collapsed", "norm": {"kind": "rms"}},
           "mlp": {"kind": "heads", "width": 9, "norm": {"kind": "rms"}}}], "layers": [0, 0, 0], "final_norm": {"kind": "rms"}})",
       no_norms},
  };
}

Architecture target_of(const Architecture& source, const std::string& changes) {
  return morph_target(source, nlohmann::json::parse(changes), "morph.to", no_architecture);
}

// Gains are positive, as those of a tied head's norm have to be.
Model start_model(const Architecture& a) {
  Tensors tensors = calm_tensors(a);
  for (const TensorSpec& spec : tensor_table(a)) {
    if (spec.part == Part::norm && spec.id.kind == TensorKind::weight) {
      tensors[spec.name] = tensors[spec.name].abs() + 0.1;
    }
  }
  return {a, as_weights(tensors)};
}

struct Mixed {
  std::shared_ptr<const Morph> morph;
  Trainer trainer;
};

constexpr int64_t morph_steps = 100;

Weight held(const at::Tensor& tensor) {
  return Weight::leaf("held", dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] { return tensor; });
}

Weights held(const Morph::Tensors& tensors) {
  Weights weights;
  for (const auto& [name, tensor] : tensors) {
    weights[name] = held(tensor);
  }
  return weights;
}

// With constants that are none of those that it would begin with.
Mixed mixed(const Architecture& source, const Architecture& to, int64_t step, double evenness = 0.7,
            bool recompute = false) {
  const MorphPlan plan = plan_morph(source, to, "morph.to");
  const Model start = morph_start(plan, start_model(source));
  auto morph = std::make_shared<const Morph>(plan, morph_steps, start, at::kCPU);
  Weights state = held(morph->state());
  for (const LeavingNorm& norm : plan.norms) {
    const std::string name = "morph." + name_of(norm.module) + ".constant";
    state[name] = held(state.at(name).load() * 0.8);
  }
  morph->restore(state);
  morph->go_to(step);
  TrainConfig config{.architecture = source, .dtype = TrainDtype::float64};
  config.optimiser.clip = 0;
  config.morph.evenness = evenness;
  config.recompute = recompute;
  return {morph, Trainer(config, start, at::kCPU, {morph, nullptr})};
}

std::map<std::string, at::Tensor> gradients_of(Trainer& trainer, const std::vector<TrainBatch>& batches) {
  trainer.measure(batches);
  std::map<std::string, at::Tensor> gradients;
  for (const auto& [name, gradient] : trainer.gradients()) {
    gradients[name] = gradient.clone();
  }
  return gradients;
}

std::string refusal(const std::string& source, const std::string& changes) {
  const Architecture from = parse(source);
  return message_of<InputError>([&] { plan_morph(from, target_of(from, changes), "morph.to"); });
}

}  // namespace

TEST_CASE("at t = 0 it is the old model, at t = 1 the new one") {
  for (const MorphCase& c : morph_cases()) {
    CAPTURE(c.name);
    const Architecture source = parse(c.source), to = target_of(source, c.changes);
    const Inputs inputs = random_inputs(source, 2, 7);
    const at::NoGradGuard no_grad;
    const Outputs old = Executor(start_model(source), at::kDouble).forward(inputs);
    const Mixed begin = mixed(source, to, 0), end = mixed(source, to, morph_steps), middle = mixed(source, to, 40);
    CHECK(relative_error(begin.trainer.executor().forward(inputs), old) < 1e-12);
    const Model finished = end.morph->finished(end.trainer.model().weights, at::kDouble);
    CHECK((finished.architecture == to));
    const Outputs expected = Executor(finished, at::kDouble).forward(inputs);
    CHECK(relative_error(end.trainer.executor().forward(inputs), expected) < 1e-12);
    CHECK(relative_error(expected, old) > 1e-3);  // else nothing is tested
    CHECK(relative_error(middle.trainer.executor().forward(inputs), old) > 1e-4);
    CHECK(relative_error(middle.trainer.executor().forward(inputs), expected) > 1e-4);
  }
}

TEST_CASE("gradients of what is mixed are finite differences") {
  for (const MorphCase& c : morph_cases()) {
    CAPTURE(c.name);
    const Architecture source = parse(c.source);
    Mixed half = mixed(source, target_of(source, c.changes), 37);
    check_gradients(half.trainer, {random_batch(source)});
  }
}

TEST_CASE("layers that are run again have the same gradients, and norms in them see once what they see") {
  for (const MorphCase& c : morph_cases()) {
    CAPTURE(c.name);
    const Architecture source = parse(c.source), to = target_of(source, c.changes);
    std::vector<TrainBatch> batches = {random_batch(source), random_batch(source)};
    batches[1].inputs = random_inputs(source, 2, 6, 8);
    for (const double evenness : {0.0, 0.7}) {
      CAPTURE(evenness);
      Mixed kept = mixed(source, to, 37, evenness), again = mixed(source, to, 37, evenness, /*recompute=*/true);
      check_same_step(kept.trainer, again.trainer, batches);
      for (const auto& [module, norm] : kept.morph->blend().norms) {
        const NormBlend& other = again.morph->blend().norms.at(module);
        CHECK(other.count.item<double>() == norm.count.item<double>());
        CHECK(other.sum.item<double>() == norm.sum.item<double>());
        CHECK(norm.count.item<double>() >= 3);  // of three batches
      }
    }
  }
}

TEST_CASE("an optimiser remembers of the new weights what it would have seen of them") {
  for (const MorphCase& c : morph_cases()) {
    if (c.shifts) {
      continue;
    }
    CAPTURE(c.name);
    const Architecture source = parse(c.source), to = target_of(source, c.changes);
    const std::vector<TrainBatch> batches = {random_batch(source)};
    Mixed end = mixed(source, to, morph_steps, /*evenness=*/0);
    Morph::Tensors moments;
    for (const auto& [name, gradient] : gradients_of(end.trainer, batches)) {
      moments[name + ".mean"] = gradient;
      moments[name + ".square"] = gradient.square();
    }
    const Weights weights = end.trainer.model().weights;
    TrainConfig config{.architecture = to, .dtype = TrainDtype::float64};
    config.optimiser.clip = 0;
    Trainer after(config, end.morph->finished(weights, at::kDouble), at::kCPU);
    const Weights found = end.morph->finished_moments(weights, held(moments));
    for (const auto& [name, gradient] : gradients_of(after, batches)) {
      CAPTURE(name);
      const double size = 1e-4 + gradient.abs().max().item<double>();
      CHECK((found.at(name + ".mean").load() - gradient).abs().max().item<double>() < 1e-11 * size);
      CHECK((found.at(name + ".square").load() - gradient.square()).abs().max().item<double>() < 1e-11 * size * size);
    }
    after.restore(found, morph_steps);
  }
}

TEST_CASE("a constant is the mean of 1/std of what was seen, more of the last steps than of others") {
  const Architecture source = parse(normed(layer, "", "", ""));
  const MorphPlan plan = plan_morph(source, target_of(source, no_norms), "morph.to");
  const Model start = morph_start(plan, start_model(source));
  const auto morph = std::make_shared<const Morph>(plan, morph_steps, start, at::kCPU);
  const TrainConfig config{.architecture = source, .dtype = TrainDtype::float64};
  Trainer trainer(config, start, at::kCPU, {morph, nullptr});
  const TrainBatch a = random_batch(source);
  TrainBatch b = a;
  b.inputs.ids = (a.inputs.ids + 3) % source.vocab;
  const auto seen = [&](const TrainBatch& batch) {
    Taps taps;
    taps.record("residual.0");
    const at::NoGradGuard no_grad;
    trainer.executor().forward(batch.inputs, nullptr, &taps);
    const at::Tensor x = taps.recorded().at("residual.0");
    return (x.var(-1, /*unbiased=*/false) + 1e-5).rsqrt().mean().item<double>();
  };
  const auto constant = [&] { return morph->state().at("morph.blocks.0.attention.norm.constant").item<double>(); };
  const double first = seen(a), second = seen(b);
  morph->go_to(0);
  trainer.begin_step(std::vector<TrainBatch>{a, b}, {0});  // nothing moves, so that the second step sees the same model
  CHECK(constant() == doctest::Approx((first + second) / 2).epsilon(1e-12));
  morph->go_to(30);
  CHECK(constant() == doctest::Approx((first + second) / 2).epsilon(1e-12));  // not between steps
  trainer.begin_step(std::vector<TrainBatch>{a}, {0});
  const double pace = 0.1 * 0.7 * 0.7;  // t = 1 - 0.7²: less, the more it counts
  CHECK(constant() == doctest::Approx((1 - pace) * (first + second) / 2 + pace * first).epsilon(1e-12));
  CHECK(std::abs(first - second) > 1e-3);
}

TEST_CASE("the loss asks that all tokens be of one size") {
  const Architecture source = parse(R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"attention": {"heads": 4,
    "head_width": 3, "norm": {"kind": "rms"}}}]})");
  const Architecture to = target_of(source, no_norms);
  const TrainBatch a = random_batch(source);
  TrainBatch b = a;
  b.inputs.ids = (a.inputs.ids + 3) % source.vocab;
  b.targets = b.targets.clone().fill_(no_target);
  b.targets[1].fill_(5);
  Mixed plain = mixed(source, to, 37, 0), asked = mixed(source, to, 37, 0.7);
  const at::Tensor table = asked.trainer.model().weights.at("embed.token.weight").load();
  const auto uneven = [&](const TrainBatch& batch) {
    const at::Tensor squares = table.index_select(0, batch.inputs.ids.flatten()).square().mean(-1);
    return (squares + 1e-5).rsqrt().log().var(/*unbiased=*/false).item<double>();
  };
  const std::vector<TrainBatch> batches = {a, b};
  const double expected = 0.7 * (11 * uneven(a) + 6 * uneven(b)) / 17;  // by how much they ask for
  CHECK(asked.trainer.measure(batches).loss - plain.trainer.measure(batches).loss ==
        doctest::Approx(expected).epsilon(1e-10));
  CHECK(expected > 0.01);
}

// A model in the middle of learning, whose norms begin to go: what it learns has to stay what moves it. Where the term
// is as long as the rest, clipping leaves little of that, and a model without norms falls behind for no other reason.
TEST_CASE("that tokens be of one size is asked for softly, unless the run says otherwise") {
  const TrainConfig config = sorting_config(
      {{"architecture", nlohmann::json::parse(normed(layer, all_biases, mlp_biases, R"(, "head": {"tied": true})"))},
       {"dtype", "float64"},
       {"batch", 16},
       {"optimiser", {{"lr", 0.003}, {"warmup", 10}, {"clip", 0}}},
       {"steps", 100}});
  const Batches batches(open_sequences(config), config);
  Trainer trainer(config, initial_model(config, batches.training(0).inputs), at::kCPU);
  for (int64_t step = 0; step < config.steps; ++step) {
    trainer.begin_step(std::vector<TrainBatch>{batches.training(step)}, {config.optimiser.lr});
    trainer.finish_step();
  }
  const Model learned = trainer.model();
  const MorphPlan plan = plan_morph(config.architecture, target_of(config.architecture, no_norms), "morph.to");
  const Model start = morph_start(plan, learned);
  const std::vector<TrainBatch> next = {batches.training(config.steps)};
  const auto asking = [&](double evenness) {
    const auto morph = std::make_shared<const Morph>(plan, morph_steps, start, at::kCPU);
    morph->go_to(0);
    TrainConfig asks = config;
    asks.morph.evenness = evenness;
    Trainer fresh(asks, start, at::kCPU, {morph, nullptr});
    return gradients_of(fresh, next);
  };
  const std::map<std::string, at::Tensor> plain = asking(0);
  const auto beside_learning = [&](double evenness) {
    double learning = 0, evening = 0;
    for (const auto& [name, gradient] : asking(evenness)) {
      learning += plain.at(name).square().sum().item<double>();
      evening += (gradient - plain.at(name)).square().sum().item<double>();
    }
    return std::sqrt(evening / learning);
  };
  CHECK(beside_learning(config.morph.evenness) < 1);
  CHECK(beside_learning(config.morph.evenness) > 0);
  CHECK(beside_learning(1) > 1);  // else nothing is tested
}

TEST_CASE("gains that a tied table takes stay positive, and have to be so from the first") {
  const Architecture source = parse(normed(rms, "", "", R"(, "head": {"tied": true})"));
  const MorphPlan plan = plan_morph(source, target_of(source, no_norms), "morph.to");
  Tensors tensors = generic_tensors(source);
  tensors["norm.weight"].fill_(0.002);
  Model start = morph_start(plan, {source, as_weights(tensors)});
  const auto morph = std::make_shared<const Morph>(plan, morph_steps, start, at::kCPU);
  const TrainConfig config{.architecture = source, .dtype = TrainDtype::float64};
  Trainer trainer(config, start, at::kCPU, {morph, nullptr});
  trainer.begin_step(std::vector<TrainBatch>{random_batch(source)}, {0.5});
  CHECK(trainer.model().weights.at("norm.weight").load().min().item<double>() == 1e-3);
  tensors["norm.weight"][3] = -0.4;
  const std::string why = message_of<InputError>([&] { morph_start(plan, {source, as_weights(tensors)}); });
  CHECK(why.find("1 of 12 gains of norm are not positive") != std::string::npos);
  CHECK(why.find("head.tied=false") != std::string::npos);
}

TEST_CASE("neurons that stay are those that do most") {
  const Architecture source = parse(normed(rms, "", mlp_biases, ""));
  const MorphPlan plan = plan_morph(source, target_of(source, R"({"mlp": {"width": 2}})"), "morph.to");
  Tensors tensors = generic_tensors(source);
  tensors["blocks.0.mlp.up.weight"][7].mul_(100);
  tensors["blocks.0.mlp.down.weight"].select(1, 11).mul_(50);
  const Model start = morph_start(plan, {source, as_weights(tensors)});
  CHECK(start.weights.at("blocks.0.mlp.up.weight").load()[0].equal(tensors["blocks.0.mlp.up.weight"][7]));
  CHECK(start.weights.at("blocks.0.mlp.up.bias").load()[1].equal(tensors["blocks.0.mlp.up.bias"][11]));
}

TEST_CASE("what cannot be mixed is refused, with the reason") {
  const std::string plain = normed(rms, "", "", "");
  const auto says = [](const std::string& found, const std::string& wanted) {
    CAPTURE(found);
    CHECK(found.find(wanted) != std::string::npos);
  };
  says(refusal(plain, R"({"vocab": 29})"), "vocab: 23 cannot be turned into 29");
  says(refusal(plain, R"({"mlp": {"width": 21}})"),
       "blocks.0.mlp.width: 20 cannot be turned into 21: an MLP can lose neurons, and gain none");
  says(refusal(plain, R"({"blocks": {"1": {"mlp": {"width": 21}}}})"),
       "blocks.1.mlp.width: 20 cannot be turned into 21");
  says(refusal(plain, R"({"attention": {"norm": {"kind": "layer"}}})"), "blocks.0.attention.norm.kind");
  says(refusal(plain, R"({"attention": {"scale": 0.3}})"), "blocks.0.attention.scale");
  says(refusal(plain, R"({"norms": "none", "attention": {"query": "identity"}})"), "let the norm go in this run");
  says(refusal(normed(rms, "", "", R"(, "head": {"tied": true})"), R"({"final_norm": null})"), "untie the head");
  says(refusal(normed(R"({"kind": "dyt"})", "", "", ""), no_norms), "DyT");
  says(refusal(R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"attention": {"heads": 4, "head_width": 3,
         "norm": {"kind": "layer", "place": "post"}}, "mlp": {"width": 20, "activation": "gelu"}}]})",
               no_norms),
       "the skip cannot take its gain");
  Architecture longer = parse(plain);
  longer.blocks.push_back(longer.blocks.back());
  says(message_of<InputError>([&] { plan_morph(parse(plain), longer, "morph.to"); }), "blocks: 2 and 3");
  const std::string both = refusal(plain, R"({"vocab": 29, "context": 16})");
  says(both, "vocab");
  says(both, "context");  // all at once
}

TEST_CASE("a target is written in as few words as it takes") {
  const Architecture source = parse(normed(layer, "", "", ""));
  const Architecture none = target_of(source, no_norms);
  CHECK((!none.final_norm && !none.blocks[1].attention.norm && !none.blocks[1].mlp->norm));
  CHECK(!target_of(source, R"({"blocks": {"*": {"mlp": {"skip": false}}}})").blocks[1].mlp->skip);
  const Architecture first = target_of(source, R"({"blocks": {"0": {"mlp": {"skip": false}}}})");
  CHECK(!first.blocks[0].mlp->skip);
  CHECK(first.blocks[1].mlp->skip);  // though one entry of the list stands for both
  CHECK((target_of(source, R"({"final_norm": null})").final_norm == std::nullopt));
  CHECK((target_of(source, architecture_text(none)) == none));
  CHECK((morph_target(source, "named", "morph.to", [&](const std::string&) { return none; }) == none));
  CHECK(message_of<InputError>([&] { target_of(source, R"({"norms": "some"})"); }).find("none") != std::string::npos);
  CHECK(message_of<InputError>([&] { target_of(source, R"({"nroms": "none"})"); }).find("nroms") != std::string::npos);
  CHECK(message_of<InputError>([&] { target_of(source, R"({"blocks": {"4": {"mlp": null}}})"); }).find("list of 2") !=
        std::string::npos);
  CHECK(message_of<InputError>([&] { target_of(source, R"({"mlp": false})"); }).find("object") != std::string::npos);
}

}  // namespace pare::test
