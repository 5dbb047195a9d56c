// Huge numbers that cancel have roundings as large as what is left. Here candidates are built of them, and references
// computed from the candidates, so that each control is the same function; then the reference gets a feature that one
// rare token alone has. No row of others shows it: only the relations can.

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/proof/forms.h"

using namespace pare;
using namespace pare::test;

namespace {

constexpr int64_t rare = 31, hidden = 5;

bool ends(const std::string& name, const char* text) {
  return name.ends_with(text);
}

// Only the embedding of the rare token has the hidden dimension, and no block writes it.
void hide(Tensors& tensors, double size) {
  for (auto& [name, tensor] : tensors) {
    if (name == "embed.token.weight") {
      tensor.select(1, hidden).zero_();
      tensor[rare].zero_();
      tensor[rare][hidden] = size;
    } else if (ends(name, "output.weight") || ends(name, "down.weight") || ends(name, "down.bias")) {
      tensor[hidden].zero_();
    }
  }
}

Tensors hiding(const Architecture& architecture, double size = 20) {
  Tensors tensors = generic_tensors(architecture, 1);
  hide(tensors, size);
  return tensors;
}

double apart(const Pair& pair, const std::vector<int64_t>& ids) {
  const Inputs inputs{.ids = at::tensor(ids, at::kLong).unsqueeze(0)};
  const at::Tensor a = run(pair.a, pair.ta, inputs), b = run(pair.b, pair.tb, inputs);
  return (a - b).abs().max().item<double>();
}

struct Precision {
  at::ScalarType dtype;
  double huge;
};
// Numbers of the reference itself that are so large in float64 are as far apart as the attack moves them.
constexpr double one_rounding_is_all = 0x1p51;

// The control is proved; what differs for the rare token alone is not, whichever of the two is the reference. In
// float64 numbers so huge leave nothing of an executor's digits either: there only the attack is asked.
void check_attack(const Precision& in, const Pair& control, const Pair& attack) {
  const auto proof = [](const Pair& pair) {
    return prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(pair.tb)}, at::kCPU);
  };
  CHECK(apart(attack, {3, rare, 9, rare, 30}) > 0.02);
  CHECK_FALSE(proof(attack).complete);
  if (in.huge < one_rounding_is_all) {
    CHECK_FALSE(proof({attack.b, attack.a, attack.tb, attack.ta}).complete);
  }
  if (in.dtype != at::kDouble) {
    const Proof right = proof(control);
    CHECK_MESSAGE(right.complete, why(right));
    CHECK(apart(attack, {3, 7, 9, 11, 30}) < 1e-4);
  }
}

const Precision precisions[] = {{at::kFloat, 0x1p24}, {at::kDouble, 0x1p50}};

at::Tensor stored(const at::Tensor& x, const Precision& in) {
  return x.to(in.dtype).to(at::kDouble);
}

Tensors in_float64(const Tensors& tensors) {
  return rounded(tensors, at::kDouble);
}

// The tensor moved in the hidden column.
Pair with_feature(const Pair& pair, const std::string& name, int64_t row, double by) {
  Pair attack = pair;
  attack.ta[name] = pair.ta.at(name).clone();
  attack.ta[name].select(-1, hidden).select(-1, row).add_(by);
  return attack;
}

const char* const plain_heads =
    R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{"attention": {"heads": 3, "head_width": 4},
        "mlp": {"width": 20, "activation": "gelu"}}]})";

}  // namespace

TEST_CASE("cancelling: values from keys") {
  for (const Precision& in : precisions) {
    CAPTURE(in.huge);
    Pair pair;
    pair.a = pair.b = parse(plain_heads);
    pair.b.blocks[0].attention.value = FromKey{};
    pair.ta = hiding(pair.a);
    const std::string prefix = "blocks.0.attention.";
    at::Tensor& key = pair.ta.at(prefix + "key.weight");
    key = stored(key, in);
    key[1] = key[0];
    at::Tensor map = generic_tensors(pair.b, 2).at(prefix + "value_from_key.weight").clone();
    map.select(1, 0).add_(in.huge);
    map.select(1, 1).sub_(in.huge);
    map = stored(map, in);
    pair.ta[prefix + "value.weight"] = at::matmul(map, key);
    pair.tb = pair.ta;
    pair.tb.erase(prefix + "value.weight");
    pair.tb[prefix + "value_from_key.weight"] = map;
    pair.tb = rounded(pair.tb, in.dtype);
    for (auto& [name, tensor] : pair.tb) {
      if (pair.ta.contains(name)) {
        pair.ta[name] = tensor.to(at::kDouble);
      }
    }
    check_attack(in, pair, with_feature(pair, prefix + "value.weight", 2, 0.05));
  }
}

