#pragma once
// What the papers train, each as the settings that make it of one small GPT: the table of docs/training.md.

#include <string>
#include <vector>

#include "tests/train/helpers.h"

namespace pare::test {

struct Variant {
  std::string name;
  std::vector<std::string> settings;  // as after `pare train CONFIG`
};

inline nlohmann::json variant_base() {
  return nlohmann::json::parse(R"({"task": "sorting", "data": {"length": 4, "symbols": 12}, "batch": 8,
    "architecture": {"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"},
      "blocks": [{"repeat": 2, "attention": {"heads": 4, "head_width": 3, "norm": {"kind": "layer", "bias": true}},
                  "mlp": {"width": 48, "activation": "gelu", "norm": {"kind": "layer", "bias": true}}}],
      "final_norm": {"kind": "layer", "bias": true}, "head": {"tied": true}}})");
}

inline std::vector<Variant> paper_variants() {
  const std::string block = "architecture.blocks.*.", attention = block + "attention.", mlp = block + "mlp.";
  const std::vector<std::string> norm_free = {attention + "norm=null", mlp + "norm=null",
                                              "architecture.final_norm=null", "init.recipe=norm_free"};
  const std::vector<std::string> skipless = {
      attention + "norm=null",  mlp + "norm=null",  "architecture.final_norm=null",
      attention + "skip=false", mlp + "skip=false", "init.recipe=orthogonal"};
  const std::vector<std::string> parallel = {attention + "norm=null",        mlp + "norm=null",
                                             "architecture.final_norm=null", attention + "skip=false",
                                             block + "wiring=parallel",      "init.recipe=orthogonal"};
  const std::vector<std::string> normed_parallel = {block + "wiring=parallel", mlp + "norm=null"};
  const std::string shaped = attention + "shaped=true", no_query = attention + "query=identity",
                    no_key = attention + "key=identity", no_value = attention + "value=identity",
                    no_output = attention + "output=identity";
  const auto with = [](std::vector<std::string> settings, const std::vector<std::string>& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  };
  return {
      {"baseline", {}},
      {"W_Q = I", {no_query}},
      {"W_Q = I, half the scale", {no_query, attention + "scale=0.2887"}},
      {"W_K = I", {no_key, attention + "scale=0.2887"}},
      {"W_V = I", {no_value, attention + "scale=0.2887"}},
      {"W_Q = I, larger MLP", {no_query, mlp + "width=54"}},
      {"smaller MLP", {mlp + "width=42"}},
      {"MLP of width d", {mlp + "width=12"}},
      {"MLP of width 2 d", {mlp + "width=24"}},
      {"MLP of width 3 d", {mlp + "width=36"}},
      {"nonlinear query x + N(x)", {attention + R"(query={"nonlinear":{"width":6}})"}},
      {"attention skip only", {mlp + "skip=false"}},
      {"attention skip only, no norm", with(norm_free, {mlp + "skip=false"})},
      {"both skips, no norm", norm_free},
      {"skipless", skipless},
      {"skipless without Q and P", with(skipless, {no_query, no_output})},
      {"skipless without K and P", with(skipless, {no_key, no_output})},
      {"skipless without V and P", with(skipless, {no_value, no_output})},
      {"skipless, shaped", with(skipless, {shaped})},
      {"skipless without Q and P, shaped", with(skipless, {no_query, no_output, shaped})},
      {"skipless without K and P, shaped", with(skipless, {no_key, no_output, shaped})},
      {"skipless without V and P, shaped", with(skipless, {no_value, no_output, shaped})},
      {"parallel", parallel},
      {"parallel without Q and P", with(parallel, {no_query, no_output})},
      {"parallel without K and P", with(parallel, {no_key, no_output})},
      {"parallel without V and P", with(parallel, {no_value, no_output})},
      {"parallel with norm and skips, without Q and P", with(normed_parallel, {no_query, no_output})},
      {"with norm and skips, without Q and P", {no_query, no_output}},
      {"shared block", {block + "repeat=1", "architecture.layers=[0,0,0,0]"}},
      {"symmetric similarity", {attention + "query=key"}},
      {"collapsed QK and VO", {attention + "scores=collapsed", attention + "values=collapsed"}},
      {"no MLP", {block + "mlp=null"}},
      {"symmetric, no MLP", {attention + "query=key", block + "mlp=null"}},
      {"V and O removed", {no_value, no_output}},
      {"minimum: one head, QK alone",
       {attention + "heads=1", attention + "kv_heads=1", attention + "head_width=12", attention + "scores=collapsed",
        no_value, no_output, block + "mlp=null"}},
      {"PG-OP", {attention + "gate=position"}},
      {"PG-OP, MLP of width 2 d", {attention + "gate=position", mlp + "width=24"}},
      {"attention only: neurons are heads", {block + R"(mlp={"kind":"heads","width":48})"}},
      {"attention only, SiLU neurons", {block + R"(mlp={"kind":"heads","width":48,"shared_value":true})"}},
      {"DyT",
       {attention + R"(norm={"kind":"dyt","bias":true})", mlp + R"(norm={"kind":"dyt","bias":true})",
        R"(architecture.final_norm={"kind":"dyt","bias":true})"}},
  };
}

inline TrainConfig config_of(const Variant& variant) {
  nlohmann::json json = variant_base();
  for (const std::string& setting : variant.settings) {
    set_key(json, setting, no_architecture);
  }
  return train_config_from_json(json, variant.name, no_architecture);
}

}  // namespace pare::test
