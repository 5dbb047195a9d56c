#pragma once
// A spread of architectures over the whole schema, for the properties that every one must have.

#include <string>
#include <utility>
#include <vector>

namespace pare::test {

inline std::string causal(const std::string& attention,
                          const std::string& mlp = R"({"width": 20, "activation": "gelu"})",
                          const std::string& rest = "") {
  return R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned"}, "blocks": [{"repeat": 2,
    "attention": {"heads": 4, "head_width": 3)" +
         attention + R"(}, "mlp": )" + mlp + "}]" + rest + "}";
}

inline std::string rotary(const std::string& attention, const std::string& rest = "") {
  return R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2,
    "attention": {"heads": 4, "kv_heads": 2, "head_width": 6)" +
         attention + R"(}, "mlp": {"width": 20, "activation": "silu", "gated": true}}])" + rest + "}";
}

inline const std::vector<std::pair<std::string, std::string>>& causal_architectures() {
  static const std::vector<std::pair<std::string, std::string>> list = {
      {"plain", causal("")},
      {"biases",
       causal(R"(, "bias": {"query": true, "key": true, "value": true, "output": true})",
              R"({"width": 20, "activation": "relu", "gated": true, "bias": {"up": true, "gate": true, "down": true}})",
              R"(, "head": {"bias": true})")},
      {"identity query and output", causal(R"(, "query": "identity", "output": "identity", "bias": {"query": true})")},
      {"identity key and value", causal(R"(, "key": "identity", "value": "identity", "bias": {"key": true})")},
      {"query is key", causal(R"(, "query": "key", "bias": {"key": true})")},
      {"nonlinear query",
       causal(R"(, "query": {"nonlinear": {"width": 6, "activation": "gelu"}}, "bias": {"query": true})")},
      {"collapsed",
       causal(R"(, "scores": "collapsed", "values": "collapsed", "bias": {"query": true, "output": true})")},
      {"collapsed scores", causal(R"(, "kv_heads": 2, "scores": "collapsed", "bias": {"value": true})")},
      {"collapsed values", causal(R"(, "kv_heads": 2, "values": "collapsed", "bias": {"query": true, "key": true})")},
      {"shrunk",
       causal(
           R"(, "kv_heads": 2, "pairs": {"value_output": "shrunk", "query_key": "shrunk"}, "bias": {"value": true})")},
      {"gate", causal(R"(, "gate": "position")")},
      {"shaped", causal(R"(, "shaped": true, "bias": {"value": true})")},
      {"shaped, grouped, window, rope, gate",
       rotary(R"(, "shaped": true, "window": 3, "rope": {}, "gate": "position")")},
      {"shaped, collapsed", causal(R"(, "shaped": true, "scores": "collapsed", "values": "collapsed")")},
      {"shaped, cache k", causal(R"(, "shaped": true, "cache": "k", "bias": {"key": true, "value": true})")},
      {"shaped, cache x", causal(R"(, "shaped": true, "cache": "x", "kv_heads": 2)")},
      {"shaped, skipless, without Q and P",
       causal(R"(, "shaped": true, "query": "identity", "output": "identity", "skip": false)",
              R"({"width": 20, "activation": "gelu", "skip": false})")},
      {"shaped, first-layer table", rotary(R"(, "shaped": true, "rope": {})", R"(, "first_layer": "table")")},
      {"softcap", causal(R"(, "softcap": 0.7)", R"({"width": 20, "activation": "gelu_tanh"})",
                         R"(, "head": {"softcap": 2.0, "tied": true})")},
      {"alibi", causal(R"(, "alibi": {"scaled": true})")},
      {"alibi three heads",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"attention": {"heads": 3, "head_width": 4, "alibi": {"scaled": false}}}]})"},
      {"window", causal(R"(, "window": 3)")},
      {"no mlp, scaled", causal(R"(, "scale": 0.3)", "null")},
      {"neuron heads", causal("", R"({"kind": "heads", "width": 20, "bias": {"down": true}})")},
      {"neuron heads, shared", causal("", R"({"kind": "heads", "width": 20, "shared_value": true})")},
      {"skipless", causal(R"(, "skip": false)", R"({"width": 20, "activation": "tanh", "skip": false})")},
      {"sinusoidal, embedding norm, scale, types",
       R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "sinusoidal", "types": 2, "scale": 3.0, "norm": {"kind": "layer", "bias": true}},
           "blocks": [{"attention": {"heads": 2, "head_width": 5}, "mlp": {"width": 9, "activation": "quick_gelu"}}]})"},
      {"factor",
       R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned", "position_offset": 2, "factor": 5},
           "blocks": [{"attention": {"heads": 2, "head_width": 5}, "mlp": {"width": 9, "activation": "relu_squared"}}],
           "head": {"tied": true, "transform": {"activation": "identity", "bias": false}}})"},
      {"position pad",
       R"({"width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned", "position_offset": 4, "position_pad": 3},
           "blocks": [{"attention": {"heads": 2, "head_width": 5}, "mlp": {"width": 9, "activation": "relu"}}]})"},
      {"parallel", R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "wiring": "parallel",
           "attention": {"heads": 4, "head_width": 3, "norm": {"kind": "layer", "bias": true}, "rope": {"width": 2, "layout": "interleaved"}},
           "mlp": {"width": 20, "activation": "gelu"}}], "final_norm": {"kind": "layer", "bias": true}})"},
      {"parallel, two norms, no skip",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "wiring": "parallel",
           "attention": {"heads": 4, "head_width": 3, "skip": false, "norm": {"kind": "rms"}},
           "mlp": {"width": 20, "activation": "gelu", "norm": {"kind": "rms"}}}]})"},
      {"post norm", causal(R"(, "norm": {"kind": "layer", "place": "post", "bias": true})",
                           R"({"width": 20, "activation": "gelu", "norm": {"kind": "layer", "place": "post"}})")},
      {"dyt", causal(R"(, "norm": {"kind": "dyt", "bias": true})",
                     R"({"width": 20, "activation": "gelu", "norm": {"kind": "dyt", "gain": false}})",
                     R"(, "final_norm": {"kind": "dyt"})")},
      {"rope", rotary(R"(, "rope": {"theta": 100})", R"(, "final_norm": {"kind": "rms", "offset": 1.0})")},
      {"rope interleaved partial", rotary(R"(, "rope": {"width": 4, "layout": "interleaved"})")},
      {"rope, qk norm, output norms",
       rotary(
           R"(, "rope": {}, "qk_norm": {"kind": "rms"}, "norm": {"kind": "rms"}, "output_norm": {"kind": "rms", "offset": 1.0})")},
      {"rope, qk layer norm", rotary(R"(, "rope": {}, "qk_norm": {"kind": "layer", "bias": true})")},
      {"rope linear", rotary(R"(, "rope": {"scaling": {"kind": "linear", "factor": 2.5}})")},
      {"rope dynamic", rotary(R"(, "rope": {"scaling": {"kind": "dynamic", "factor": 2.5, "original_context": 6}})")},
      {"rope yarn",
       rotary(
           R"(, "rope": {"scaling": {"kind": "yarn", "factor": 4, "original_context": 8, "attention_factor": 1.1}})")},
      {"rope longrope",
       rotary(
           R"(, "rope": {"scaling": {"kind": "longrope", "original_context": 6, "attention_factor": 1.2, "short_factor": [1, 1.1, 1.2], "long_factor": [2, 3, 4]}})")},
      {"rope llama3", rotary(R"(, "rope": {"scaling": {"kind": "llama3", "factor": 8, "original_context": 16}})")},
      {"cache k", causal(R"(, "cache": "k", "bias": {"key": true, "value": true})")},
      {"cache v", causal(R"(, "cache": "v", "bias": {"key": true, "value": true})")},
      {"cache x", causal(R"(, "cache": "x", "kv_heads": 2)")},
      {"cache k under rope and qk norm", rotary(R"(, "cache": "k", "rope": {}, "qk_norm": {"kind": "rms"})")},
      {"cache v under rope", rotary(R"(, "cache": "v", "rope": {})")},
      {"first-layer table",
       rotary(R"(, "rope": {}, "norm": {"kind": "rms"})", R"(, "first_layer": "table", "head": {"tied": true})")},
      {"shared blocks", causal("", R"({"width": 20, "activation": "gelu"})", R"(, "layers": [0, 1, 1, 0])")},
  };
  return list;
}

