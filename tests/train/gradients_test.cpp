// Gradients against finite differences in float64, of every tensor of every variant, through the loss that is trained.

#include <cstdlib>
#include <filesystem>

#include "pare/support/files.h"
#include "pare/support/json.h"
#include "tests/model/architectures.h"
#include "tests/train/gradient_check.h"

namespace pare::test {

namespace {

std::string skipless(const std::string& attention, const std::string& rest = "") {
  return causal(attention + R"(, "skip": false)", R"({"width": 20, "activation": "gelu", "skip": false})", rest);
}

// What the papers train, small.
std::vector<std::pair<std::string, std::string>> trained_variants() {
  const std::string plain = R"({"width": 20, "activation": "gelu"})";
  const std::string no_skip = R"({"width": 20, "activation": "gelu", "skip": false})";
  const std::string normed = R"({"width": 20, "activation": "gelu", "norm": {"kind": "layer", "bias": true}})";
  return {
      {"baseline", causal(R"(, "norm": {"kind": "layer", "bias": true})", normed,
                          R"(, "final_norm": {"kind": "layer", "bias": true}, "head": {"tied": true})")},
      {"W_Q = I", causal(R"(, "query": "identity", "scale": 0.25)", plain, R"(, "head": {"tied": true})")},
      {"W_K = I", causal(R"(, "key": "identity")")},
      {"W_V = I", causal(R"(, "value": "identity")")},
      {"V and O removed", causal(R"(, "value": "identity", "output": "identity")")},
      {"nonlinear query", causal(R"(, "query": {"nonlinear": {"width": 6, "activation": "gelu"}})")},
      {"attention skip only", causal("", no_skip)},
      {"attention skip only, with norm", causal(R"(, "norm": {"kind": "rms"})", no_skip)},
      {"skipless", skipless("")},
      {"skipless without Q and P", skipless(R"(, "query": "identity", "output": "identity")")},
      {"skipless without K and P", skipless(R"(, "key": "identity", "output": "identity")")},
      {"skipless without V and P", skipless(R"(, "value": "identity", "output": "identity")")},
      {"parallel", R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "wiring": "parallel",
           "attention": {"heads": 4, "head_width": 3, "query": "identity", "skip": false}, "mlp": {"width": 20, "activation": "gelu"}}]})"},
      {"parallel with norm and skips",
       R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"repeat": 2, "wiring": "parallel",
           "attention": {"heads": 4, "head_width": 3, "output": "identity", "norm": {"kind": "layer"}}, "mlp": {"width": 20, "activation": "gelu"}}]})"},
      {"shared block", causal("", plain, R"(, "layers": [0, 0, 1, 0])")},
      {"symmetric", causal(R"(, "query": "key")")},
      {"collapsed", causal(R"(, "scores": "collapsed", "values": "collapsed")")},
      {"collapsed and no MLP", causal(R"(, "scores": "collapsed", "values": "collapsed")", "null")},
      {"no MLP", causal("", "null")},
      {"PG-OP", causal(R"(, "gate": "position")")},
      {"neuron heads", causal("", R"({"kind": "heads", "width": 20, "bias": {"down": true}})")},
      {"DyT",
       causal(R"(, "norm": {"kind": "dyt", "bias": true})",
              R"({"width": 20, "activation": "gelu", "norm": {"kind": "dyt"}})", R"(, "final_norm": {"kind": "dyt"})")},
  };
}

std::vector<std::pair<std::string, std::string>> stored_architectures() {
  const char* place = std::getenv("PARE_SHARED");
  const std::filesystem::path folder = std::filesystem::path(place ? place : "../shared") / "architectures";
  std::vector<std::pair<std::string, std::string>> list;
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: there is no " << folder.string());
    return list;
  }
  for (const std::filesystem::directory_entry& entry : entries_of(folder)) {
    list.emplace_back(entry.path().filename().string(), read_text_file(entry.path(), 1 << 20));
  }
  return list;
}

void check_variant(const Architecture& a) {
  TrainConfig config{.architecture = a, .dtype = TrainDtype::float64};
  config.optimiser.clip = 0;
  Trainer trainer(config, {a, as_weights(calm_tensors(a))}, at::kCPU);
  check_gradients(trainer, {random_batch(a)});
}

}  // namespace

TEST_CASE("gradients of every variant of the papers are finite differences") {
  for (const auto& [name, text] : trained_variants()) {
    CAPTURE(name);
    check_variant(parse(text));
  }
}

TEST_CASE("gradients of everything the schema can say are finite differences") {
  for (const auto& [name, text] : every_architecture()) {
    const Architecture a = parse(text);
    if (a.task == Task::encoder || a.head.sequence) {  // no answer, or a second one that no loss here asks for
      continue;
    }
    CAPTURE(name);
    check_variant(a);
  }
}

TEST_CASE("gradients of the stored architectures are finite differences") {
  for (const auto& [name, text] : stored_architectures()) {
    CAPTURE(name);
    check_variant(parse(text));
  }
}

}  // namespace pare::test
