// Loading from several threads: the same numbers as from one. `make tsan` watches how they are made.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <latch>
#include <set>
#include <thread>

#include "pare/audit/passes.h"
#include "pare/checkpoint/bound_weights.h"
#include "pare/checkpoint/config.h"
#include "tests/support/helpers.h"
#include "tests/weights/helpers.h"

namespace pare::test {

namespace {

const char* const gpt2_config = R"({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16,
    "n_head": 2, "n_layer": 6, "n_positions": 12, "n_ctx": 12, "vocab_size": 32})";

// As a file of transformers has it: queries, keys and values are one tensor.
Model stored_gpt2(const std::filesystem::path& folder) {
  const nlohmann::json config = nlohmann::json::parse(gpt2_config);
  const Family& family = find_family("gpt2", "config.json");
  const Architecture a = read_architecture(family, config, "config.json", {});
  write_weights(folder, family_weights(family, a, random_weights(a, 1, Dtype::f32, Draw::generic)), UINT64_MAX);
  return {a, canonical_weights(family, a, open_weights(folder), "model")};
}

// Each thread begins elsewhere, so that they want pieces of the same tensors now and of others then.
void check_in_threads(const Model& model) {
  Tensors expected;
  std::vector<std::string> names;
  for (const auto& [name, weight] : model.weights) {
    expected[name] = weight.load();
    names.push_back(name);
  }
  constexpr size_t threads = 4, rounds = 40;
  std::vector<std::set<std::string>> wrong(threads);
  std::latch start(threads);
  std::vector<std::thread> running;
  for (size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      start.arrive_and_wait();
      for (size_t i = 0; i < rounds * names.size(); ++i) {
        const std::string& name = names[(i + t * names.size() / threads) % names.size()];
        if (!at::equal(model.weights.at(name).load(), expected.at(name))) {
          wrong[t].insert(name);
        }
      }
    });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK(wrong == std::vector<std::set<std::string>>(threads));
}

}  // namespace

TEST_CASE("threads load the same from a rewritten model whose file has fused tensors") {
  const TemporaryFolder folder;
  const Model model = stored_gpt2(folder.path());
  check_in_threads(model);
  check_in_threads(rewritten(model, "fold_norm_gain,drop_key_bias,fold_value_bias"));
}

TEST_CASE("threads load the same where tensors share a factorisation and a gauge") {
  const Architecture a = skip_only();
  check_in_threads(rewritten({a, as_weights(generic_tensors(a))}, "eliminate_projection{target=q}"));
}

TEST_CASE("threads that measure the same get the same number") {
  std::atomic<int> loads = 0;
  const Weight weight = Weight::leaf("w", Dtype::f64, {}, [&loads] {
    ++loads;
    return at::ones({}, at::kDouble);
  });
  std::vector<std::thread> running;
  std::vector<double> found(4);
  for (double& number : found) {
    running.emplace_back([&] { number = weight.measured("itself", [&] { return weight.load().item<double>(); }); });
  }
  for (std::thread& thread : running) {
    thread.join();
  }
  CHECK(found == std::vector<double>(4, 1.0));
  const int before = loads;
  CHECK(weight.measured("itself", [&] { return weight.load().item<double>() + 1; }) == 1);
  CHECK(loads == before);
}

TEST_CASE("an audit measures every matrix once, however many passes ask") {
  for (const bool skip : {true, false}) {
    CAPTURE(skip);
    const Architecture a = skip_only(skip);
    Loads loads;
    const Weights weights = counted(as_weights(generic_tensors(a)), loads);
    const PassAudit audit = audit_passes({a, weights}, Dtype::f64, Measure::always);
    REQUIRE(audit.measured);
    REQUIRE(audit.together.roundings > 0);
    for (const auto& [name, count] : loads) {
      CAPTURE(name);
      const bool target =
          name.ends_with("query.weight") || name.ends_with("key.weight") || name.ends_with("attention.value.weight");
      // And a value once more with its bias, which shrink_head_pairs has to bring along.
      const bool with_bias = name.find("attention.value.") != std::string::npos;
      CHECK(count == (target ? 1 : 0) + (with_bias ? 1 : 0));
    }
  }
}

}  // namespace pare::test
