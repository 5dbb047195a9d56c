#pragma once
// Small Architectures whose exact redundancy is known: measured as parameters less the rank of the Jacobian, by people
// who did not use this code. tests/arch/redundancy_test.cpp asks the rules, tests/probes/jacobian_rank_test.cpp
// measures.

#include <cstdint>
#include <string>
#include <vector>

namespace pare::test {

struct CountedArchitecture {
  std::string name;
  int64_t parameters = 0, redundant = 0;
  std::string json;
};

// What differs from: width 6, 2 heads of 3, MLP 9, vocabulary 8, 5 learned positions, 2 layers, GELU, causal, no
// biases.
struct Variation {
  std::string attention = R"("heads": 2, "head_width": 3)", mlp = R"("width": 9, "activation": "gelu")";
  std::string ends = R"("vocab": 8, "embedding": {"position": "learned"})";
  int width = 6;
};

inline std::string json_of(const Variation& v) {
  return R"({"width": )" + std::to_string(v.width) + R"(, "context": 5, )" + v.ends +
         R"(, "blocks": [{"repeat": 2, "attention": {)" + v.attention + R"(}, "mlp": {)" + v.mlp + "}}]}";
}

inline std::vector<CountedArchitecture> counted_architectures() {
  const std::string heads = R"("heads": 2, "head_width": 3)", mlp = R"("width": 9, "activation": "gelu")";
  const std::string learned = R"("vocab": 8, "embedding": {"position": "learned"})";
  const std::string tied = R"(, "head": {"tied": true})", skipless = R"(, "skip": false)";
  const std::string bare = R"({"kind": "rms", "gain": false})", gained = R"({"kind": "rms"})";
  const std::string bare_layer = R"({"kind": "layer", "gain": false})";
  const std::string full_layer = R"({"kind": "layer", "bias": true})";
  const auto norm = [](const std::string& n) { return R"(, "norm": )" + n; };
  const auto final = [](const std::string& n) { return R"(, "final_norm": )" + n; };
  const std::string attention_biases = R"(, "bias": {"query": true, "key": true, "value": true, "output": true})";
  const std::string mlp_biases = R"(, "bias": {"up": true, "down": true})";
  return {
      {"no skips, no norm, untied", 630, 258, json_of({heads + skipless, mlp + skipless})},
      {"attention skip only, untied", 630, 186, json_of({heads, mlp + skipless})},
      {"attention skip only, tied", 582, 144, json_of({heads, mlp + skipless, learned + tied})},
      {"both skips, untied", 630, 114, json_of({})},
      {"both skips, tied", 582, 87, json_of({heads, mlp, learned + tied})},
      {"ReLU", 630, 132, json_of({heads, R"("width": 9, "activation": "relu")"})},
      {"SwiGLU", 738, 132, json_of({heads, R"("width": 9, "activation": "silu", "gated": true)"})},
      {"one KV head", 558, 78, json_of({heads + R"(, "kv_heads": 1)"})},
      {"all biases", 708, 162, json_of({heads + attention_biases, mlp + mlp_biases})},
      {"pre-RMSNorm without gain", 630, 93, json_of({heads + norm(bare), mlp + norm(bare), learned + final(bare)})},
      {"pre-RMSNorm with gain", 660, 123, json_of({heads + norm(gained), mlp + norm(gained), learned + final(gained)})},
      {"RoPE", 960, 144,
       json_of({R"("heads": 2, "head_width": 4, "rope": {"theta": 10000})", mlp, R"("vocab": 10)", 8})},
      {"pre-LayerNorm without gain", 630, 192,
       json_of({heads + norm(bare_layer), mlp + norm(bare_layer), learned + final(bare_layer)})},
      {"pre-LayerNorm, all biases", 768, 272,
       json_of({heads + attention_biases + norm(full_layer), mlp + mlp_biases + norm(full_layer),
                learned + final(full_layer)})},
  };
}

}  // namespace pare::test
