#pragma once
// Matrices that could go, each with the stream whose basis would take it, what stands in the way, and how well it can
// be inverted.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pare/algebra/head_gauge.h"
#include "pare/algebra/proposal.h"
#include "pare/arch/streams.h"

namespace pare {

struct Removal {
  size_t stream = 0;
  int64_t block = 0;
  Target target = Target::query;
  double stored = 1, gauged = 1;  // condition numbers
  double usual = 1;               // of the better one: what most directions lose, where the condition is the worst
  bool absorbed = false;          // the stream's only writer: its readers take it by a product, nothing is inverted
  double amplified = 1;           // the most of what lies on the stream; see amplification.h
  double walk = 1;                // of the layers that read the stream, each with its own rounding
  bool twice = false;  // a collapsed matrix lies on the stream with two axes, and takes Θ⁻¹ from both sides

  ModuleId module() const { return module_of(block, target); }
  std::string name() const { return name_of(module()); }               // "blocks.3.attention.query"
  std::string weight() const { return name_of(weight_of(module())); }  // the matrix itself
  bool uses_gauge() const { return gauged < stored; }
  double inverted() const { return absorbed ? 1 : usual; }  // how much a later rounding in the new basis counts
  double condition() const { return absorbed ? 1 : twice ? gauged * gauged : gauged; }
  double roundings() const { return condition() * amplified * walk; }
};

// A matrix that was looked at: either it can be removed, or `failed` says why not.
struct SurveyedMatrix {
  Removal removal;
  std::vector<Precondition> failed;
  bool possible = false, measured = false;
};

struct RemovalQuery {
  std::vector<Target> targets;
  std::optional<Target> asked;   // one that was asked for by name: where it cannot go, nothing does
  std::optional<int64_t> block;  // only of this stored block
  bool measure_all = false;      // condition numbers also where the structure already refuses
};

constexpr double largest_condition = 1e9;  // beyond it, float64 itself keeps fewer than seven digits

// In the order of the blocks, and of the targets in each.
std::vector<SurveyedMatrix> survey_matrices(const Model& model, const Streams& streams, const RemovalQuery& what);

// Its condition number as a precondition, held or not.
Precondition conditioning_of(const Removal& removal);

// What else touches the stream. Computed positions do not count: they become a table.
std::vector<std::string> obstacles(const Stream& stream);
// The words of the command line: q, k or v; nothing for `best`.
std::optional<Target> target_from_word(const std::string& word);
// The one that was asked for, or all three of them.
std::vector<Target> targets_of(const std::optional<Target>& asked);
// The first few, for people.
std::string abridged(const std::vector<std::string>& words);
// "A stays: REASON; 9 that cost as much or more stay too: B, ...": what a budget leaves, cheapest first.
std::string left_over(const std::vector<std::string>& names, std::string_view verb, const std::string& reason);

// The matrix as it is stored, or in the best gauge of its heads where that is better.
at::Tensor in_best_gauge(const Model& model, const Removal& removal);

}  // namespace pare
