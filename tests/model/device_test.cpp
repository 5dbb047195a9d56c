// What is beside the program for a GPU, where it cannot be loaded.

#include "pare/model/device.h"

#include <doctest/doctest.h>

#include "tests/support/helpers.h"

namespace pare::test {

TEST_CASE("a CUDA part that is there and cannot be loaded is said, with the reason; one that is not there is not") {
  const TemporaryFolder folder;
  CHECK(load_cuda_part(folder.path()).empty());
  folder.write("libpare_cuda.so", "no library");
  const std::string why = load_cuda_part(folder.path());
  CHECK_MESSAGE(contains(why, "libpare_cuda.so' cannot be loaded"), why);
  CHECK_MESSAGE(contains(why, "file too short"), why);
  CHECK(cuda_part() == nullptr);
  CHECK(take_device_warnings().empty());
}

}  // namespace pare::test
