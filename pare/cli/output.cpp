#include "pare/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

CapturedOutput* capture = nullptr;
bool document_begun = false;

// Whether a path without links in it is `place`, or is somewhere below.
bool is_within(const fs::path& path, const fs::path& place) {
  std::error_code missing;
  for (fs::path at = path;; at = at.parent_path()) {
    if (fs::equivalent(at, place, missing)) {
      return true;
    }
    if (at == at.parent_path()) {
      return false;
    }
  }
}

}  // namespace

CapturedOutput::CapturedOutput() {
  PARE_CHECK(capture == nullptr, "one capture at a time");
  capture = this;
}

CapturedOutput::~CapturedOutput() {
  capture = nullptr;
}

void print_text(const std::string& text) {
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

bool printed_document() {
  return document_begun;
}

std::string json_text(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

void check_output(const fs::path& path, OutputKind kind, const ReplaceCheck& replace, uint64_t bytes) {
  check_target(path, kind, replace);
  const fs::path folder = fs::absolute(output_target(path)).parent_path();
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) {
    fail_io("write to", folder, error.value());
  }
  if (space.available < bytes) {
    throw IoError(fmt::format("{} needs {} but its disk has {} left", quote(path.string()), human_bytes(bytes),
                              human_bytes(space.available)));
  }
}

void check_input_stays(const fs::path& input, const fs::path& output) {
  const fs::path target = output_target(output);
  std::error_code missing;
  const fs::path read = fs::canonical(input, missing),
                 folder = fs::canonical(fs::absolute(target).parent_path(), missing);
  if (read.empty() || folder.empty()) {
    return;  // then one cannot be read, or the other not be written, and whoever tries says so
  }
  if (is_within(folder, read)) {
    throw InputError(fmt::format("the output {} lies in {}: choose another, what is read is never changed",
                                 quote(output.string()), quote(input.string())));
  }
  bool holds = is_within(read, target);
  if (fs::is_directory(read, missing)) {
    for (const fs::directory_entry& entry : entries_of(read)) {
      if (entry.is_symlink(missing)) {  // the Hugging Face cache consists of them
        const fs::path file = fs::canonical(entry.path(), missing);
        holds = holds || (!file.empty() && is_within(file, target));
      }
    }
  }
  if (holds) {
    throw InputError(
        fmt::format("the output {} is {} itself, holds it or holds a file of it: choose another, what is "
                    "read is never changed",
                    quote(output.string()), quote(input.string())));
  }
}

}  // namespace pare
