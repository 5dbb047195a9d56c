// The rank of the Jacobian against counts that others measured.

#include "pare/probes/jacobian_rank.h"

#include <cstdlib>

#include "pare/arch/norms.h"
#include "tests/model/helpers.h"
#include "tests/redundancy/counted_forms.h"

namespace pare::test {

namespace {

void set_epsilons(Architecture& a, double epsilon) {
  for (const PlacedNorm& placed : norms_of(a)) {
    placed.norm->epsilon = epsilon;
  }
  for (Block& block : a.blocks) {
    if (block.attention.qk_norm) {
      block.attention.qk_norm->epsilon = epsilon;
    }
  }
}

}  // namespace

// Ours draws other weights and other inputs than theirs: the rank is the same. Those that were counted with this code
// are measured again by `make campaign`.
TEST_CASE("the measured redundancy of known architectures") {
  std::vector<CountedArchitecture> all = counted_architectures();
  if (std::getenv("PARE_CAMPAIGN")) {
    const std::vector<CountedArchitecture> further = measured_architectures();
    all.insert(all.end(), further.begin(), further.end());
  }
  for (const CountedArchitecture& known : all) {
    CAPTURE(known.name);
    Architecture a = parse(known.json);
    set_epsilons(a, 0.1);
    const JacobianRank found = jacobian_rank(a);
    CHECK(found.parameters == known.parameters);
    CHECK(found.redundant() == known.redundant);
    CHECK(found.gap > least_gap);
  }
}

}  // namespace pare::test
