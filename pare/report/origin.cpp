#include "pare/report/origin.h"

#include <fmt/format.h>

#include <algorithm>
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

std::string title_of_path(const std::string& path, int64_t parts) {
  std::error_code ignored;
  std::filesystem::path whole(path);
  if (std::filesystem::exists(whole, ignored)) {  // else a preset
    whole = std::filesystem::absolute(whole, ignored);
  }
  std::vector<std::string> names;
  for (const std::filesystem::path& part : whole.lexically_normal().relative_path()) {
    if (!part.empty()) {
      names.push_back(part.string());
    }
  }
  if (names.empty()) {
    return path;
  }
  const auto is_number = [](const std::string& name) {
    return name.find_first_not_of("0123456789") == std::string::npos;
  };
  constexpr int64_t of_checkpoint = 3;  // RUN/checkpoints/400
  const int64_t wanted = std::min(std::max(parts, is_number(names.back()) ? of_checkpoint : 1), std::ssize(names));
  std::filesystem::path title;
  for (int64_t i = std::ssize(names) - wanted; i < std::ssize(names); ++i) {
    title /= names[i];
  }
  return title.string();
}

std::string share_text(int64_t part, int64_t whole) {
  return whole == 0 ? "–" : fmt::format("{:.2f}\u00a0%", 100 * static_cast<double>(part) / static_cast<double>(whole));
}

}  // namespace pare
