#include <fmt/format.h>

#include "pare/data/text_file.h"
#include "pare/support/error.h"

namespace pare {

ByteSource open_gzip(std::shared_ptr<const InputFile> file) {
  throw InputError(
      fmt::format("{} is compressed by gzip, and this pare was built without zlib: install zlib1g-dev and build it "
                  "again, or gunzip",
                  file->path().string()));
}

}  // namespace pare
