// The rules' counts against those that others measured.

#include "pare/redundancy/redundancy.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/arch/presets.h"
#include "tests/redundancy/counted_forms.h"

namespace pare::test {

TEST_CASE("the counted redundancy of known architectures") {
  std::vector<CountedArchitecture> all = counted_architectures();
  const std::vector<CountedArchitecture> further = measured_architectures();
  all.insert(all.end(), further.begin(), further.end());
  for (const CountedArchitecture& known : all) {
    CAPTURE(known.name);
    const Architecture a = architecture_from_json(nlohmann::json::parse(known.json), "test");
    CHECK(count(a).total == known.parameters);
    const Redundancy found = redundancy(a);
    REQUIRE(found.is_exact());
    CHECK(found.total == known.redundant);
  }
}

TEST_CASE("the redundancy of large presets, by hand") {
  // d 4096, 32 layers, 8 key/value heads of 128, MLP 14336: a rotation of the stream, 65 gains, a GL(128) for each
  // value head, a scaled rotation for each of 64 planes of a key head, the linear arm of the GLU.
  const Redundancy mistral = redundancy(find_preset("mistral-7b").value());
  REQUIRE(mistral.is_exact());
  CHECK(mistral.total == 4096 * 4095 / 2 + 65 * 4096 + 32 * (8 * 128 * 128 + 8 * 64 * 2 + 14336));
  // d 768, 12 layers, 12 heads of 64, MLP 3072, tied head: both gauges, the biases of keys and values, gain and bias of
  // two norms a layer, means of what is written, and the direction that each reader never sees.
  const Redundancy gpt2 = redundancy(find_preset("gpt2").value());
  REQUIRE(gpt2.is_exact());
  const int64_t layer = 2 * 12 * 64 * 64 + 2 * 768 + 4 * 768 + (768 + 3072 + 2) + (3 * 768 + 3072);
  CHECK(gpt2.total == 12 * layer + 1024);
}

TEST_CASE("what the rules cannot count is said, not guessed") {
  const std::string table = R"({"width": 6, "vocab": 8, "context": 5, "first_layer": "table", "blocks":
      [{"attention": {"heads": 2, "head_width": 3}, "mlp": {"width": 9, "activation": "gelu"}}]})";
  const Redundancy found = redundancy(architecture_from_json(nlohmann::json::parse(table), "test"));
  CHECK(!found.is_exact());
  CHECK(found.lower_bound.front().find("first layer's table") != std::string::npos);
}

}  // namespace pare::test
