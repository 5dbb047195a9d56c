// Theorem: (x Q + b_Q)(y K + b_K)ᵀ = (x Q + b_Q)(y K)ᵀ + (x Q + b_Q) b_Kᵀ, and the last term is the same for every key
// y. Softmax ignores a constant added to a row of scores. Before: b_K.   After: no b_K.
//
// Proof: softmax(s + c) = softmax(s) for any c that does not depend on the key.
//
// Preconditions: P1 no RoPE (it turns b_K by the key's position; un-rotated entries could be zeroed, which saves
// nothing); P2 no QK-norm (the bias is inside); P3 no score softcap (not shift invariant); P4 the query is not the key
// (it would lose the bias too).
// Exactness: no arithmetic on weights at all; scores move by a constant per row.
// Order: after fold_norm_gain, which may fold a norm's bias into b_K.
// Reference: docs/theorems/drop_key_bias.md

#include "pare/passes/pass.h"

#include <fmt/format.h>

namespace pare {

namespace {

std::optional<Precondition> obstacle(const Attention& t, int64_t block, const std::string& where) {
  const auto fails = [&](const char* expected, std::string found, const char* remedy) {
    return Precondition{
        .where = where, .block = block, .expected = expected, .found = std::move(found), .remedy = remedy};
  };
  if (t.rope) {
    return fails("no RoPE", fmt::format("RoPE rotates {} of {} dimensions", t.rope->width, t.head_width),
                 "none: the bias turns with the key's position");
  }
  if (t.qk_norm) {
    return fails("no QK-norm", "the key is normalised after its bias", "none: the bias is inside the norm");
  }
  if (t.softcap) {
    return fails("no score softcap", fmt::format("softcap {}", *t.softcap), "none: a cap is not shift invariant");
  }
  if (is<SameAsKey>(t.query)) {
    return fails("a separate query matrix", "the query is the key", "none: the query needs the bias");
  }
  return std::nullopt;
}

Proposal propose(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model};
  std::vector<Block>& blocks = proposal.after.architecture.blocks;
  for (int64_t n = 0; n < std::ssize(blocks); ++n) {
    Attention& t = blocks[n].attention;
    const std::string where = name_of(bias_of(in_attention(n, Slot::key)));
    const bool tabled = is_tabled(model.architecture, n);
    if (!t.bias.key || tabled) {
      proposal.preconditions.push_back({.where = where,
                                        .block = n,
                                        .expected = "a key bias",
                                        .found = tabled ? "it is inside the first-layer table" : "there is none"});
      continue;
    }
    if (std::optional<Precondition> failed = obstacle(t, n, where)) {
      proposal.preconditions.push_back(*std::move(failed));
      continue;
    }
    proposal.preconditions.push_back(
        {.where = where, .block = n, .expected = "scores that only softmax reads", .found = "they are", .holds = true});
    t.bias.key = false;
    proposal.after.weights.erase(where);
    proposal.applies = true;
  }
  return proposal;
}

}  // namespace

const Pass& pass_drop_key_bias() {
  static const Pass pass{
      .id = "drop_key_bias",
      .theorem = "softmax(s + c) = softmax(s), and (xQ + b_Q) b_K' is one c for every key",
      .saves = "kv_heads · head_width in each layer",
      .reference = "no paper: softmax ignores a constant; beside proposition 4.1 of Karbevski and Mijoski 2025",
      .preconditions = {"no RoPE", "no QK-norm", "no score softcap", "the query is not the key"},
      .options = {},
      .propose = propose,
  };
  return pass;
}

}  // namespace pare
