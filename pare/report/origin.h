#pragma once
// What every page says at its top: what was run, when, and on which bytes.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "pare/report/report.h"

namespace pare {

struct ReportOrigin {
  std::string command;  // as it was given
  std::string time;     // when it was done
};

std::vector<Fact> facts_of(const ReportOrigin& origin);

// SHA-256 of every file of a model, from describe_files; `prefix` says whose.
std::vector<Fact> hashes_of(const nlohmann::ordered_json& described, const std::string& prefix = "");

// The last part of a path.
std::string name_of_path(const std::string& path);
// As much of a path's end as says which model it is: its last part; the run's too where that is a number, as of a
// checkpoint; and at least `parts`. What was given as one name alone is looked up.
std::string title_of_path(const std::string& path, int64_t parts = 1);

// "12.34 %", which no line ends within
std::string share_text(int64_t part, int64_t whole);

}  // namespace pare
