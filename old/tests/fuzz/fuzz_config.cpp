// config.json of any family. Reading it gives an Architecture that is valid, or every reason why not.

#include "pare/arch/validate.h"
#include "pare/checkpoint/model_folder.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::string_view text) {
    const pare::Architecture read = pare::parse_config(text, "fuzz");
    pare::Problems problems;
    pare::validate(read, problems);
    PARE_CHECK(problems.empty(), problems.list().front());
  });
}
