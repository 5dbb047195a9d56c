// Whatever a sublayer stores is held against what the other model has there: of every kind, every tensor.

#include "pare/proof/ports.h"

#include "tests/proof/helpers.h"

using namespace pare;
using namespace pare::test;

TEST_CASE("a change of any tensor of any kind of sublayer is found, and named") {
  const auto model = [](const std::string& attention, const std::string& mlp) {
    return parse(R"({"width": 8, "vocab": 30, "context": 9, "blocks": [{"attention": {"heads": 2, "head_width": 4, )" +
                 attention + R"(}, "mlp": {)" + mlp + "}}]}");
  };
  const std::string dense = R"("width": 5, "activation": "gelu", "bias": {"up": true, "down": true})";
  for (const Architecture& architecture : {
           model(
               R"("gate": "position", "bias": {"query": true, "value": true, "output": true})",
               R"("width": 5, "activation": "silu", "gated": true, "bias": {"up": true, "gate": true, "down": true})"),
           model(R"("shaped": true)", R"("kind": "heads", "width": 5, "bias": {"down": true})"),
           model(R"("query": {"nonlinear": {"width": 6}})", R"("kind": "heads", "width": 5, "shared_value": true)"),
           model(R"("cache": "k")", dense),
           model(R"("cache": "v")", dense),
           model(R"("scores": "collapsed", "values": "collapsed", "bias": {"query": true, "output": true})", dense),
       }) {
    for (const TensorSpec& spec : tensor_table(architecture)) {
      if (!spec.id.module.block) {
        continue;
      }
      CAPTURE(spec.name);
      Pair pair = pair_of(architecture);
      at::Tensor& changed = pair.tb[spec.name];
      changed = changed.clone();
      changed.flatten()[1].add_(0.5);
      const Proof proof = proof_of(pair);
      CHECK_FALSE(proof.complete);
      CHECK_MESSAGE(proof.unexplained.contains(spec.name), why(proof));
      CHECK_MESSAGE(why(proof).find("nothing was found to compare it with") == std::string::npos, why(proof));
    }
  }
}
