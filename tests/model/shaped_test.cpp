// Shaped attention: alpha I + beta softmax - gamma C, written out as matrices, and where it starts.

#include "pare/model/taps.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

const char* const attention_of_first = "blocks.0.attention.";

// Every head's output by the matrices of the definition, from the softmax and the values that the model itself had.
at::Tensor by_matrices(const Architecture& a, const at::Tensor& shape, const Taps& taps, const at::Tensor& seen) {
  const std::string prefix = attention_of_first;
  const at::Tensor softmax = taps.recorded().at(prefix + "probabilities");
  const int64_t heads = a.blocks[0].attention.heads, tokens = softmax.size(-1);
  const at::Tensor stored = taps.recorded().at(prefix + "value").transpose(1, 2);  // [batch, kv heads, tokens, k]
  const at::Tensor values = stored.repeat_interleave(heads / stored.size(1), 1);
  const at::Tensor same = at::eye(tokens, at::kDouble), alike = seen / seen.sum(-1, true);
  at::Tensor result = at::zeros_like(values);
  for (int64_t b = 0; b < values.size(0); ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const at::Tensor matrix =
          shape[h][0] * same + shape[h][1] * softmax[b][h] - shape[h][2] * (alike.dim() == 3 ? alike[b] : alike);
      result[b][h].copy_(at::matmul(matrix, values[b][h]));
    }
  }
  return result.transpose(1, 2);
}

}  // namespace

TEST_CASE("shaped heads are what the three matrices give, under every mask") {
  struct Case {
    const char *name, *attention;
    bool padded;
  };
  for (const Case& test : std::initializer_list<Case>{{"causal", "", false},
                                                      {"grouped", R"(, "kv_heads": 2)", false},
                                                      {"full", R"(, "mask": "full")", false},
                                                      {"window", R"(, "window": 3)", false},
                                                      {"causal, padded", "", true},
                                                      {"full, padded", R"(, "mask": "full")", true}}) {
    CAPTURE(test.name);
    const Architecture a = parse(causal(std::string(R"(, "shaped": true)") + test.attention));
    const Tensors tensors = generic_tensors(a);
    Inputs inputs = random_inputs(a, 2, 7);
    at::Tensor seen = at::ones({7, 7}, at::kDouble);
    if (a.blocks[0].attention.mask == Mask::causal) {
      seen = seen.tril();
    }
    if (a.blocks[0].attention.window) {
      seen = seen.triu(-2);
    }
    if (test.padded) {
      inputs.mask = at::ones({2, 7}, at::kBool);
      inputs.mask[1].narrow(0, 5, 2).fill_(false);
      seen = (seen.unsqueeze(0) * inputs.mask.unsqueeze(1).to(at::kDouble)).clone();
      seen = at::maximum(seen, at::eye(7, at::kDouble));  // a padded token sees itself
    }
    Taps taps;
    for (const char* name : {"probabilities", "value", "heads"}) {
      taps.record(std::string(attention_of_first) + name);
    }
    run(a, tensors, inputs, &taps);
    const at::Tensor found = taps.recorded().at(std::string(attention_of_first) + "heads");
    const at::Tensor expected = by_matrices(a, tensors.at("blocks.0.attention.shape.weight"), taps, seen);
    CHECK((found - expected).abs().max().item<double>() < 1e-13);

    Taps only;  // without a look at the probabilities the fused kernel is taken
    only.record(std::string(attention_of_first) + "heads");
    run(a, tensors, inputs, &only);
    CHECK((only.recorded().at(std::string(attention_of_first) + "heads") - expected).abs().max().item<double>() <
          1e-13);
  }
}

TEST_CASE("where all scores are the same, shaped attention starts as the identity") {
  const Architecture a = parse(causal(R"(, "shaped": true, "skip": false)"));
  Tensors tensors;
  for (const auto& [name, weight] : random_weights(a, 3, Dtype::f64, Draw::plain)) {
    tensors[name] = weight.load();
  }
  CHECK(tensors.at("blocks.1.attention.shape.weight").eq(1).all().item<bool>());
  tensors.at("blocks.0.attention.query.weight").zero_();
  Taps taps;
  for (const char* name : {"value", "heads"}) {
    taps.record(std::string(attention_of_first) + name);
  }
  run(a, tensors, random_inputs(a, 2, 9), &taps);
  const at::Tensor heads = taps.recorded().at(std::string(attention_of_first) + "heads");
  const at::Tensor values = taps.recorded().at(std::string(attention_of_first) + "value");
  CHECK((heads - values).abs().max().item<double>() < 1e-14);
}

}  // namespace pare::test
