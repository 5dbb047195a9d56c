// What counts as the same, on models of every kind; what cannot be compared; and the check of the check.
#include "pare/verify/verify.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "pare/arch/head.h"
#include "pare/support/error.h"
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

TEST_CASE("a model is equivalent to itself, without any error, and the check would see little more") {
  std::vector<std::pair<std::string, std::string>> all = causal_architectures();
  all.insert(all.end(), ending_architectures().begin(), ending_architectures().end());
  all.emplace_back("encoder", encoder);
  all.emplace_back("images", images);
  for (const auto& [what, text] : all) {
    CAPTURE(what);
    const Architecture a = parse(text);
    const ModelFolder model = model_of(a, generic_tensors(a));
    const Verification v = verify_drawn(model, model);
    CHECK(v.verdict == Verdict::equivalent);
    CHECK(v.metrics.max_relative_logit_error == 0);
    CHECK_FALSE(v.first_divergence);
    REQUIRE(v.self_test);
    CHECK(v.self_test->smallest_caught > v.self_test->largest_missed);
    CHECK(v.self_test->smallest_caught < 1e-8);
    CHECK(model.model.weights.contains(v.self_test->tensor));
    CHECK(v.metrics.mean_kl_nats.has_value() == is_choice(a));
    CHECK(v.metrics.reference_nll_nats.has_value() == (a.task == Task::causal_lm));
  }
}

TEST_CASE("a copy rounded to a coarser type is within its noise, and not equivalent") {
  const Architecture a = rich_architecture();
  const Tensors tensors = generic_tensors(a);
  const ModelFolder reference = model_of(a, tensors);
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kBFloat16}) {
    CAPTURE(at::toString(dtype));
    const Verification v = verify_drawn(reference, model_of(a, tensors, dtype));
    CHECK(v.verdict == Verdict::within_noise);
    CHECK(v.floor_dtype == dtype_of(dtype));
    CHECK(v.noise_floor.max_relative_logit_error > 0);
    CHECK(*v.noise_floor.mean_kl_nats > 0);
    CHECK(v.self_test->smallest_caught > v.noise_floor.max_relative_logit_error / 100);
  }
}

TEST_CASE("computed in a coarser type, nothing is equivalent and the floor is that type's") {
  const Architecture a = rich_architecture();
  const ModelFolder model = model_of(a, generic_tensors(a));
  const Verification v = verify_drawn(model, model, {.dtype = Dtype::f32});
  CHECK(v.floor_dtype == Dtype::f32);
  CHECK(v.verdict == Verdict::within_noise);
  CHECK(v.metrics.max_relative_logit_error == v.noise_floor.max_relative_logit_error);
  CHECK(verify_drawn(model_of(a, generic_tensors(a), at::kBFloat16), model, {.dtype = Dtype::f32}).verdict ==
        Verdict::different);
}

TEST_CASE("verdicts: the limits are those of the contract") {
  CHECK(equivalence_limit(0) == 1e-12);
  CHECK(equivalence_limit(1e-13) / 1e-11 == doctest::Approx(1).epsilon(1e-12));
  CHECK(equivalence_limit(1) == 1e-6);
  const Metrics floor{1e-3, 1e-6};
  CHECK(judge({1e-12, 1e-20}, floor, 1e-12, true) == Verdict::equivalent);
  CHECK(judge({1e-12, 1e-20}, floor, 1e-12, false) == Verdict::within_noise);
  CHECK(judge({1.1e-12, 1e-20}, floor, 1e-12, true) == Verdict::within_noise);
  CHECK(judge({2e-3, 2e-6}, floor, 1e-12, true) == Verdict::within_noise);
  CHECK(judge({2.1e-3, 1e-6}, floor, 1e-12, true) == Verdict::different);
  CHECK(judge({1e-3, 2.1e-6}, floor, 1e-12, true) == Verdict::different);
  CHECK(judge({std::nan(""), std::nan("")}, floor, 1e-12, true) == Verdict::different);
  CHECK(judge({1e-3, 1e-6}, {std::nan(""), std::nan("")}, 1e-12, true) == Verdict::different);
}

