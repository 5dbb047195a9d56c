#include "pare/verify/drawn_seed.h"

#include <fmt/format.h>

#include "pare/support/sha256.h"

namespace pare {

namespace {

std::string file_lines(const ModelFolder& model) {
  std::string lines;
  for (const auto& [name, hash] : file_hashes(model)) {
    lines += fmt::format("{} {}\n", name, hash);
  }
  return lines;
}

}  // namespace

uint64_t drawn_seed(const ModelFolder& reference, const ModelFolder& candidate, uint64_t seed) {
  const std::string hash =
      sha256_of(fmt::format("{}--\n{}--\n{}\n", file_lines(reference), file_lines(candidate), seed));
  return std::stoull(hash.substr(0, 16), nullptr, 16);
}

}  // namespace pare
