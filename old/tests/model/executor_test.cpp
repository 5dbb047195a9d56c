// What every architecture must have: one answer, whichever way it is computed.

#include "pare/model/executor.h"

#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

TEST_CASE("fused and explicit attention agree") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 9);
    Taps taps;
    taps.record("*");
    const at::Tensor explicit_answer = run(a, tensors, inputs, &taps);
    CHECK(relative_error(run(a, tensors, inputs), explicit_answer) < 1e-12);
    const at::Tensor& probabilities = taps.recorded().at("blocks.0.attention.probabilities");
    CHECK((probabilities.sum(-1) - 1).abs().max().item<double>() < 1e-12);
    CHECK(probabilities.triu(1).abs().max().item<double>() == 0);
    CHECK(taps.recorded().at("logits").equal(explicit_answer));
  }
}

TEST_CASE("cached decoding equals one prefill") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs inputs = random_inputs(a, 2, 9);
    const at::Tensor whole = model.forward(inputs).logits;
    for (const int64_t chunk : {1, 4}) {
      Cache cache(2);  // too small on purpose: it has to grow
      std::vector<at::Tensor> parts;
      for (int64_t start = 0; start < 9; start += chunk) {
        const int64_t size = std::min<int64_t>(chunk, 9 - start);
        Inputs part;
        part.ids = inputs.ids.narrow(1, start, size);
        part.types = inputs.types.defined() ? inputs.types.narrow(1, start, size) : at::Tensor();
        parts.push_back(model.forward(part, &cache).logits);
      }
      // Where frequencies follow the length, earlier tokens were answered for a shorter sequence: the last one counts.
      const bool by_length = name == "rope dynamic" || name == "rope longrope";
      const at::Tensor cached = at::cat(parts, 1);
      if (by_length) {
        CHECK(relative_error(cached.select(1, 8), whole.select(1, 8)) < 1e-12);
      } else {
        CHECK(relative_error(cached, whole) < 1e-12);
      }
    }
  }
}

TEST_CASE("padding on either side changes no answer, cached or not") {
  for (const auto& [name, text] : causal_architectures()) {
    if (name == "rope dynamic" || name == "rope longrope") {
      continue;  // as in Hugging Face, the longest sequence of a batch sets the frequencies of all
    }
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs whole = random_inputs(a, 1, 8);
    Inputs alone;
    alone.ids = whole.ids.narrow(1, 0, 5);
    alone.types = whole.types.defined() ? whole.types.narrow(1, 0, 5) : at::Tensor();
    const at::Tensor expected = model.forward(alone).logits;
    for (const bool left : {true, false}) {
      const int64_t begin = left ? 3 : 0;
      Inputs padded;
      padded.ids = at::full({2, 8}, 3, at::kLong);
      padded.mask = at::zeros({2, 8}, at::kBool);
      padded.ids.narrow(0, 0, 1).narrow(1, begin, 5).copy_(alone.ids);
      padded.mask.narrow(0, 0, 1).narrow(1, begin, 5).fill_(true);
      padded.ids.narrow(0, 1, 1).copy_(whole.ids);
      padded.mask.narrow(0, 1, 1).fill_(true);
      if (whole.types.defined()) {
        padded.types = at::zeros({2, 8}, at::kLong);
        padded.types.narrow(0, 0, 1).narrow(1, begin, 5).copy_(alone.types);
      }
      CHECK(relative_error(model.forward(padded).logits.narrow(0, 0, 1).narrow(1, begin, 5), expected) < 1e-12);

      Cache cache;  // the padded batch first, then one token more for both rows
      model.forward(padded, &cache);
      Inputs next;
      next.ids = at::full({2, 1}, 11, at::kLong);
      const at::Tensor continued = model.forward(next, &cache).logits.narrow(0, 0, 1);
      Inputs longer;
      longer.ids = at::cat({alone.ids, next.ids.narrow(0, 0, 1)}, 1);
      longer.types = alone.types.defined() ? at::cat({alone.types, at::zeros({1, 1}, at::kLong)}, 1) : at::Tensor();
      CHECK(relative_error(continued, model.forward(longer).logits.narrow(1, 5, 1)) < 1e-12);
    }
  }
}

