#include "pare/report/origin.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

namespace pare {

std::vector<Fact> facts_of(const ReportOrigin& origin) {
  return {{"command", origin.command}, {"measured", origin.time}, {"version", "pare " PARE_VERSION}};
}

std::vector<Fact> hashes_of(const nlohmann::ordered_json& described, const std::string& prefix) {
  std::vector<Fact> facts;
  for (const auto& [name, hash] : described.at("files").items()) {
    facts.push_back({prefix + name, hash.get<std::string>()});
  }
  return facts;
}

std::string name_of_path(const std::string& path) {
  const std::filesystem::path whole(path);
  const std::filesystem::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return name.empty() || name == "." || name == ".." ? path : name.string();
}

std::string share_text(int64_t part, int64_t whole) {
  return whole == 0 ? "–" : fmt::format("{:.2f} %", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace pare
