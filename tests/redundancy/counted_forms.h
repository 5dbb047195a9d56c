#pragma once
// More Architectures whose exact redundancy is known, measured with this code: scales, norms of queries and keys in
// every form, registers, masked tokens, factors and what stands for a sequence.

#include "tests/redundancy/counted_architectures.h"

namespace pare::test {

inline std::vector<CountedArchitecture> counted_forms() {
  return {
      {"LayerScale with biases", 846, 195,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"output_norm":{"kind":"scale","bias":true},"bias":{)"
       R"("query":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"ki)"
       R"(nd":"rms"},"output_norm":{"kind":"scale","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":)"
       R"({"kind":"rms"}})"},
      {"LayerScale with biases alone", 768, 147,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"output_norm":{"kind":"scale","bias":true}},"mlp":{)"
       R"("width":9,"activation":"gelu","norm":{"kind":"rms"},"output_norm":{"kind":"scale","bias":true}}}],"fi)"
       R"(nal_norm":{"kind":"rms"}})"},
      {"a factor of what sublayers add", 720, 123,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"output_norm":{"kind":"scale","gain":false,"factor")"
       R"(:0.3}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"},"output_norm":{"kind":"scale","gain)"
       R"(":false,"factor":0.3}}}],"final_norm":{"kind":"rms"}})"},
      {"gains of each head", 744, 99,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"},"qk_norm_over":"each_head")"
       R"(},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"gains of each head, LayerNorm", 848, 183,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"layer"},"qk_norm_over":"each_hea)"
       R"(d"},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"gains of each head, RoPE, one KV head", 744, 87,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"},"qk_norm_over":"each_head")"
       R"(,"kv_heads":1,"rope":{"theta":100}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"fi)"
       R"(nal_norm":{"kind":"rms"}})"},
      {"norm over all heads", 744, 99,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"},"qk_norm_over":"layer"},"m)"
       R"(lp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"norm over all heads, without gains", 720, 99,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","gain":false},"qk_norm_over)"
       R"(":"layer"},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"norm over all heads, RoPE, one KV head", 744, 87,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms"},"qk_norm_over":"layer","kv)"
       R"(_heads":1,"rope":{"theta":100}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_)"
       R"(norm":{"kind":"rms"}})"},
      {"norm over all heads, no gains, one KV head", 648, 75,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","gain":false},"qk_norm_over)"
       R"(":"layer","kv_heads":1},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{")"
       R"(kind":"rms"}})"},
      {"norm behind RoPE", 832, 123,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","place":"post"},"rope":{"th)"
       R"(eta":100}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"}})"},
      {"norm behind RoPE, without gains", 816, 123,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":4,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","place":"post","gain":false)"
       R"(},"rope":{"theta":100}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{")"
       R"(kind":"rms"}})"},
      {"norm behind partial RoPE", 932, 161,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":5,"norm":{"kind":"rms"},"qk_norm":{"kind":"rms","place":"post"},"rope":{"th)"
       R"(eta":100,"width":2}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kin)"
       R"(d":"rms"}})"},
      {"logits times a number", 648, 96,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"}},"mlp":{"width":9,"activation":"gelu","norm":{"kind)"
       R"(":"rms"}}}],"final_norm":{"kind":"rms"},"head":{"tied":true,"scale":0.3}})"},
      {"masked tokens", 720, 123,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned","masked":{"id":2}},"blocks":[{"re)"
       R"(peat":2,"attention":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"mask":"full"},"mlp":{"width":9,")"
       R"(activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"},"task":"masked_lm"})"},
      {"masked tokens, tied", 660, 96,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned","masked":{"id":2}},"blocks":[{"re)"
       R"(peat":2,"attention":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"mask":"full"},"mlp":{"width":9,")"
       R"(activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"},"task":"masked_lm","head":{"t)"
       R"(ied":true,"bias":true}})"},
      {"masked tokens, factor", 726, 143,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned","factor":4,"factor_bias":true,"ma)"
       R"(sked":{"id":2}},"blocks":[{"repeat":2,"attention":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"ma)"
       R"(sk":"full"},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"})"
       R"(,"task":"masked_lm"})"},
      {"registers", 765, 284,
       R"({"width":6,"vocab":0,"context":7,"embedding":{"position":"learned","class_token":true,"registers":2,")"
       R"(registers_placed":false,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,)"
       R"("attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"quer)"
       R"(y":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":")"
       R"(layer","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":{"kind":"layer","bias":true},"task)"
       R"(":"classifier","head":{"classes":3,"bias":true,"pool":"first","pool_norm":null}})"},
      {"registers with positions", 777, 296,
       R"({"width":6,"vocab":0,"context":7,"embedding":{"position":"learned","class_token":true,"registers":2,")"
       R"(registers_placed":true,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,")"
       R"(attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"query)"
       R"(":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"l)"
       R"(ayer","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":{"kind":"layer","bias":true},"task")"
       R"(:"classifier","head":{"classes":3,"bias":true,"pool":"first","pool_norm":null}})"},
      {"token of an id", 690, 102,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"mask":"full"},"mlp":{"width":9,"activation":"gelu")"
       R"(,"norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"},"task":"encoder","head":{"pool":"token","pool_t)"
       R"(oken":3,"transform":{"activation":"tanh"}}})"},
      {"token of an id, bare encoder", 648, 102,
       R"({"width":6,"vocab":12,"context":7,"embedding":{"position":"learned"},"blocks":[{"repeat":2,"attention)"
       R"(":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"mask":"full"},"mlp":{"width":9,"activation":"gelu")"
       R"(,"norm":{"kind":"rms"}}}],"final_norm":{"kind":"rms"},"task":"encoder","head":{"pool":"token","pool_t)"
       R"(oken":3}})"},
      {"registers, RMSNorm", 735, 153,
       R"({"width":6,"vocab":0,"context":7,"embedding":{"position":"learned","class_token":true,"registers":2,")"
       R"(registers_placed":false,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,)"
       R"("attention":{"heads":2,"head_width":3,"norm":{"kind":"rms"},"mask":"full","bias":{"query":true,"key":)"
       R"(true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":"rms"},"bias":{)"
       R"("up":true,"down":true}}}],"final_norm":{"kind":"rms"},"task":"classifier","head":{"classes":3,"bias":)"
       R"(true,"pool":"first","pool_norm":null}})"},
      {"mean of all tokens", 753, 282,
       R"({"width":6,"vocab":0,"context":5,"embedding":{"position":"learned","class_token":true,"registers":0,")"
       R"(registers_placed":false,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,)"
       R"("attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"quer)"
       R"(y":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":")"
       R"(layer","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":{"kind":"layer","bias":true},"task)"
       R"(":"classifier","head":{"classes":3,"bias":true,"pool":"mean","pool_norm":null}})"},
      {"norm of the mean", 753, 282,
       R"({"width":6,"vocab":0,"context":5,"embedding":{"position":"learned","class_token":true,"registers":0,")"
       R"(registers_placed":false,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,)"
       R"("attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"quer)"
       R"(y":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":")"
       R"(layer","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":null,"task":"classifier","head":{")"
       R"(classes":3,"bias":true,"pool":"mean","pool_norm":{"kind":"layer","bias":true}}})"},
      {"norm of the class token alone, encoder", 732, 214,
       R"({"width":6,"vocab":0,"context":5,"embedding":{"position":"learned","class_token":true,"registers":0,")"
       R"(registers_placed":false,"patch":{"size":2,"channels":2,"image":4,"bias":true}},"blocks":[{"repeat":2,)"
       R"("attention":{"heads":2,"head_width":3,"norm":{"kind":"layer","bias":true},"mask":"full","bias":{"quer)"
       R"(y":true,"key":true,"value":true,"output":true}},"mlp":{"width":9,"activation":"gelu","norm":{"kind":")"
       R"(layer","bias":true},"bias":{"up":true,"down":true}}}],"final_norm":null,"task":"encoder","head":{"poo)"
       R"(l":"first","pool_norm":{"kind":"layer","bias":true}}})"},
      {"attention that pools", 714, 266,
       R"({"width":6,"context":4,"task":"encoder","embedding":{"position":"learned","patch":{"size":2,"channel)"
       R"(s":2,"image":4}},"blocks":[{"attention":{"heads":2,"head_width":3,"mask":"full","norm":{"kind":"laye)"
       R"(r","bias":true,"epsilon":0.1},"bias":{"query":true,"key":true,"value":true,"output":true}},"mlp":{"w)"
       R"(idth":9,"activation":"gelu","norm":{"kind":"layer","bias":true,"epsilon":0.1},"bias":{"up":true,"dow)"
       R"(n":true}}}],"final_norm":{"kind":"layer","bias":true,"epsilon":0.1},"head":{"pool":"attention","atte)"
       R"(ntion_pool":{"heads":2,"mlp_width":9,"activation":"gelu","norm":{"kind":"layer","bias":true,"epsilon)"
       R"(":0.1}}}})"},
      {"attention that pools, without a norm before its MLP", 702, 250,
       R"({"width":6,"context":4,"task":"encoder","embedding":{"position":"learned","patch":{"size":2,"channel)"
       R"(s":2,"image":4}},"blocks":[{"attention":{"heads":2,"head_width":3,"mask":"full","norm":{"kind":"laye)"
       R"(r","bias":true,"epsilon":0.1},"bias":{"query":true,"key":true,"value":true,"output":true}},"mlp":{"w)"
       R"(idth":9,"activation":"gelu","norm":{"kind":"layer","bias":true,"epsilon":0.1},"bias":{"up":true,"dow)"
       R"(n":true}}}],"final_norm":{"kind":"layer","bias":true,"epsilon":0.1},"head":{"pool":"attention","atte)"
       R"(ntion_pool":{"heads":2,"mlp_width":9,"activation":"gelu","norm":null}}})"},
  };
}

// All that were measured with this code.
inline std::vector<CountedArchitecture> measured_architectures() {
  std::vector<CountedArchitecture> all = further_architectures();
  const std::vector<CountedArchitecture> forms = counted_forms();
  all.insert(all.end(), forms.begin(), forms.end());
  return all;
}

}  // namespace pare::test
