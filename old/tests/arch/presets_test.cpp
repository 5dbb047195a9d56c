#include "pare/arch/presets.h"

#include <doctest/doctest.h>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"

using namespace pare;

TEST_CASE("every preset is valid and written in the canonical form") {
  for (const auto& [name, text] : preset_texts()) {
    CAPTURE(name);
    const std::optional<Architecture> preset = find_preset(name);
    REQUIRE(preset);
    CHECK(preset->name == name);
    CHECK(architecture_text(*preset) == text);
  }
}

TEST_CASE("presets are found by their exact name") {
  CHECK(find_preset("gpt2"));
  CHECK_FALSE(find_preset("GPT2"));
  CHECK_FALSE(find_preset(""));
}

TEST_CASE("the two presets of the paper on skipless transformers have the numbers of its table") {
  for (const auto& [name, key_value, mlp, embeddings, total] :
       {std::tuple{"skipless-pythia-6.9b", 33'554'432, 134'217'728, 412'876'800, 6'855'327'744},
        std::tuple{"skipless-mistral-7b", 8'388'608, 176'160'768, 262'144'000, 7'241'465'856}}) {
    CAPTURE(name);
    const Architecture preset = find_preset(name).value();
    Counts block = count_block(preset, 0), all = count(preset);
    CHECK(block.parts[Part::query] + block.parts[Part::output] == 33'554'432);
    CHECK(block.parts[Part::key] + block.parts[Part::value] == key_value);
    CHECK(block.parts[Part::mlp] == mlp);
    CHECK(block.total == 33'554'432 + key_value + mlp);
    CHECK(all.parts[Part::embedding] + all.parts[Part::head] == embeddings);
    CHECK(all.total == total);
  }
}
