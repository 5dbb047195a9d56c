// What counts as the same, on models of every kind; what cannot be compared; and the check of the check.
#include "pare/verify/verify.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "pare/arch/head.h"
#include "pare/support/error.h"
#include "pare/verify/questions.h"
#include "pare/verify/self_test.h"
#include "tests/model/architectures.h"
#include "tests/verify/helpers.h"

using namespace pare;
using namespace pare::test;

namespace {

const char* encoder =
    R"({"task": "encoder", "width": 12, "vocab": 23, "context": 16, "embedding": {"position": "learned", "types": 2, "norm": {"kind": "layer", "bias": true}},
        "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 4, "mask": "full", "norm": {"kind": "layer", "place": "post"}}, "mlp": {"width": 20, "activation": "gelu"}}],
        "head": {"transform": {"activation": "tanh"}}})";
const char* images =
    R"({"task": "classifier", "width": 6, "context": 5, "embedding": {"position": "learned", "class_token": true, "patch": {"size": 2, "image": 4, "channels": 2}},
        "blocks": [{"attention": {"heads": 2, "head_width": 3, "mask": "full"}, "mlp": {"width": 9, "activation": "gelu"}}], "head": {"classes": 3, "bias": true}})";

}  // namespace

TEST_CASE("a model is identical to itself, and nearly so in other types; almost nothing would pass with it") {
  std::vector<std::pair<std::string, std::string>> all = causal_architectures();
  all.insert(all.end(), ending_architectures().begin(), ending_architectures().end());
  all.emplace_back("encoder", encoder);
  all.emplace_back("images", images);
  for (const auto& [what, text] : all) {
    CAPTURE(what);
    const Architecture a = parse(text);
    const ModelFolder model = model_of(a, generic_tensors(a));
    const Verification v = verify_drawn(model, model);
    CHECK(v.verdict == Verdict::identical);
    CHECK(v.metrics.max_relative_logit_error == 0);
    CHECK(v.coverage.complete);
    CHECK(v.self_tests.empty());
    CHECK_FALSE(v.first_divergence);
    CHECK(v.metrics.mean_kl_nats.has_value() == is_choice(a));
    CHECK(v.metrics.reference_nll_nats.has_value() == (a.task == Task::causal_lm));
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      CAPTURE(word(dtype));
      const Verification coarse = verify_drawn(model, model, {.dtype = dtype});
      CHECK(coarse.verdict == Verdict::within_noise);
    }
  }
}

TEST_CASE("a copy rounded to a coarser type is proved to be no more than that, and within its noise") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  const ModelFolder reference = model_of(a, tensors);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CAPTURE(at::toString(dtype));
    const Verification v = verify_drawn(reference, model_of(a, tensors, dtype));
    CHECK(v.verdict == Verdict::proved);
    CHECK(v.floor_dtype == dtype_of(dtype));
    CHECK(v.proof.moved <= unit_roundoff(dtype_of(dtype)) * 1.01);
    CHECK(v.metrics.max_relative_logit_error <= 2 * v.noise_floor.max_relative_logit_error);
    CHECK(v.excess < 1);
  }
}

TEST_CASE("computed in a coarser type, nothing is proved or equivalent") {
  const Architecture a = rich_architecture();
  const ModelFolder model = model_of(a, generic_tensors(a));
  CHECK(verify_drawn(model, model, {.dtype = Dtype::f32}).verdict == Verdict::within_noise);
  CHECK(verify_drawn(model_of(a, generic_tensors(a), at::kBFloat16), model, {.dtype = Dtype::f32}).verdict ==
        Verdict::different);
}

