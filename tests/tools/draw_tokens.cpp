// The candidates for the next token, for tests/conformance/generate.py.
//   draw_tokens CASES OUT   JSON in: a list of {"logits", "seen", and settings}; out: [ids, probabilities] of each

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pare/decode/sampler.h"
#include "pare/support/files.h"
#include "pare/support/json.h"

int main(int count, char** words) {
  try {
    if (count != 3) {
      fmt::print(stderr, "draw_tokens CASES OUT\n");
      return 1;
    }
    const nlohmann::json cases = pare::parse_json(pare::read_text_file(words[1], 1'000'000'000), words[1]);
    nlohmann::json results = nlohmann::json::array();
    for (const nlohmann::json& each : cases) {
      const auto logits = each.at("logits").get<std::vector<float>>();
      const auto seen = each.at("seen").get<std::vector<int64_t>>();
      std::vector<int64_t> ids;
      std::vector<double> probabilities;
      for (const pare::Candidate& candidate :
           pare::candidates(logits, seen,
                            {.repetition_penalty = each.value("repetition_penalty", 1.0),
                            .temperature = each.value("temperature", 1.0),
                            .top_k = each.value("top_k", int64_t{0}),
                            .top_p = each.value("top_p", 1.0),
                            .min_p = each.value("min_p", 0.0)})) {
        ids.push_back(candidate.id);
        probabilities.push_back(candidate.probability);
      }
      results.push_back({ids, probabilities});
    }
    pare::write_text_file(words[2], results.dump());
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
