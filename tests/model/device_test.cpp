// What is beside the program for a GPU, where it cannot be loaded.

#include "pare/model/device.h"

#include <doctest/doctest.h>

#include "tests/support/helpers.h"

namespace pare::test {

TEST_CASE("a CUDA part that is there and cannot be loaded is said, with the reason; one that is not there is not") {
  const TemporaryFolder folder;
  CHECK(load_cuda_part(folder.path()).why.empty());
  folder.write("libpare_cuda.so", "no library");
  const CudaPart part = load_cuda_part(folder.path());
  CHECK_MESSAGE(contains(part.why, "libpare_cuda.so' cannot be loaded"), part.why);
  CHECK_MESSAGE(contains(part.why, "file too short"), part.why);
  CHECK(part.library == nullptr);
}

}  // namespace pare::test