// Every end that a model can have. `heads`: what stands in the head; `mask`: causal or full.
inline std::string ending(const std::string& task, const std::string& mask, const std::string& head,
                          const std::string& rest = R"(, "final_norm": {"kind": "layer", "bias": true})") {
  return R"({"task": ")" + task +
         R"(", "width": 12, "vocab": 23, "context": 32, "embedding": {"position": "learned", "types": 2}, "blocks": [{"repeat": 2,
    "attention": {"heads": 3, "head_width": 4, "mask": ")" +
         mask + R"("}, "mlp": {"width": 20, "activation": "gelu"}}], "head": {)" + head + "}" + rest + "}";
}

inline const std::vector<std::pair<std::string, std::string>>& ending_architectures() {
  const std::string pooler = R"("transform": {"activation": "tanh"})";
  static const std::vector<std::pair<std::string, std::string>> list = {
      {"classifier, first token", ending("classifier", "full", R"("classes": 3, "bias": true, )" + pooler)},
      {"classifier, last token", ending("classifier", "causal", R"("classes": 3, "pool": "last")")},
      {"classifier, last token, dynamic rope",
       R"({"task": "classifier", "width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 6,
           "rope": {"scaling": {"kind": "dynamic", "factor": 2.5, "original_context": 6}}}}], "head": {"classes": 3, "pool": "last"}})"},
      {"one value", ending("classifier", "causal", R"("classes": 1, "bias": true, "pool": "last")")},
      {"classifier behind a narrow layer",
       ending("classifier", "causal",
              R"("classes": 4, "pool": "last", "transform": {"activation": "identity", "bias": false, "width": 5})")},
      {"classifier, shaped",
       R"({"task": "classifier", "width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2,
           "attention": {"heads": 3, "head_width": 4, "mask": "full", "shaped": true}}], "head": {"classes": 3}})"},
      {"token classifier", ending("token_classifier", "full", R"("classes": 4, "bias": true)")},
      {"token classifier, causal", ending("token_classifier", "causal", R"("classes": 4)", "")},
      {"question answering", ending("question_answering", "full", R"("classes": 2, "bias": true)")},
      {"question answering, causal, behind a wide layer",
       ending("question_answering", "causal",
              R"("classes": 2, "bias": true, "transform": {"activation": "identity", "width": 17})")},
      {"next sentence", ending("next_sentence", "full", R"("classes": 2, "bias": true, )" + pooler)},
      {"two heads", ending("masked_lm", "full", R"("tied": true, "bias": true,
           "transform": {"activation": "gelu", "norm": {"kind": "layer", "bias": true}},
           "sequence": {"classes": 2, "transform": {"activation": "tanh"}})",
                           "")},
      {"two heads, the second on the last token",
       ending("causal_lm", "causal", R"("pool": "last", "sequence": {"classes": 3, "bias": false})")},
      {"bare", ending("encoder", "full", "")},
      {"bare with a pooler", ending("encoder", "full", pooler)},
      {"bare, narrow in the end",
       ending("encoder", "causal", R"("pool": "none", "transform": {"activation": "identity", "width": 5})")},
      {"bare with a pooler of the last token", ending("encoder", "causal", R"("pool": "last", )" + pooler)},
  };
  return list;
}

inline const std::vector<std::pair<std::string, std::string>>& image_architectures() {
  static const std::vector<std::pair<std::string, std::string>> list = {
      {"images",
       R"({"task": "classifier", "width": 6, "context": 5, "embedding": {"class_token": true, "patch": {"size": 2, "image": 4, "channels": 2}},
           "blocks": [{"attention": {"heads": 2, "head_width": 3, "mask": "full"}}], "head": {"classes": 3, "bias": true}})"},
      {"images, learned positions, no class token",
       R"({"task": "encoder", "width": 6, "context": 4, "embedding": {"position": "learned", "patch": {"size": 2, "image": 4, "channels": 1, "bias": false}},
           "blocks": [{"attention": {"heads": 2, "head_width": 3, "mask": "full", "norm": {"kind": "layer", "bias": true}},
                       "mlp": {"width": 9, "activation": "gelu"}}]})"},
  };
  return list;
}

inline std::vector<std::pair<std::string, std::string>> every_architecture() {
  std::vector<std::pair<std::string, std::string>> all = causal_architectures();
  all.insert(all.end(), ending_architectures().begin(), ending_architectures().end());
  all.insert(all.end(), image_architectures().begin(), image_architectures().end());
  return all;
}

}  // namespace pare::test