TEST_CASE("an encoder ignores padding and pools its first real token") {
  const Architecture a = parse(
      R"({"task": "encoder", "width": 12, "vocab": 23, "context": 16, "embedding": {"position": "learned", "types": 2, "norm": {"kind": "layer", "bias": true}},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 6, "mask": "full", "norm": {"kind": "layer", "place": "post", "bias": true}},
                "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "layer", "place": "post", "bias": true}}}],
    "head": {"transform": {"activation": "tanh"}}})");
  const Executor model = double_model(a, generic_tensors(a));
  const Inputs alone = random_inputs(a, 1, 5);
  const Outputs expected = model.forward(alone);
  CHECK_FALSE(expected.logits.defined());
  for (const int64_t begin : {0, 3}) {
    Inputs padded;
    padded.ids = at::zeros({1, 8}, at::kLong);
    padded.types = at::zeros({1, 8}, at::kLong);
    padded.mask = at::zeros({1, 8}, at::kBool);
    padded.ids.narrow(1, begin, 5).copy_(alone.ids);
    padded.types.narrow(1, begin, 5).copy_(alone.types);
    padded.mask.narrow(1, begin, 5).fill_(true);
    const Outputs found = model.forward(padded);
    CHECK(relative_error(found.hidden.narrow(1, begin, 5), expected.hidden) < 1e-12);
    CHECK(relative_error(found.pooled, expected.pooled) < 1e-12);
  }
}

TEST_CASE("float32 and bfloat16 run every architecture close to float64") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 1, 9);
    const at::Tensor exact = run(a, tensors, inputs);
    const Executor single({a, as_weights(tensors)}, at::kFloat), narrow({a, as_weights(tensors)}, at::kBFloat16);
    CHECK(relative_error(single.forward(inputs).logits.to(at::kDouble), exact) < 1e-4);
    CHECK(relative_error(narrow.forward(inputs).logits.to(at::kDouble), exact) < 0.3);
  }
}

TEST_CASE("ALiBi counts distances: a text may begin anywhere, in any precision") {
  const Architecture a = parse(
      R"({"width": 12, "vocab": 23, "context": 4096, "blocks": [{"repeat": 2, "attention": {"heads": 3, "head_width": 4, "alibi": {"scaled": false}}}]})");
  const Tensors tensors = generic_tensors(a);
  Inputs near = random_inputs(a, 2, 40), far = near;
  near.positions = at::arange(40, at::kLong).unsqueeze(0);
  far.positions = near.positions + 3001;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    CAPTURE(at::toString(dtype));
    const Executor model({a, as_weights(tensors)}, dtype);
    CHECK(model.forward(near).logits.equal(model.forward(far).logits));
  }
  // At the end of a long text, the error is that of a short one.
  const Inputs text = random_inputs(a, 1, 2000);
  const at::Tensor exact = run(a, tensors, text);
  const Executor narrow({a, as_weights(tensors)}, at::kBFloat16);
  const at::Tensor found = narrow.forward(text).logits.to(at::kDouble);
  const double first = relative_error(found.narrow(1, 0, 50), exact.narrow(1, 0, 50));
  const double last = relative_error(found.narrow(1, 1950, 50), exact.narrow(1, 1950, 50));
  CHECK(first < 0.05);
  CHECK(last < 0.05);
}