TEST_CASE("cancelling: a first layer as a table") {
  for (const Precision& in : precisions) {
    CAPTURE(in.huge);
    Pair pair;
    pair.a = pair.b = parse(plain_heads);
    pair.a.first_layer = FirstLayer::table;
    pair.tb = hiding(pair.b);
    for (auto& [name, tensor] : pair.tb) {
      tensor = stored(tensor, in);
      if (name == "embed.token.weight") {
        tensor.narrow(1, 0, 2).fill_(in.huge);
      } else if (ends(name, "query.weight") || ends(name, "key.weight") || ends(name, "value.weight")) {
        tensor.select(1, 1).copy_(-tensor.select(1, 0));
      } else if (ends(name, "up.weight") || name == "head.weight") {
        tensor.narrow(1, 0, 2).zero_();
      }
    }
    pair.ta = pair.tb;
    std::vector<at::Tensor> parts = {pair.tb.at("embed.token.weight")};
    for (const char* name : {"query", "key", "value"}) {
      const std::string id = fmt::format("blocks.0.attention.{}.weight", name);
      parts.push_back(at::matmul(pair.tb.at("embed.token.weight"), pair.tb.at(id).t()));
      pair.ta.erase(id);
    }
    pair.ta.erase("embed.token.weight");
    pair.ta["embed.table.weight"] = at::cat(parts, 1);
    pair.tb = rounded(pair.tb, in.dtype);
    Pair attack = pair;
    attack.ta["embed.table.weight"] = pair.ta.at("embed.table.weight").clone();
    attack.ta["embed.table.weight"][rare].narrow(0, 36, 12).add_(0.5);  // its values
    check_attack(in, pair, attack);
  }
}

TEST_CASE("cancelling: a rotation, and a row with one huge entry") {
  for (const Precision& in : {Precision{at::kFloat, 0x1p22}, Precision{at::kDouble, 0x1p51}}) {
    CAPTURE(in.huge);
    Pair pair;
    pair.a = parse(R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{
        "attention": {"heads": 3, "head_width": 4, "rope": {"theta": 100}, "norm": {"kind": "rms", "gain": false}},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms", "gain": false}}}],
        "final_norm": {"kind": "rms", "gain": false}})");
    pair.b = pair.a;
    Tensors plain = hiding(pair.a);
    const std::string value = "blocks.0.attention.value.weight";
    plain.at("embed.token.weight").select(1, 0).zero_();  // nothing has the first dimension either
    for (const char* name : {"blocks.0.attention.output.weight", "blocks.0.mlp.down.weight"}) {
      plain.at(name)[0].zero_();
    }
    plain.at(value)[2][0] = in.huge;
    const at::Tensor turn = std::get<0>(at::linalg_qr(random_matrix(12, 3)));
    for (auto& [name, tensor] : plain) {
      const bool writes = ends(name, "output.weight") || ends(name, "down.weight");
      const at::Tensor turned = stored(writes ? at::matmul(turn, tensor) : at::matmul(tensor, turn.t()), in);
      pair.tb[name] = turned.to(in.dtype);
      pair.ta[name] = writes ? at::matmul(turn.t(), turned) : at::matmul(turned, turn);
    }
    check_attack(in, pair, with_feature(pair, value, 2, 0.06));
  }
}

