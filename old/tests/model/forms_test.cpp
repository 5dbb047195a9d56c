// Every stored form against the plain one it stands for.

#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t kWidth = 12, kHeads = 4, kHead = 3;

std::string block(int n, const std::string& rest) {
  return "blocks." + std::to_string(n) + "." + rest;
}

// Both architectures read the same tensors, except for what `change` does to them.
double difference(const std::string& reference, const std::string& candidate,
                  const std::function<void(Tensors&)>& change) {
  const Architecture a = parse(reference), b = parse(candidate);
  Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 2, 9);
  const at::Tensor expected = run(a, tensors, inputs);
  change(tensors);
  return relative_error(run(b, tensors, inputs), expected);
}

}  // namespace

TEST_CASE("identity is a dense identity matrix") {
  for (const std::string which : {"query", "key", "value", "output"}) {
    CAPTURE(which);
    const Architecture dense = parse(causal("")), identity = parse(causal(", \"" + which + "\": \"identity\""));
    Tensors tensors = generic_tensors(dense);
    for (int n : {0, 1}) {
      tensors[block(n, "attention." + which + ".weight")] = at::eye(kWidth, at::kDouble);
    }
    const Inputs inputs = random_inputs(dense, 2, 9);
    CHECK(relative_error(run(identity, tensors, inputs), run(dense, tensors, inputs)) < 1e-13);
  }
}

TEST_CASE("a query that is the key has its weight and bias") {
  const std::string biases = R"(, "bias": {"query": true, "key": true})";
  const Architecture dense = parse(causal(biases)),
                     shared = parse(causal(R"(, "query": "key", "bias": {"key": true})"));
  Tensors tensors = generic_tensors(dense);
  for (int n : {0, 1}) {
    tensors[block(n, "attention.query.weight")] = tensors[block(n, "attention.key.weight")];
    tensors[block(n, "attention.query.bias")] = tensors[block(n, "attention.key.bias")];
  }
  const Inputs inputs = random_inputs(dense, 2, 9);
  CHECK(relative_error(run(shared, tensors, inputs), run(dense, tensors, inputs)) < 1e-13);
}

TEST_CASE("collapsed scores are the product of query and key, the key bias gone") {
  const std::string reference = causal(R"(, "kv_heads": 2, "bias": {"query": true, "key": true})");
  const std::string candidate = causal(R"(, "kv_heads": 2, "scores": "collapsed", "bias": {"query": true})");
  CHECK(difference(reference, candidate, [](Tensors& t) {
          for (int n : {0, 1}) {
            const at::Tensor q = t[block(n, "attention.query.weight")].view({kHeads, kHead, kWidth});
            const at::Tensor k = t[block(n, "attention.key.weight")].view({2, kHead, kWidth}).repeat_interleave(2, 0);
            const at::Tensor b = t[block(n, "attention.query.bias")].view({kHeads, 1, kHead});
            t[block(n, "attention.qk.weight")] = at::matmul(q.transpose(1, 2), k);
            t[block(n, "attention.qk.bias")] = at::matmul(b, k).squeeze(1);
          }
        }) < 1e-13);
}

TEST_CASE("collapsed values are the product of value and output") {
  const std::string reference = causal(R"(, "kv_heads": 2, "bias": {"output": true})");
  const std::string candidate = causal(R"(, "kv_heads": 2, "values": "collapsed", "bias": {"output": true})");
  CHECK(
      difference(reference, candidate, [](Tensors& t) {
        for (int n : {0, 1}) {
          const at::Tensor v = t[block(n, "attention.value.weight")].view({2, kHead, kWidth}).repeat_interleave(2, 0);
          const at::Tensor o = t[block(n, "attention.output.weight")].view({kWidth, kHeads, kHead}).permute({1, 2, 0});
          t[block(n, "attention.vo.weight")] = at::matmul(v.transpose(1, 2), o);
        }
      }) < 1e-13);
}

TEST_CASE("a shrunk pair is a dense matrix with an identity block") {
  const Architecture shrunk =
      parse(causal(R"(, "kv_heads": 2, "pairs": {"value_output": "shrunk", "query_key": "shrunk"})"));
  const Architecture dense = parse(causal(R"(, "kv_heads": 2)"));
  Tensors tensors = generic_tensors(shrunk);
  const Inputs inputs = random_inputs(dense, 2, 9);
  const at::Tensor found = run(shrunk, tensors, inputs);
  for (int n : {0, 1}) {
    for (const std::string which : {"key", "value"}) {
      const std::string name = block(n, "attention." + which);
      const at::Tensor rest = tensors[name + ".weight"], pivots = tensors[name + ".pivot"];
      at::Tensor full = at::zeros({2, kHead, kWidth}, at::kDouble);
      for (int g = 0; g < 2; ++g) {
        for (int j = 0; j < kHead; ++j) {
          int other = 0;  // the non-pivot inputs, ascending
          for (int i = 0; i < kWidth; ++i) {
            const at::Tensor where = (pivots[g] == i).nonzero();
            if (where.numel() == 0) {
              full[g][j][i] = rest[g][j][other++];
            } else if (where[0][0].item<int64_t>() == j) {
              full[g][j][i] = 1;
            }
          }
        }
      }
      tensors[name + ".weight"] = full.view({2 * kHead, kWidth});
    }
  }
  CHECK(relative_error(found, run(dense, tensors, inputs)) < 1e-13);
}