TEST_CASE("the reference sets the test: what the candidate cannot take is a difference, and nothing is asked") {
  const Architecture a = parse(encoder);
  const ModelFolder reference = model_of(a, generic_tensors(a));
  const auto difference = [&](const std::function<void(Architecture&)>& change) {
    Architecture b = a;
    change(b);
    const Verification v = verify_drawn(reference, model_of(b, generic_tensors(b)));
    CHECK(v.verdict == Verdict::different);
    CHECK(v.tokens == 0);
    REQUIRE(v.differences.size() >= 1);
    const SettingDifference& d = v.differences.front();
    return d.setting + " " + d.reference + " " + d.candidate;
  };
  CHECK(difference([](Architecture& b) { b.context = 1; }) == "context 16 1");
  CHECK(difference([](Architecture& b) { b.vocab = 22; }) == "vocab 23 22");
  CHECK(difference([](Architecture& b) { b.embedding.types = 0; }) == "embedding.types 2 1");
  CHECK(difference([](Architecture& b) { b.embedding.position_pad = 1; }) == "embedding.position_pad none 1");
  CHECK(difference([](Architecture& b) { b.blocks[1].attention.mask = Mask::causal; }) ==
        "layer 1: attention.mask full causal");
  CHECK(difference([](Architecture& b) { b.blocks[1].attention.window = 3; }) == "layer 1: attention.window none 3");
  CHECK(difference([](Architecture& b) { b.blocks[0].attention.softcap = 3; }) == "layer 0: attention.softcap none 3");
  CHECK(difference([](Architecture& b) { b.blocks[0].attention.alibi = Alibi{}; }) ==
        "layer 0: attention.alibi none scaled");
  CHECK(difference([](Architecture& b) { b.blocks[0].attention.norm->epsilon = 1e-6; }) ==
        "blocks.0.attention.norm.epsilon 1e-05 1e-06");
  CHECK(difference([](Architecture& b) {
          std::get<DenseMlp>(b.blocks[0].mlp->kind).activation = Activation::gelu_tanh;
        }) == "layer 0: mlp.activation gelu gelu_tanh");

  Architecture more = a;  // which is no harm
  more.context = 20;
  Tensors tensors = generic_tensors(a);
  tensors.at("embed.position.weight") = at::cat({tensors.at("embed.position.weight"), at::ones({4, 12}, at::kDouble)});
  CHECK(verify_drawn(reference, model_of(more, tensors)).differences.empty());
}

TEST_CASE("padding is not compared: padded and alone, the same figures") {
  for (const std::string& text : {causal(""), std::string(encoder)}) {
    const Architecture a = parse(text);
    const ModelFolder reference = model_of(a, generic_tensors(a, 1)), candidate = model_of(a, generic_tensors(a, 2));
    const at::Tensor ids = random_inputs(a, 2, 7).ids;
    Inputs padded, first, second;
    padded.ids = ids.clone();
    padded.mask = at::ones({2, 7}, at::kBool);
    padded.mask[0].narrow(0, 4, 3).fill_(false);
    padded.mask[1].narrow(0, 0, 2).fill_(false);
    first.ids = ids.narrow(0, 0, 1).narrow(1, 0, 4);
    second.ids = ids.narrow(0, 1, 1).narrow(1, 2, 5);
    const Metrics together = verify(reference, candidate, std::vector{padded}, {}).metrics;
    const Verification apart = verify(reference, candidate, std::vector{first, second}, {});
    CHECK(apart.tokens == 9);
    CHECK(together.max_relative_logit_error == doctest::Approx(apart.metrics.max_relative_logit_error).epsilon(1e-10));
    if (a.task == Task::causal_lm) {
      CHECK(*together.mean_kl_nats == doctest::Approx(*apart.metrics.mean_kl_nats).epsilon(1e-10));
      CHECK(*together.reference_nll_nats == doctest::Approx(*apart.metrics.reference_nll_nats).epsilon(1e-10));
      CHECK(*together.candidate_nll_nats == doctest::Approx(*apart.metrics.candidate_nll_nats).epsilon(1e-10));
    }
  }
}

TEST_CASE("a pooler alone can differ") {
  const Architecture a = parse(encoder);
  Tensors tensors = generic_tensors(a);
  const ModelFolder reference = model_of(a, tensors);
  tensors.at("head.transform.weight") = tensors.at("head.transform.weight") * 1.01;
  const Verification v = verify_drawn(reference, model_of(a, tensors));
  CHECK(v.verdict == Verdict::different);
  CHECK(v.first_divergence->tap == "pooled");
}

TEST_CASE("whatever a model ends in, a head that is one per cent off is seen, where it is") {
  for (const auto& [what, text] : ending_architectures()) {
    CAPTURE(what);
    const Architecture a = parse(text);
    for (const auto& [tensor, tap] : {std::pair{"head.weight", "logits"},
                                      {"head.bias", "logits"},
                                      {"head.sequence.weight", "sequence_logits"},
                                      {"head.sequence.transform.weight", "sequence_logits"}}) {
      Tensors tensors = generic_tensors(a);
      if (!tensors.contains(tensor)) {
        continue;
      }
      CAPTURE(tensor);
      const ModelFolder reference = model_of(a, tensors);
      tensors.at(tensor) = tensors.at(tensor) * 1.01;
      const Verification v = verify_drawn(reference, model_of(a, tensors));
      CHECK(v.verdict == Verdict::different);
      CHECK(v.metrics.max_relative_logit_error < 1);
      CHECK(v.first_divergence->tap == tap);
    }
  }
}