TEST_CASE("cancelling: a skip that the neurons took in") {
  for (const Precision& in : {Precision{at::kFloat, 0x1p13}, Precision{at::kDouble, 0x1p27}}) {
    CAPTURE(in.huge);
    const auto made = [&](double lost) {
      Pair pair;
      pair.a = parse(R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{"attention": {"heads": 3, "head_width": 4},
          "mlp": {"width": 20, "activation": "relu"}}]})");
      pair.b = pair.a;
      pair.b.blocks[0].mlp->skip = false;
      pair.ta = hiding(pair.a);
      const std::string prefix = "blocks.0.mlp.";
      at::Tensor up = pair.ta.at(prefix + "up.weight").clone(), down = pair.ta.at(prefix + "down.weight").clone();
      up.narrow(0, 0, 12).copy_(2 * at::eye(12, at::kDouble));
      down.narrow(1, 0, 12).copy_(-at::eye(12, at::kDouble) / 2);
      down[3][hidden] += lost / 2;
      up.narrow(0, 12, 2).zero_();
      down.narrow(1, 12, 2).zero_();
      up.select(0, 12).fill_(in.huge);
      up.select(0, 13).fill_(in.huge);
      down.select(1, 12).fill_(in.huge);
      down.select(1, 13).fill_(-in.huge);
      pair.ta[prefix + "up.weight"] = up;
      pair.ta[prefix + "down.weight"] = down;
      pair.tb = pair.ta = in_float64(rounded(pair.ta, in.dtype));
      pair.tb[prefix + "up.weight"] = pair.ta.at(prefix + "up.weight").clone();
      pair.tb[prefix + "up.weight"].narrow(0, 0, 14).neg_();
      pair.ta = rounded(pair.ta, in.dtype);
      pair.tb = rounded(pair.tb, in.dtype);
      return pair;
    };
    check_attack(in, made(0), made(0.1));
  }
}

TEST_CASE("cancelling: collapsed scores") {
  for (const Precision& in : {Precision{at::kFloat, 0x1p13}, Precision{at::kDouble, 0x1p27}}) {
    CAPTURE(in.huge);
    Pair pair;
    pair.a = pair.b = parse(plain_heads);
    pair.a.blocks[0].attention.scores = Form::collapsed;
    pair.a.blocks[0].attention.bias.query = true;
    const std::string prefix = "blocks.0.attention.";
    pair.tb = hiding(pair.b, 4);
    pair.tb[prefix + "query.weight"].narrow(0, 0, 2).fill_(in.huge);
    pair.tb[prefix + "key.weight"][0].fill_(in.huge);
    pair.tb[prefix + "key.weight"][1].fill_(-in.huge);
    pair.tb = rounded(pair.tb, in.dtype);
    pair.ta = in_float64(pair.tb);
    const auto heads = [&](const char* name) { return pair.ta.at(prefix + name).view({3, 4, 12}); };
    pair.ta[prefix + "qk.weight"] = at::matmul(heads("query.weight").transpose(1, 2), heads("key.weight"));
    pair.ta[prefix + "qk.bias"] = at::zeros({3, 12}, at::kDouble);
    pair.ta.erase(prefix + "query.weight");
    pair.ta.erase(prefix + "key.weight");
    Pair attack = pair;
    attack.ta[prefix + "qk.weight"] = pair.ta.at(prefix + "qk.weight").clone();
    attack.ta[prefix + "qk.weight"][0][hidden].add_(0.07);  // what the rare token asks for
    check_attack(in, pair, attack);
  }
}

// Rows 0 and 1 of each head in a gauge that takes a huge multiple of one to the other.
TEST_CASE("cancelling: sheared gauges of heads") {
  for (const Precision& in : precisions) {
    for (const bool of_values : {true, false}) {
      CAPTURE(in.huge);
      CAPTURE(of_values);
      Pair pair;
      pair.a = pair.b = parse(plain_heads);
      const std::string prefix = "blocks.0.attention.";
      pair.tb = hiding(pair.b, of_values ? 20 : 4);
      const std::string first = prefix + (of_values ? "value.weight" : "query.weight");
      const std::string second = prefix + (of_values ? "output.weight" : "key.weight");
      for (auto& [name, tensor] : pair.tb) {
        tensor = stored(tensor, in);
      }
      at::Tensor reads = pair.tb.at(first).clone();
      at::Tensor writes = (of_values ? pair.tb.at(second).t() : pair.tb.at(second)).clone();  // [heads * k, width]
      reads[0] = stored(reads[0] - in.huge * reads[1], in);
      writes[1] = stored(writes[1] + in.huge * writes[0], in);
      pair.tb[first] = reads;
      pair.tb[second] = of_values ? writes.t().contiguous() : writes;
      pair.ta = pair.tb;
      at::Tensor whole = reads.clone(), partner = writes.clone();
      whole[0] = reads[0] + in.huge * reads[1];
      partner[1] = writes[1] - in.huge * writes[0];
      pair.ta[first] = whole;
      pair.ta[second] = of_values ? partner.t().contiguous() : partner;
      pair.tb = rounded(pair.tb, in.dtype);
      check_attack(in, pair, with_feature(pair, first, 0, of_values ? 0.05 : 0.1));
    }
  }
}