TEST_CASE("neuron heads are a SiLU MLP with its biases, and a sigmoid-gated one") {
  const std::string heads = R"({"kind": "heads", "width": 20, "shared_value": true, "bias": {"down": true}})";
  const std::string silu = R"({"width": 20, "activation": "silu", "bias": {"up": true, "down": true}})";
  CHECK(difference(causal("", silu), causal("", heads), [](Tensors& t) {
          for (int n : {0, 1}) {
            t[block(n, "mlp.query.weight")] =
                at::cat({t[block(n, "mlp.up.weight")], t[block(n, "mlp.up.bias")].unsqueeze(1)}, 1);
            t[block(n, "mlp.output.weight")] = t[block(n, "mlp.down.weight")];
            t[block(n, "mlp.output.bias")] = t[block(n, "mlp.down.bias")];
          }
        }) < 1e-13);
  const std::string glu =
      R"({"width": 20, "activation": "sigmoid", "gated": true, "bias": {"up": true, "gate": true}})";
  CHECK(difference(causal("", glu), causal("", R"({"kind": "heads", "width": 20})"), [](Tensors& t) {
          for (int n : {0, 1}) {
            t[block(n, "mlp.query.weight")] =
                at::cat({t[block(n, "mlp.gate.weight")], t[block(n, "mlp.gate.bias")].unsqueeze(1)}, 1);
            t[block(n, "mlp.value.weight")] =
                at::cat({t[block(n, "mlp.up.weight")], t[block(n, "mlp.up.bias")].unsqueeze(1)}, 1);
            t[block(n, "mlp.output.weight")] = t[block(n, "mlp.down.weight")];
          }
        }) < 1e-13);
}

TEST_CASE("a gate without weights is one half: plain attention is in it with the output doubled") {
  CHECK(difference(causal(""), causal(R"(, "gate": "position")"), [](Tensors& t) {
          for (int n : {0, 1}) {
            t[block(n, "attention.gate.weight")] = at::zeros({kHeads, kWidth}, at::kDouble);
            t[block(n, "attention.gate.position")] = at::zeros({kHeads, kWidth}, at::kDouble);
            t[block(n, "attention.gate.bias")] = at::zeros({kHeads}, at::kDouble);
            t[block(n, "attention.output.weight")] = 2 * t[block(n, "attention.output.weight")];
          }
        }) < 1e-13);
}

TEST_CASE("slim caches compute the dropped matrix from the kept one") {
  const std::string biases = R"(, "bias": {"key": true, "value": true})";
  for (const auto& [kind, kept, dropped, made] :
       {std::tuple{"k", "key", "value", "value_from_key"}, std::tuple{"v", "value", "key", "key_from_value"}}) {
    CAPTURE(kind);
    const std::string candidate = causal(biases + R"(, "cache": ")" + kind + "\"");
    CHECK(difference(causal(biases), candidate, [&](Tensors& t) {
            for (int n : {0, 1}) {  // W_dropped = T W_kept with a square W_kept: T = W_dropped W_kept^-1
              const at::Tensor from = t[block(n, std::string("attention.") + kept + ".weight")];
              const at::Tensor to = t[block(n, std::string("attention.") + dropped + ".weight")];
              t[block(n, std::string("attention.") + made + ".weight")] = at::linalg_solve(from.t(), to.t()).t();
            }
          }) < 1e-11);
  }
  CHECK(difference(causal(biases), causal(biases + R"(, "cache": "x")"), [](Tensors&) {}) < 1e-13);
}

TEST_CASE("a first-layer table holds the stream and the three projections of every token") {
  const std::string norm = R"(, "rope": {}, "norm": {"kind": "rms"}, "bias": {"query": true})";
  CHECK(difference(rotary(norm), rotary(norm, R"(, "first_layer": "table")"), [](Tensors& t) {
          const at::Tensor x = t["embed.token.weight"];
          const at::Tensor y = x * at::rsqrt(x.square().mean(-1, true) + 1e-5) * t[block(0, "attention.norm.weight")];
          t["embed.table.weight"] =
              at::cat({x, at::linear(y, t[block(0, "attention.query.weight")], t[block(0, "attention.query.bias")]),
                       at::linear(y, t[block(0, "attention.key.weight")]),
                       at::linear(y, t[block(0, "attention.value.weight")])},
                      1);
        }) < 1e-13);
}

