// Opens one model after the other, for scripts that have thousands of them: each line of stdin is a folder, or a
// config.json alone; each line of stdout a JSON object, {"architecture": ...} or {"refusal": "..."}.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/support/error.h"
#include "pare/support/files.h"

namespace {

constexpr uint64_t largest_config = 16 << 20;

pare::Architecture read(const std::string& path) {
  return std::filesystem::is_directory(path) ? pare::open_model(path).model.architecture
                                             : pare::parse_config(pare::read_text_file(path, largest_config), path);
}

nlohmann::ordered_json answer(const std::string& path) {
  try {
    return {{"architecture", pare::architecture_to_json(read(path))}};
  } catch (const pare::Error& error) {
    return {{"refusal", error.what()}};
  }
}

}  // namespace

int main() {
  for (std::string path; std::getline(std::cin, path);) {
    fmt::print("{}\n", answer(path).dump());
    std::fflush(stdout);
  }
  return 0;
}
