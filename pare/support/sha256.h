#pragma once
// SHA-256, as certificates name files by it. Two siblings implement it: libcrypto's, and one that needs nothing.

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace pare {

class InputFile;

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

std::string sha256_of(std::string_view text);
// Of the open file, whatever has its name by now. InputError where it is written to while it is open. Can be
// interrupted.
std::string sha256_of(const InputFile& file);
// InputError when the file is missing, IoError when it cannot be read.
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace pare
