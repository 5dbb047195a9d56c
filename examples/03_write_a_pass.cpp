// Lesson 3: a pass of your own (example_03_write_a_pass MODEL OUTPUT). Never `proved`: the prover does not know it.
//
// Theorem: where there is one token type, its row t is added to every token: (x + t) + p_i = x + (p_i + t).
// Before: p_i, t.   After: p_i* = p_i + t, no types. RoBERTa stores such a t.
// Preconditions: P1 exactly one type; P2 learned positions, since every token then reads a row of their table.
// Exactness: one sum, rounded once. Whoever runs the result names no types any more, as all of them were 0.

#include <ATen/ATen.h>

#include <iostream>

#include "pare/algebra/operations.h"
#include "pare/rewrite/rewrite.h"

using namespace pare;

Proposal propose(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  Embedding& embedding = proposal.after.architecture.embedding;
  const bool one = embedding.types == 1, learned = embedding.position == Position::learned;
  proposal.preconditions = {
      {.where = "embed.type", .expected = "one", .found = std::to_string(embedding.types), .holds = one},
      {.where = "embed.position", .expected = "learned", .found = learned ? "so" : "not so", .holds = learned}};
  if (!one || !learned) {
    return proposal;  // a refusal is a value, with its reasons
  }
  embedding.types = 0;
  if (Weights& weights = proposal.after.weights; model.has_weights()) {  // else only the structure is asked about
    const Weight positions = weights.at("embed.position.weight"), type = weights.at("embed.type.weight");
    weights["embed.position.weight"] =
        computed(positions.shape(), positions.formula() + type.formula(), {positions, type},
                 [](const std::vector<at::Tensor>& in) { return in[0] + in[1]; });
    weights.erase("embed.type.weight");
  }
  proposal.roundings = 1;  // one place is rounded anew
  proposal.applies = true;
  return proposal;
}

const Pass fold_single_type = {.id = "fold_single_type", .theorem = "(x + t) + p = x + (p + t)", .propose = propose};

int main(int count, char** words) try {
  if (count != 3) {
    std::cerr << "usage: example_03_write_a_pass MODEL OUTPUT\n";
    return 1;
  }
  const ModelFolder source = open_model(words[1]);
  const PassCall call{&fold_single_type, {}};
  const PassStep step = run_passes(source.model, {call}).steps.front();  // nothing is computed yet
  std::cout << step.call.pass->id << (step.proposal.applies ? " applies" : " refuses") << ", saves "
            << step.saved_parameters << "\n";
  const Rewritten result = rewrite(source, words[2], {.passes = {{call}}});
  std::cout << "relative error " << result.verification->metrics.max_relative_logit_error << ": "
            << word(result.verification->verdict) << "\n";
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