TEST_CASE("a model that pools another token is another model") {
  const Architecture last = parse(ending("classifier", "full", R"("classes": 3, "pool": "last")"));
  Architecture first = last;
  first.head.pool = Pool::first;
  const Tensors tensors = generic_tensors(last);
  const Verification v = verify_drawn(model_of(last, tensors), model_of(first, tensors));
  CHECK(v.verdict == Verdict::different);
  CHECK(v.differences.front().setting == "head.pool");
}

TEST_CASE("models of different depth are compared as far as both go, and said to be") {
  const Architecture two = parse(causal(""));
  Architecture one = two;
  one.blocks.pop_back();
  const Verification v = verify_drawn(model_of(two, generic_tensors(two)), model_of(one, generic_tensors(one)));
  CHECK(v.verdict == Verdict::different);
  CHECK(v.first_divergence->tap == "logits");  // the first block is the same
  CHECK(contains(v.first_divergence->note, "the reference has 2 layers, the candidate 1"));
}

TEST_CASE("what cannot be compared is refused with both values") {
  const Architecture a = parse(causal("")), pixels = parse(images);
  const ModelFolder reference = model_of(a, generic_tensors(a));
  const auto refusal = [&](const Architecture& other) {
    return message_of<InputError>([&] { check_comparable(reference, model_of(other, generic_tensors(other))); });
  };
  CHECK(contains(refusal(pixels), "the task is causal_lm in the reference but classifier"));
  CHECK(contains(refusal(pixels), "what is read is tokens in the reference but 2 x 4 x 4 pixels"));
  CHECK(refusal(a).empty());

  Architecture second = a;
  second.head.sequence = SequenceHead{};
  CHECK(contains(refusal(second), "the number of classes of the second head is 0 in the reference but 2"));
  const auto pooled = [](int64_t width) {
    return parse(
        ending("encoder", "full", R"("transform": {"activation": "tanh", "width": )" + std::to_string(width) + "}"));
  };
  const Architecture narrow = pooled(5), wide = pooled(7), bare = parse(ending("encoder", "full", ""));
  const auto pooled_refusal = [&](const Architecture& other) {
    return message_of<InputError>(
        [&] { check_comparable(model_of(narrow, generic_tensors(narrow)), model_of(other, generic_tensors(other))); });
  };
  CHECK(contains(pooled_refusal(wide), "the width of what is pooled is 5 in the reference but 7"));
  CHECK(contains(pooled_refusal(bare), "the width of what is pooled is 5 in the reference but 0"));
}

TEST_CASE("drawn inputs see every token of a small vocabulary, repeat some, stay in context, depend on the seed") {
  const Architecture a = parse(encoder);
  const std::vector<Inputs> inputs = draw_inputs(a, 8, 3);
  REQUIRE(inputs.size() == 3);
  CHECK(inputs[0].ids.size(1) == 16);
  const at::Tensor counts = at::bincount(at::cat({inputs[0].ids.flatten(), inputs[1].ids.flatten()}), {}, 23);
  CHECK(counts.min().item<int64_t>() >= 2);
  CHECK(std::get<0>(at::unique_dim(inputs[0].ids[0], 0)).numel() < 16);
  REQUIRE(inputs[1].mask.defined());
  CHECK(inputs[1].mask.logical_not().any().item<bool>());
  CHECK(inputs[1].mask.sum(1).min().item<int64_t>() >= 8);
  CHECK(inputs[1].types.max().item<int64_t>() == 1);
  CHECK(at::equal(inputs[1].ids, draw_inputs(a, 8, 3)[1].ids));
  CHECK_FALSE(at::equal(inputs[1].ids, draw_inputs(a, 8, 4)[1].ids));
}

TEST_CASE("what is wanted is drawn: these tokens, so many, and a sequence as long as the context, within a budget") {
  Architecture a = parse(encoder);
  a.vocab = 5000;
  a.context = 300;
  const std::vector<int64_t> cards = {4711, 3, 4999};
  const auto tokens = [](const std::vector<Inputs>& inputs) {
    int64_t count = 0;
    for (const Inputs& one : inputs) {
      count += one.ids.numel();
    }
    return count;
  };
  const std::vector<Inputs> drawn =
      draw_wanted(a, {.tokens = 1000, .sequences = 0, .longest = 300, .first_cards = cards}, 16384, 1);
  CHECK(drawn.front().ids.size(1) == 300);
  CHECK(tokens(drawn) >= 1000);
  for (const int64_t card : cards) {
    CHECK((drawn.front().ids == card).any().item<bool>());
  }
  std::vector<int64_t> all(5000);
  std::iota(all.begin(), all.end(), 0);
  const auto seen = [](const std::vector<Inputs>& inputs) {
    std::vector<at::Tensor> ids;
    for (const Inputs& one : inputs) {
      ids.push_back(one.ids.flatten());
    }
    return std::get<0>(at::unique_dim(at::cat(ids), 0)).numel();
  };
  CHECK(seen(draw_wanted(a, {.cards = all}, 16384, 1)) == 5000);
  CHECK(tokens(draw_wanted(a, {.cards = all}, 1000, 1)) <= 1000);
  CHECK(draw_wanted(a, {}, 1000, 1).empty());
  const std::vector<Inputs> many = draw_wanted(a, {.sequences = 40}, 16384, 1);
  CHECK(many.front().ids.size(0) == 40);
}

