#pragma once
// A pass: one theorem, applied to a model. It proposes; nothing is changed, and nothing computed that a decision does
// not need, until somebody writes or runs what it proposes.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/algebra/prediction.h"
#include "pare/algebra/proposal.h"

namespace pare {

using Options = std::map<std::string, std::string>;

struct PassOption {
  std::string_view name;
  std::string_view values;  // "q|k|v|best"; "all|N": all, or a number
  std::string_view fallback;
};

struct Pass {
  std::string_view id;
  std::string_view theorem;  // one equation
  std::string_view saves;
  std::string_view reference;
  std::vector<std::string_view> preconditions;  // in words, for `pare passes`
  std::vector<PassOption> options;
  bool inverts = false;  // some matrix, whose condition number then decides
  Proposal (*propose)(const Model& model, const Options& options, const std::optional<Budget>& budget);
};

// In the order in which they lose nothing: what folds into others first, what changes a basis last (order.cpp).
const std::vector<const Pass*>& all_passes();
// As the build finds them: each file of this folder defines `const Pass& pass_NAME()`.
const std::vector<const Pass*>& passes_by_file();

}  // namespace pare