TEST_CASE("a predicted error moves the limit") {
  const Architecture a = rich_architecture();
  Tensors tensors = generic_tensors(a);
  const ModelFolder reference = model_of(a, tensors);
  tensors.at("head.weight") = tensors.at("head.weight") * (1 + 1e-9);
  const ModelFolder candidate = model_of(a, tensors);
  CHECK(verify_drawn(reference, candidate).verdict == Verdict::different);
  CHECK(verify_drawn(reference, candidate, {.predicted_error = 1e-9}).verdict == Verdict::equivalent);
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
  for (const char* mask : {"causal", "full"}) {
    const Architecture last = parse(ending("classifier", mask, R"("classes": 3, "pool": "last")"));
    Architecture first = last;
    first.head.pool = Pool::first;
    const Tensors tensors = generic_tensors(last);
    const Verification v = verify_drawn(model_of(last, tensors), model_of(first, tensors));
    CHECK(v.verdict == Verdict::different);
    CHECK(v.first_divergence->tap == "logits");
  }
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
  Architecture b = a;
  b.vocab = 24;
  const ModelFolder reference = model_of(a, generic_tensors(a));
  const auto refusal = [&](const Architecture& other) {
    return message_of<InputError>([&] { check_comparable(reference, model_of(other, generic_tensors(other))); });
  };
  CHECK(contains(refusal(b), "the vocabulary is 23 in the reference but 24 in the candidate"));
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

TEST_CASE("a check that misses everything fails") {
  const Architecture a = rich_architecture();
  const ModelFolder model = model_of(a, generic_tensors(a));
  const ComparedModel runner{model.model, {}};
  const std::vector<Inputs> inputs = draw_inputs(a, a, 2, 1);
  const at::InferenceMode inference;
  const Asked asked = ask(a, inputs, at::kCPU);
  const Answer answer = answer_of(runner, asked, [] {});
  const Comparison compared = compare(runner, answer, runner, answer, asked.targets);
  std::vector<double> seen;
  const std::string message = message_of<VerificationFailed>([&] {
    test_check(runner, answer, runner, answer, asked, compared, 1e-3, 0, [&seen](const Comparison& disturbed) {
      seen.push_back(metrics_of(disturbed).max_relative_logit_error);
      return false;
    });
  });
  CHECK(contains(message, "moved by 100 %"));
  CHECK(contains(message, "blocks.1."));
  CHECK(contains(message, "--random"));
  CHECK(seen.size() > 3);  // every matrix that matters was tried
  CHECK(*std::min_element(seen.begin(), seen.end()) > 0);

  // A larger disturbance shows more, and a matrix whose own is missed gives way to one whose is not.
  const auto caught_above = [&](double limit) {
    return test_check(runner, answer, runner, answer, asked, compared, 1e-3, 0, [limit](const Comparison& disturbed) {
      return metrics_of(disturbed).max_relative_logit_error > limit;
    });
  };
  const double most = *std::max_element(seen.begin(), seen.end());
  const SelfTest fine = caught_above(1e-6 * seen.front()), coarse = caught_above(0.99 * most);
  CHECK(fine.smallest_caught < 1e-3 * coarse.smallest_caught);
  CHECK(fine.tensor != coarse.tensor);
  CHECK(coarse.largest_missed < coarse.smallest_caught);
}

TEST_CASE("of what is equivalent the self test catches what would pass as noise only") {
  const Architecture a = parse(causal(""));
  ModelFolder model = model_of(a, generic_tensors(a));
  for (auto& [name, weight] : model.model.weights) {
    weight = Weight::made(name, Dtype::bf16, weight.shape(), {weight},
                          [](std::vector<at::Tensor>& in) { return in[0].to(at::kBFloat16); });
  }
  model.dtype = Dtype::bf16;
  const Verification v = verify_drawn(model, model);
  CHECK(v.verdict == Verdict::equivalent);
  CHECK(v.noise_floor.max_relative_logit_error > 1e-3);
  CHECK(v.self_test->smallest_caught < 1e-9);
}

TEST_CASE("drawn inputs see every token of a small vocabulary, stay in context and depend on the seed alone") {
  const Architecture a = parse(encoder);
  const std::vector<Inputs> inputs = draw_inputs(a, a, 8, 3);
  REQUIRE(inputs.size() == 2);
  CHECK(inputs[0].ids.size(1) == 16);
  const at::Tensor counts = at::bincount(at::cat({inputs[0].ids.flatten(), inputs[1].ids.flatten()}), {}, 23);
  CHECK(counts.min().item<int64_t>() == 5);  // 8 x 16 tokens, dealt five times and a half
  CHECK(counts.max().item<int64_t>() == 6);
  REQUIRE(inputs[1].mask.defined());
  CHECK(inputs[1].mask.logical_not().any().item<bool>());
  CHECK(inputs[1].mask.sum(1).min().item<int64_t>() >= 8);
  CHECK(inputs[1].types.max().item<int64_t>() == 1);
  CHECK(at::equal(inputs[1].ids, draw_inputs(a, a, 8, 3)[1].ids));
  CHECK_FALSE(at::equal(inputs[1].ids, draw_inputs(a, a, 8, 4)[1].ids));
}
