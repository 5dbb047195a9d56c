#pragma once
// Where an output may go, asked before the work that makes it.

#include <cstdint>
#include <filesystem>

#include "pare/support/files.h"

namespace pare {

// Before the work starts: InputError where check_target has one, IoError when the disk has less than `bytes` left.
void check_output(const std::filesystem::path& path, OutputKind kind, const ReplaceCheck& replace, uint64_t bytes);

// InputError where writing `output` would change `input`: where it is the same, holds it or what it links to, or lies
// in it.
void check_input_stays(const std::filesystem::path& input, const std::filesystem::path& output);

}  // namespace pare
