#pragma once
// What lies beside a model's weights: what goes along with them wherever they go, and what fits no others.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/model_folder.h"

namespace pare {

struct LeftBehind {
  std::string name;  // relative to the folder; ends with a slash where it is a folder with all that is in it
  std::string_view why;
};

// What a link leads to that leaves the model's folder, and not for the place where the Hugging Face cache keeps files:
// nobody who gives a folder away expects it to go along. Left behind and named, or copied and named.
enum class OutsideLinks { leave, follow };

struct Companions {
  std::vector<std::filesystem::path> files, empty_folders;  // relative to the folder
  std::vector<LeftBehind> left;
  std::vector<std::filesystem::path> links;     // to files that could be copied, whether they are or not
  std::map<std::string, std::string> followed;  // links out of the folder, by name: what they lead to
  uint64_t bytes = 0;                           // of the files
};

// Everything below a model's folder but its certificate and what the model was read from. Files are opened, so that one
// that cannot be read is an error now. Links to files of the folder, and into the Hugging Face cache, which consists of
// them, count as what they point to.
Companions find_companions(const ModelFolder& model, OutsideLinks links = OutsideLinks::leave);

// One line for each reason why something stays behind, and one for the links that were followed.
std::vector<std::string> left_behind_lines(const Companions& companions);

// Copies the files into a folder that exists, and hands back the SHA-256 of each copy by its name.
std::map<std::string, std::string> copy_companions(const std::filesystem::path& from, const Companions& companions,
                                                   const std::filesystem::path& to);

}  // namespace pare