TEST_CASE("gradients are recorded for training only, and are right") {
  const Architecture a = parse(causal(R"(, "bias": {"query": true, "key": true, "value": true, "output": true})"));
  const Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 2, 6);
  CHECK_FALSE(double_model(a, tensors).forward(inputs).logits.requires_grad());

  const Executor model({a, as_weights(tensors)}, at::kDouble, at::kCPU, Use::training);
  {
    const at::NoGradGuard no_grad;
    CHECK_FALSE(model.forward(inputs).logits.requires_grad());
  }
  const auto loss_of = [&](const Outputs& outputs) { return outputs.logits.square().mean(); };
  loss_of(model.forward(inputs)).backward();
  CHECK(model.parameters().size() == tensors.size());
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : model.parameters()) {
    CAPTURE(name);
    REQUIRE(parameter.grad().defined());
    const at::Tensor flat = parameter.view({-1});
    const int64_t where = parameter.grad().abs().view({-1}).argmax().item<int64_t>();
    const double step = 1e-5, before = flat[where].item<double>();
    flat[where].fill_(before + step);
    const double above = loss_of(model.forward(inputs)).item<double>();
    flat[where].fill_(before - step);
    const double below = loss_of(model.forward(inputs)).item<double>();
    flat[where].fill_(before);
    const double expected = (above - below) / (2 * step), found = parameter.grad().view({-1})[where].item<double>();
    CHECK(std::abs(found - expected) < 1e-6 * std::max(std::abs(expected), 1e-3));
  }
}

TEST_CASE("taps replace as well as record") {
  const Architecture a = parse(causal(""));
  const Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 1, 6);
  Taps record;
  record.record("residual.*");
  const at::Tensor plain = run(a, tensors, inputs, &record);
  CHECK(record.recorded().size() == 5);  // 0, 0.mid, 1, 1.mid, 2

  Taps silence;  // no attention output in the second layer: the middle of its residual is its beginning
  silence.replace("blocks.1.attention.output",
                  [](const std::string&, const at::Tensor& value) { return at::zeros_like(value); });
  silence.record("residual.1*");
  const at::Tensor silenced = run(a, tensors, inputs, &silence);
  CHECK(silence.recorded().at("residual.1.mid").equal(silence.recorded().at("residual.1")));
  CHECK(relative_error(silenced, plain) > 1e-3);

  Taps uniform;  // every query looks at the first token alone
  uniform.replace("blocks.*.attention.probabilities", [](const std::string&, const at::Tensor& value) {
    at::Tensor first = at::zeros_like(value);
    first.select(-1, 0).fill_(1);
    return first;
  });
  uniform.record("blocks.0.attention.heads");
  run(a, tensors, inputs, &uniform);
  const at::Tensor& heads = uniform.recorded().at("blocks.0.attention.heads");
  CHECK(heads.select(1, 0).allclose(heads.select(1, 5)));
}

TEST_CASE("the example architectures run, fused and explicit alike") {
  const char* chosen = std::getenv("PARE_SHARED");
  const std::filesystem::path folder = std::filesystem::path(chosen ? chosen : "../shared") / "architectures";
  if (!std::filesystem::exists(folder)) {
    std::puts(("skipped the example architectures: no " + folder.string()).c_str());
    return;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    const Architecture a = parse(read_text_file(entry.path(), 1 << 20));
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 20);
    Taps taps;
    taps.record("blocks.*.attention.scores");
    const at::Tensor expected = run(a, tensors, inputs, &taps);
    CHECK(expected.isfinite().all().item<bool>());
    CHECK(relative_error(run(a, tensors, inputs), expected) < 1e-12);
    CHECK(taps.recorded().size() == layer_blocks(a).size());
  }
}

TEST_CASE("a sequence past the learned positions is refused") {
  const Architecture a = parse(causal(""));
  const Executor model = double_model(a, generic_tensors(a));
  const auto refuses = [&](const Inputs& inputs, Cache* cache = nullptr) {
    CHECK_THROWS_WITH_AS(model.forward(inputs, cache), doctest::Contains("position 32 is past the 32"), InputError);
  };
  Inputs inputs = random_inputs(a, 1, 33);
  refuses(inputs);
  inputs.mask = at::ones({1, 33}, at::kBool);
  refuses(inputs);
  inputs = random_inputs(a, 1, 2);
  inputs.positions = at::tensor({31, 32}, at::kLong).unsqueeze(0);
  refuses(inputs);
  Cache cache;
  model.forward(random_inputs(a, 1, 31), &cache);
  inputs.positions.reset();
  refuses(inputs, &cache);
}

}  // namespace pare::test
