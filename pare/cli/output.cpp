#include "pare/cli/output.h"

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/log.h"

namespace pare {

namespace {

CapturedOutput* capture = nullptr;
bool document_begun = false;

}  // namespace

CapturedOutput::CapturedOutput() {
  PARE_CHECK(capture == nullptr, "one capture at a time");
  capture = this;
}

CapturedOutput::~CapturedOutput() {
  capture = nullptr;
}

void print_text(const std::string& text) {
  if (is_silent()) {
    return;
  }
  if (capture != nullptr) {
    capture->text_ += text;
    return;
  }
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) {
    return;
  }
  const int cause = errno;
  if (cause == EPIPE) {
    return;  // nobody reads any more, which is no error; the command goes on to its exit code
  }
  fail_io("write to", "stdout", cause);
}

void print_json(const nlohmann::ordered_json& json) {
  document_begun = document_begun || capture == nullptr;
  print_text(json_text(json));
}

void print_warnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    log_warning(warning);
  }
}

bool printed_document() {
  return document_begun;
}

}  // namespace pare
