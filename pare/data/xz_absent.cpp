#include <fmt/format.h>

#include "pare/data/text_file.h"
#include "pare/support/error.h"

namespace pare {

ByteSource open_xz(std::shared_ptr<const InputFile> file) {
  throw InputError(
      fmt::format("{} is compressed by xz, and this pare was built without liblzma: install liblzma-dev and build it "
                  "again, or unxz",
                  file->path().string()));
}

}  // namespace pare
