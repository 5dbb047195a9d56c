// The rank of the Jacobian against counts that others measured.

#include "pare/probes/jacobian_rank.h"

#include "tests/arch/counted_architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

// Ours draws other weights and other inputs than theirs: the rank is the same.
TEST_CASE("the measured redundancy of known architectures") {
  for (const CountedArchitecture& known : counted_architectures()) {
    CAPTURE(known.name);
    Architecture a = parse(known.json);
    for (Block& block : a.blocks) {
      for (std::optional<Norm>* norm : {&block.attention.norm, &block.mlp->norm, &a.final_norm}) {
        if (*norm) {
          (*norm)->epsilon = 0.1;
        }
      }
    }
    const JacobianRank found = jacobian_rank(a);
    CHECK(found.parameters == known.parameters);
    CHECK(found.redundant() == known.redundant);
    CHECK(found.gap > least_gap);
  }
}

}  // namespace pare::test
