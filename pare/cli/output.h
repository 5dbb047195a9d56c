#pragma once
// What a command hands back: results on stdout, where a reader that went away (`| head`) is no error, and files.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "pare/support/files.h"

namespace pare {

void print_text(const std::string& text);
void print_json(const nlohmann::ordered_json& json);
bool printed_document();  // whether print_json has been called: there is one document, never two

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

// As a file has it: names that are no UTF-8 do not stop it.
std::string json_text(const nlohmann::ordered_json& json);

// Before the work starts: InputError where check_target has one, IoError when the disk has less than `bytes` left.
void check_output(const std::filesystem::path& path, OutputKind kind, const ReplaceCheck& replace, uint64_t bytes);

// InputError where writing `output` would change `input`: where it is the same, holds it or what it links to, or lies
// in it.
void check_input_stays(const std::filesystem::path& input, const std::filesystem::path& output);

}  // namespace pare
