#pragma once
// What may make room for a new output: what a program wrote and can write again, and nothing that a person put there.

#include <filesystem>

namespace pare {

// InputError listing what is in the way, unless the folder is empty, or holds a model with what pare or transformers
// writes beside it and nothing else. Files that pare copied there may go as long as they are what was copied.
void check_replaceable_model(const std::filesystem::path& folder);

// InputError unless it is a regular file that is empty, or safetensors as `run` writes them.
void check_replaceable_tensors(const std::filesystem::path& file);

}  // namespace pare
