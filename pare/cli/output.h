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

// While it lives, what would be printed is kept here instead: the demo shows the output of other commands.
class CapturedOutput {
 public:
  CapturedOutput();
  ~CapturedOutput();
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  const std::string& text() const { return text_; }

 private:
  friend void print_text(const std::string& text);
  std::string text_;
};

// Before the work starts: InputError when `path` exists and may not be replaced, IoError when its folder is missing or
// its disk has less than `bytes` left.
void check_output(const std::filesystem::path& path, bool replace, uint64_t bytes);

}  // namespace pare
