#pragma once
// SHA-256, as certificates name files by it. Two siblings implement it: libcrypto's, and one that needs nothing.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace pare {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void update(std::span<const std::byte> bytes);
  std::string hex();  // once, at the end: 64 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// InputError when the file is missing, IoError when it cannot be read or shrinks meanwhile. Can be interrupted.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace pare
