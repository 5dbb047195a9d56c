#pragma once
// A claim that trains, as data: what is compared, with which reference, what the paper says of it, and whether it
// decides. One function makes the rows, tables, figures, verdict and sentence of it.

#include "pare/claims/comparators.h"
#include "pare/claims/trained.h"

namespace pare {

// What may be called no loss, in nats a token: half of what the controls in Table 2 of Karbevski and Mijoski lose
// (0.011 and 0.012), which they call worse.
constexpr double least_cost = 0.005;

// The claim itself; the same in further settings, or what it says besides; no part of the verdict.
enum class ClaimRole { headline, further, shown };

struct ClaimRow {
  ClaimFinding finding;
  std::string claimed = "not said";
  ClaimRole role = ClaimRole::shown;
  std::string measured = {};  // in the table; empty: the words of the finding
};

// The loss of a variant, and by how much it is above that of a reference.
struct LossRow {
  std::string words, variant;
  std::string reference = {};  // empty: its loss alone
  std::string claimed = {};    // empty: not among what is claimed and measured
  ClaimRole role = ClaimRole::shown;
  bool common_rates = false;  // at the best of the rates that both were trained at; else each at its own best
  bool stops_fail = false;    // a seed that ends with the reference and not with the variant is a loss without a number
  std::string note = {};
};
// Each of these beside the first.
std::vector<LossRow> beside_first(const std::vector<std::string>& variants);

struct LossTable {
  std::string title;
  std::vector<LossRow> rows;
  std::string notes_are = {};                 // empty: they have none
  std::string curves = {}, differences = {};  // titles of figures over the steps; empty: none
};

struct ClaimSheet {
  std::vector<LossTable> losses = {};
  std::vector<ClaimRow> rows = {};
  std::vector<ClaimTable> tables = {};
  std::vector<Figure> figures = {};
};
// Several headlines have to hold together. Rows of what nobody has trained are left out.
Outcome judged(ClaimScale scale, const TrainedRuns& runs, const ClaimSheet& sheet);
Outcome judged(ClaimScale scale, const std::vector<ClaimRow>& rows);

// Variants that nobody has trained have no row, unless they have a note. A difference is no number where no pair shares
// seed, data and order.
ClaimTable table_of(const TrainedRuns& runs, const LossTable& table);

// Points of variants by parameters, those that a rewrite then removes exactly not counted.
struct ParameterSeries {
  std::string name;
  std::vector<std::pair<std::string, std::string>> variants;  // with their words
};
Figure figure_by_parameters(const std::string& title, const FigureAxis& axis, const TrainedRuns& runs,
                            const std::vector<ParameterSeries>& series, double Settled::*number);

}  // namespace pare
