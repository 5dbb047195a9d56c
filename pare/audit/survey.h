#pragma once
// What a model can lose, in one row: redundant, removable from a file and from the cache, and what stands in the way of
// more. By structure alone, so that a row costs no weights.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "pare/arch/architecture.h"

namespace pare {

// What stands in the way, taken away together with all before it.
struct Obstacle {
  std::string_view what;  // "norms"
  int64_t removable = 0;  // of a file then, what was taken away among it
};

struct SurveyRow {
  std::string name;
  Architecture architecture;
  int64_t parameters = 0, redundant = 0, removable = 0;
  bool at_least = false;                                    // the redundant ones are a lower bound
  std::vector<std::pair<std::string_view, int64_t>> taken;  // by which passes: what each of them takes, in order
  int64_t cache = 0, cache_left = 0;                        // numbers that a token adds, now and with cache_keys_only
  std::vector<Obstacle> obstacles;                          // those that are there
  std::vector<std::string_view> in_the_way;                 // those that alone would keep what the others free
};

SurveyRow survey(const std::string& name, const Architecture& architecture);

// Every obstacle that there can be, in the order in which they are taken away.
std::vector<std::string_view> obstacle_names();
// What can be removed without this one and all before it; nothing less than what can be now.
int64_t removable_without(const SurveyRow& row, std::string_view what);
// "RMSNorm before each sublayer": what models with the same freedom have in common.
std::string norms_in_words(const Architecture& architecture);

// `detailed`: for each row also the passes and obstacles by their numbers.
std::string text_of(const std::vector<SurveyRow>& rows, bool detailed);
nlohmann::ordered_json to_json(const std::vector<SurveyRow>& rows);

}  // namespace pare