TEST_CASE("every token is asked alone, of every type, whatever the budget; those known to be odd first") {
  Architecture a = parse(encoder);
  a.vocab = 20000;
  a.embedding.types = 2;
  std::vector<int64_t> all(20000);
  std::iota(all.begin(), all.end(), 0);
  std::erase(all, 4711);
  const auto alone = [&](int64_t most) {
    std::set<std::pair<int64_t, int64_t>> seen;
    for (const Inputs& one : draw_wanted(a, {.first_cards = {4711}, .cards = all, .alone = most}, 100, 1)) {
      CHECK(one.ids.numel() <= 8192);
      for (int64_t i = 0; one.ids.size(1) == 1 && i < one.ids.size(0); ++i) {
        seen.insert({one.types.defined() ? one.types[i][0].item<int64_t>() : 0, one.ids[i][0].item<int64_t>()});
      }
    }
    return seen;
  };
  CHECK(alone(40000).size() == 40000);
  const std::set<std::pair<int64_t, int64_t>> few = alone(300);
  CHECK(few.size() == 300);
  CHECK(few.contains({0, 4711}));
  CHECK(few.rbegin()->second > 5000);  // not the first ones
}

TEST_CASE("images are noise, pages, ramps, blurred ones and photographs") {
  Architecture a;
  a.embedding.patch = Patch{.size = 4, .channels = 3, .image = 16};
  const at::Tensor pixels = draw_inputs(a, 12, 1)[0].pixels;
  REQUIRE(pixels.sizes() == at::IntArrayRef({12, 3, 16, 16}));
  const auto deviation = [&](int64_t n) { return pixels[n].std().item<double>(); };
  const auto roughness = [&](int64_t n) {  // of neighbours: 2 in white noise
    const at::Tensor image = pixels[n];
    const at::Tensor step = image.narrow(2, 1, 15) - image.narrow(2, 0, 15);
    return (step.square().mean() / image.var()).item<double>();
  };
  for (const int64_t n : {0, 2, 4, 6, 8, 10}) {
    CHECK(roughness(n) > 1.7);
  }
  CHECK(deviation(1) < 1e-12);
  CHECK(pixels[1].min().item<double>() >= 1);
  CHECK(roughness(3) < 1);
  CHECK(deviation(5) < 1e-12);
  CHECK(pixels[5].max().item<double>() <= -1);
  CHECK(roughness(7) < 0.1);
  CHECK(roughness(9) < 0.1);
  CHECK(pixels[11].std({1, 2}, true, false).max().item<double>() < 1e-12);  // each channel of one colour
  CHECK(at::equal(pixels, draw_inputs(a, 12, 1)[0].pixels));
}

TEST_CASE("the longest sequence is the context, or what stands against it is named") {
  Architecture a = parse(encoder);
  a.context = 8192;
  const LongestSequence whole = longest_affordable(a, a, 16384, at::kCPU);
  CHECK(whole.tokens == 8192);
  CHECK(whole.bound.empty());
  const LongestSequence few = longest_affordable(a, a, 2000, at::kCPU);
  CHECK(few.tokens == 1000);
  CHECK(few.bound == "--budget 16384 would ask it");
  Architecture b = a;
  b.blocks[0].attention.softcap = 30;
  const LongestSequence held = longest_affordable(a, b, 16384, at::kCPU);
  const double bytes = 1.0 + 24.0 * static_cast<double>(b.blocks[0].attention.heads);
  CHECK(held.tokens == static_cast<int64_t>(std::sqrt(0x1p31 / bytes)));
  CHECK(contains(held.bound, "GB"));
  CHECK(affordable_alone(a, a, 16384) >= 50'000);
  CHECK(can_hold_attention(a, 1024));
  CHECK_FALSE(can_hold_attention(a, 8192));
}
