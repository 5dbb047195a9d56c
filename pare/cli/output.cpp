#include "pare/cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/text.h"

namespace pare {

namespace {

CapturedOutput* capture = nullptr;

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
    throw ReaderGone();
  }
  fail_io("write to", "stdout", cause);
}

void print_json(const nlohmann::ordered_json& json) {
  print_text(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void check_output(const std::filesystem::path& path, bool replace, uint64_t bytes) {
  if (!replace && std::filesystem::exists(std::filesystem::symlink_status(path))) {
    throw InputError(fmt::format("{} exists: --force replaces it", quote(path.string())));
  }
  std::filesystem::path target = std::filesystem::absolute(path).lexically_normal();
  if (!target.has_filename()) {  // written with a slash at its end
    target = target.parent_path();
  }
  const std::filesystem::path folder = target.parent_path();
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) {
    fail_io("write to", folder, error.value());
  }
  if (space.available < bytes) {
    throw IoError(fmt::format("{} needs {} but its disk has {} left", quote(path.string()), human_bytes(bytes),
                              human_bytes(space.available)));
  }
}

}  // namespace pare
