#pragma once
// A pass: one theorem, applied to a model. It proposes; nothing is changed, and nothing computed that a decision does
// not need, until somebody writes or runs what it proposes.

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/checkpoint/weights.h"
#include "pare/passes/prediction.h"

namespace pare {

// A model as recipes: what it is, and how to get each tensor. Without weights, only what structure decides is decided.
struct Recipe {
  Architecture architecture;
  Weights weights;
  bool has_weights() const { return !weights.empty(); }
};

// One condition at one place. What was found is said in words, and measured where it is a number.
struct Precondition {
  std::string where;     // "blocks.3.attention.norm"
  std::string expected;  // "no norm on the stream"
  std::string found;     // "a layer norm"
  bool holds = false;
  std::string remedy;  // what would have to change; empty where it holds
  std::optional<double> measured, limit;
};

// The condition number of a matrix whose inverse the rewrite needs, as stored and in the best gauge of its heads.
struct Conditioning {
  std::string matrix;
  double stored = 1, gauged = 1;
  bool chosen = false;  // this is the one whose basis the stream takes
};

struct Proposal {
  Recipe after;  // what came in, where nothing can be done
  std::vector<Precondition> preconditions;
  std::vector<Conditioning> conditioning;
  std::vector<std::string> notes;
  bool over_budget = false;  // more could be done, and the notes say what: it would cost more than allowed
  double roundings = 0;      // how far rounding the result moves the answer, in unit roundoffs; see prediction.h
  bool applies = false;
};

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
  Proposal (*propose)(const Recipe& model, const Options& options, const std::optional<Budget>& budget);
};

// In the order in which they lose nothing: what folds into others first, what changes a basis last.
const std::vector<const Pass*>& all_passes();

const Pass& pass_drop_key_bias();
const Pass& pass_fold_value_bias();
const Pass& pass_fold_norm_gain();
const Pass& pass_merge_skipless();
const Pass& pass_eliminate_projection();

}  // namespace pare