// A weight that is zero stays zero where gains are folded: behind it a dead neuron may have any size.
TEST_CASE("cancelling: a weight of zero that becomes almost zero, before a huge one that nothing used") {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    CAPTURE(dtype);
    Pair pair;
    pair.a = pair.b =
        parse(R"({"width": 12, "vocab": 40, "context": 9, "blocks": [{"attention": {"heads": 3, "head_width": 4},
        "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}]})");
    pair.ta = rounded(hiding(pair.a), dtype);
    pair.ta["blocks.0.mlp.up.weight"][7].zero_();
    pair.ta["blocks.0.mlp.down.weight"].select(1, 7).mul_(1e14);
    pair.tb = rounded(pair.ta, dtype);
    pair.tb["blocks.0.mlp.norm.weight"] = pair.ta["blocks.0.mlp.norm.weight"] / 2;
    pair.tb["blocks.0.mlp.up.weight"] = pair.ta["blocks.0.mlp.up.weight"] * 2;
    Pair attack = pair;
    attack.tb["blocks.0.mlp.up.weight"] = pair.tb["blocks.0.mlp.up.weight"].clone();
    attack.tb["blocks.0.mlp.up.weight"][7][hidden] = 0x1p-42;
    const auto proof = [](const Pair& of) {
      return prove({of.a, as_weights(of.ta)}, {of.b, as_weights(of.tb)}, at::kCPU);
    };
    const Proof right = proof(pair);
    CHECK_MESSAGE(right.complete, why(right));
    CHECK(apart(attack, {3, rare, 9}) > 0.02);
    CHECK_FALSE(proof(attack).complete);
  }
}

// v_0 - K v_1 in the place of v_0 is known to K roundings of v_1, whatever the biases beside it are stored in.
TEST_CASE("a coarse bias beside a matrix says nothing of the matrix's roundings") {
  Pair pair = pair_of(R"({"width": 8, "vocab": 20, "context": 8, "blocks": [{
      "attention": {"heads": 2, "head_width": 4, "bias": {"value": true, "output": true}},
      "mlp": {"width": 16, "activation": "gelu"}}]})");
  const std::string value = "blocks.0.attention.value.", output = "blocks.0.attention.output.";
  for (const std::string& bias : {value + "bias", output + "bias"}) {
    pair.ta[bias] = pair.ta.at(bias).to(at::kBFloat16).to(at::kDouble);
  }
  pair.ta[value + "bias"][1] = 0;  // so that no bias changes
  pair.tb = pair.ta;
  constexpr double shear = 0x1p44;
  at::Tensor values = pair.ta.at(value + "weight").clone(), outputs = pair.ta.at(output + "weight").clone();
  values[0] -= shear * values[1];
  outputs.select(1, 1).add_(outputs.select(1, 0), shear);
  pair.tb[value + "weight"] = values;
  pair.tb[output + "weight"] = outputs;
  CHECK_FALSE(proof_of(pair).complete);
  for (const std::string& bias : {value + "bias", output + "bias"}) {
    pair.tb[bias] = pair.tb.at(bias).to(at::kBFloat16);
  }
  const Proof proof = prove({pair.a, as_weights(pair.ta)}, {pair.b, as_weights(pair.tb)}, at::kCPU);
  CHECK_MESSAGE(!proof.complete, proof.moved);
}
