#pragma once
// What a command hands back: results on stdout, where a reader that went away (`| head`) is no error, and files.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace pare {

// Thrown when nobody reads stdout any more.
struct ReaderGone {};

void print_text(const std::string& text);
void print_json(const nlohmann::ordered_json& json);

// Before the work starts: InputError when `path` exists and may not be replaced, IoError when its folder is missing or
// its disk has less than `bytes` left.
void check_output(const std::filesystem::path& path, bool replace, uint64_t bytes);

}  // namespace pare
