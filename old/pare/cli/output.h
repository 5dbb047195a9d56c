#pragma once
// What a command hands back on stdout, where a reader that went away (`| head`) is no error, and says on stderr.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace pare {

void print_text(const std::string& text);
void print_json(const nlohmann::ordered_json& json);
void print_warnings(const std::vector<std::string>& warnings);  // on stderr, also with --quiet
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

}  // namespace pare