TEST_CASE("shared blocks are copies that are stored once") {
  const std::string mlp = R"({"width": 20, "activation": "gelu"})";
  const Architecture shared = parse(causal("", mlp, R"(, "layers": [0, 1, 1, 0])"));
  Architecture copied = parse(causal("", mlp));
  copied.blocks.resize(4, copied.blocks.front());
  Tensors once = generic_tensors(shared), four = once;
  for (const auto& [name, tensor] : once) {
    if (name.starts_with("blocks.1.")) {
      four["blocks.2." + name.substr(9)] = tensor;
    } else if (name.starts_with("blocks.0.")) {
      four["blocks.3." + name.substr(9)] = tensor;
    }
  }
  const Inputs inputs = random_inputs(shared, 2, 9);
  CHECK(relative_error(run(shared, once, inputs), run(copied, four, inputs)) < 1e-13);
}

TEST_CASE("the two rope layouts differ by a permutation of each head's dimensions") {
  const std::string interleaved = rotary(R"(, "rope": {"layout": "interleaved"})"),
                    half = rotary(R"(, "rope": {"layout": "half"})");
  CHECK(difference(interleaved, half, [](Tensors& t) {
          const at::Tensor order = at::tensor({0, 2, 4, 1, 3, 5}, at::kLong);
          for (int n : {0, 1}) {
            for (const auto& [which, heads] : {std::pair{"query", 4}, {"key", 2}}) {
              at::Tensor& w = t[block(n, std::string("attention.") + which + ".weight")];
              w = w.view({heads, 6, kWidth}).index_select(1, order).reshape({heads * 6, kWidth});
            }
          }
        }) < 1e-13);
}

TEST_CASE("an image model: patches, class token, positions, by hand") {
  const Architecture a = parse(
      R"({"task": "classifier", "width": 6, "context": 5, "embedding": {"position": "learned", "class_token": true,
      "patch": {"size": 2, "channels": 3, "image": 4}}, "blocks": [{"attention": {"heads": 2, "head_width": 3, "mask": "full"}}], "head": {"classes": 4, "bias": true}})");
  const Tensors t = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 2, 0);
  Taps taps;
  taps.record("residual.0");
  CHECK(run(a, t, inputs, &taps).sizes() == at::IntArrayRef({2, 4}));
  const at::Tensor convolved =
      at::conv2d(inputs.pixels, t.at("embed.patch.weight"), t.at("embed.patch.bias"), 2).flatten(2).transpose(1, 2);
  const at::Tensor expected =
      at::cat({t.at("embed.class").expand({2, 1, 6}), convolved}, 1) + t.at("embed.position.weight");
  CHECK(relative_error(taps.recorded().at("residual.0"), expected) < 1e-13);
}

TEST_CASE("norms by their formulas") {
  for (const std::string kind : {"rms", "layer", "dyt"}) {
    CAPTURE(kind);
    const Architecture a = parse(causal(
        "", "null", R"(, "final_norm": {"kind": ")" + kind + R"(", "bias": true, "offset": 1.0, "epsilon": 0.1})"));
    const Tensors t = generic_tensors(a);
    Taps taps;
    taps.record("residual.2");
    taps.record("final");
    run(a, t, random_inputs(a, 2, 9), &taps);
    const at::Tensor x = taps.recorded().at("residual.2"), gain = t.at("norm.weight") + 1;
    at::Tensor y;
    if (kind == "rms") {
      y = x / (x.square().mean(-1, true) + 0.1).sqrt();
    } else if (kind == "layer") {
      const at::Tensor centred = x - x.mean(-1, true);
      y = centred / (centred.square().mean(-1, true) + 0.1).sqrt();
    } else {
      y = at::tanh(t.at("norm.alpha") * x);
    }
    CHECK(relative_error(taps.recorded().at("final"), y * gain + t.at("norm.bias")) < 1e-13);
  }
}

TEST_CASE("a window hides what is further back") {
  const Architecture a = parse(causal(R"(, "window": 3)"));
  Taps taps;
  taps.record("blocks.0.attention.probabilities");
  run(a, generic_tensors(a), random_inputs(a, 1, 9), &taps);
  const at::Tensor seen = taps.recorded().at("blocks.0.attention.probabilities")[0][0] > 0;
  for (int64_t i = 0; i < 9; ++i) {
    for (int64_t j = 0; j < 9; ++j) {
      CHECK(seen[i][j].item<bool>() == (j <= i && i - j < 3));
    }
  }
}

}  // namespace pare::test
