#pragma once
// Small Architectures whose exact redundancy is known: parameters less the rank of the Jacobian. The fourteen of
// counted_architectures() were measured by people who did not use this code, the further ones with it.
// tests/redundancy/redundancy_test.cpp asks the rules, tests/probes/jacobian_rank_test.cpp measures.

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

// Measured when the rules were written, and explained by them: the same rank of the Jacobian, other features.
inline std::vector<CountedArchitecture> further_architectures() {
  return {
      {"shaped, skipless", 714, 262,
       R"({"width":6,"vocab":12,"context":9,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attentio)"
       R"(n":{"heads":2,"head_width":3,"shaped":true,"skip":false},"mlp":{"width":9,"activation":"gelu","skip":)"
       R"(false}}]})"},
      {"shaped, skipless, no output matrix", 642, 190,
       R"({"width":6,"vocab":12,"context":9,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attentio)"
       R"(n":{"heads":2,"head_width":3,"shaped":true,"output":"identity","skip":false},"mlp":{"width":9,"activ)"
       R"(ation":"gelu","skip":false}}]})"},
      {"shaped, RMSNorm with gains", 744, 127,
       R"({"width":6,"vocab":12,"context":9,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attentio)"
       R"(n":{"heads":2,"head_width":3,"shaped":true,"norm":{"kind":"rms"}},"mlp":{"width":9,"activation":"gel)"
       R"(u","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"tied, with gains", 624, 96,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"}},"mlp":{"width":9,"activation":"gelu","norm":{"kin)"
       R"(d":"rms"}}}],"final_norm":{"kind":"rms"},"head":{"tied":true}})"},
      {"ReGLU", 750, 150,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3},"mlp":{"width":9,"activation":"relu","gated":true}}]})"},
      {"QK-norm with gains", 684, 93,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"}},"mlp":{"width":9,"activa)"
       R"(tion":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"QK-norm without gains", 672, 99,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","gain":false}},"mlp":{"wid)"
       R"(th":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"QK-norm with gains, RoPE", 784, 119,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"},"rope":{"theta":100}},"ml)"
       R"(p":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"QK-norm without gains, RoPE, one KV head", 672, 87,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","gain":false},"rope":{"the)"
       R"(ta":100},"kv_heads":1},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{")"
       R"(kind":"rms"}})"},
      {"symmetric query", 570, 90,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"query":"key"},"mlp":{"width":9,"activation":"gelu"}}]})"},
      {"symmetric query, RoPE", 642, 114,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"query":"key","rope":{"theta":100}},"mlp":{"width":9,"activation":"gelu")"
       R"(}}]})"},
      {"softcap, attention biases", 690, 132,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"softcap":2.0,"bias":{"key":true,"query":true,"value":true,"output":true)"
       R"(}},"mlp":{"width":9,"activation":"gelu"}}]})"},
      {"no output bias", 678, 132,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"bias":{"key":true,"query":true,"value":true}},"mlp":{"width":9,"activat)"
       R"(ion":"gelu"}}]})"},
      {"no output bias, LayerNorm", 738, 242,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"bias":{"key":true,"query":true,"val)"
       R"(ue":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"layer","bias":true}}}],"final_norm":)"
       R"({"kind":"layer","bias":true}})"},
      {"DyT", 677, 109,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"dyt"}},"mlp":{"width":9,"activation":"gelu","norm":{"kin)"
       R"(d":"dyt"}}}],"final_norm":{"kind":"dyt"}})"},
      {"DyT, tied", 629, 97,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"dyt"}},"mlp":{"width":9,"activation":"gelu","norm":{"kin)"
       R"(d":"dyt"}}}],"final_norm":{"kind":"dyt"},"head":{"tied":true}})"},
      {"output norms, tied", 714, 82,
       R"({"width":6,"vocab":8,"context":7,"embedding":{},"blocks":[{"repeat":2,"attention":{"heads":2,"head_w)"
       R"(idth":4,"norm":{"kind":"rms"},"output_norm":{"kind":"rms"},"rope":{"theta":100},"kv_heads":1,"softca)"
       R"(p":5.0},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"},"output_norm":{"kind":"rms"},"gat)"
       R"(ed":true}}],"final_norm":{"kind":"rms"},"head":{"tied":true,"softcap":3.0}})"},
      {"shrunk pairs", 570, 42,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"pairs":{"value_output":"shrunk","query_key":"shrunk"}},"mlp":{"width":9)"
       R"(,"activation":"gelu"}}]})"},
      {"collapsed heads, LayerNorm", 642, 162,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"layer","gain":false},"scores":"collapsed","values":"coll)"
       R"(apsed"},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"layer","gain":false}}}],"final_norm":{")"
       R"(kind":"layer","gain":false}})"},
      {"attention skip only, query is the identity", 570, 114,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"query":"identity"},"mlp":{"width":9,"activation":"gelu","skip":false}}])"
       R"(})"},
      {"values from keys", 642, 114,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"cache":"k"},"mlp":{"width":9,"activation":"gelu"}}]})"},
      {"neuron heads", 786, 132,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3},"mlp":{"width":9,"kind":"heads"}}]})"},
      {"one head as wide as the stream, LayerNorm", 642, 262,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":1,"head_width":6,"norm":{"kind":"layer","gain":false}},"mlp":{"width":9,"activation":"gel)"
       R"(u","norm":{"kind":"layer","gain":false}}}],"final_norm":{"kind":"layer","gain":false}})"},
      {"image classifier", 753, 282,
       R"({"width":6,"vocab":0,"context":5,"embedding":{"position":"learned","class_token":true,"patch":{"size)"
       R"(":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,"attention":{"heads":2,"head_width":3)"
       R"(,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"key":true,"query":true,"value":true,"out)"
       R"(put":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"layer","bias":true},"bias":{"up":tr)"
       R"(ue,"down":true}}}],"final_norm":{"kind":"layer","bias":true},"task":"classifier","head":{"classes":3)"
       R"(,"bias":true}})"},
      {"post-norm encoder", 806, 247,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned","types":2,"norm":{"kind":"layer",)"
       R"("bias":true}},"blocks":[{"repeat":2,"attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bi)"
       R"(as":true,"place":"post"},"mask":"full","bias":{"key":true,"query":true,"value":true,"output":true}},)"
       R"("mlp":{"width":9,"activation":"gelu","norm":{"kind":"layer","bias":true,"place":"post"},"bias":{"up")"
       R"(:true,"down":true}}}],"task":"masked_lm","head":{"tied":true,"bias":true,"transform":{"activation":")"
       R"(gelu","norm":{"kind":"layer","bias":true}}}})"},
      {"post-norm encoder, one block run twice, factorised", 465, 122,
       R"({"width":6,"vocab":8,"context":7,"embedding":{"position":"learned","types":2,"norm":{"kind":"layer",)"
       R"("bias":true},"factor":4,"factor_scope":"sum","factor_bias":true},"blocks":[{"repeat":1,"attention":{)"
       R"("heads":2,"head_width":3,"norm":{"kind":"layer","bias":true,"place":"post"},"mask":"full","bias":{"k)"
       R"(ey":true,"query":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kin)"
       R"(d":"layer","bias":true,"place":"post"},"bias":{"up":true,"down":true}}}],"task":"masked_lm","layers")"
       R"(:[0,0],"head":{"tied":true,"bias":true,"transform":{"activation":"gelu","norm":{"kind":"layer","bias)"
       R"(":true}}}})"},
  };
}

}  // namespace pare::test
