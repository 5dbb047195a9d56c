#include "pare/support/output_place.h"

#include <fmt/format.h>

#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

namespace fs = std::filesystem;

// Whether a path without links in it is `place`, or is somewhere below.
static bool is_within(const fs::path& path, const fs::path& place) {
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
  refuse_if(is_within(folder, read), "the output {} lies in {}: choose another, what is read is never changed",
            quote(output.string()), quote(input.string()));
  bool holds = is_within(read, target);
  if (fs::is_directory(read, missing)) {
    for (const fs::directory_entry& entry : entries_of(read)) {
      if (entry.is_symlink(missing)) {  // the Hugging Face cache consists of them
        const fs::path file = fs::canonical(entry.path(), missing);
        holds = holds || (!file.empty() && is_within(file, target));
      }
    }
  }
  refuse_if(holds,
            "the output {} is {} itself, holds it or holds a file of it: choose another, what is read is never changed",
            quote(output.string()), quote(input.string()));
}

}  // namespace pare
