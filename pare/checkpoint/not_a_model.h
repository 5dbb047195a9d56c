#pragma once
// What people give in the place of a model's folder, and what they should give instead.

#include <filesystem>
#include <optional>
#include <string>

namespace pare {

// For a path that is no folder with config.json: InputError that says what it is and what to give instead. A file of
// another format, an empty folder, a folder of models, a place in the Hugging Face cache, the name of a model on the
// hub.
[[noreturn]] void refuse_not_a_model(const std::filesystem::path& path);

// ". Is it …?" for a word that is no path, where it looks like a model's name on the hub; else nothing.
std::string hub_hint(const std::string& word);

// "is a format that …": what to do with weights that are no safetensors, by the end of the file's name; nothing for
// other files.
std::optional<std::string> other_format(const std::filesystem::path& file);

}  // namespace pare
