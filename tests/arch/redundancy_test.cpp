// The rules' counts against those that others measured.

#include "pare/arch/redundancy.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "tests/arch/counted_architectures.h"

namespace pare::test {

TEST_CASE("the counted redundancy of known architectures") {
  for (const CountedArchitecture& known : counted_architectures()) {
    CAPTURE(known.name);
    const Architecture a = architecture_from_json(nlohmann::json::parse(known.json), "test");
    CHECK(count(a).total == known.parameters);
    const Redundancy found = redundancy(a);
    REQUIRE(found.is_determined());
    CHECK(found.total == known.redundant);
  }
}

}  // namespace pare::test
