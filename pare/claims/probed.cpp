// Paper 4's experiments on activations: Experiments 1, 2 and 4, and the test that the paper leaves open.

#include "pare/claims/claim.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pare/claims/draws.h"
#include "pare/claims/probed_models.h"

namespace pare {

namespace {

// ---- Experiment 2: rank by layer, with and without residual connections

constexpr double rank_one = 1.5;  // a mean of at most so much: most sequences are of rank one

Outcome residual_stability(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  const int64_t tokens = whole ? 64 : 24;
  Outcome found;
  bool kept = true, high = true, falls = true, causal_falls = true;
  measure_each(probed_models(trial, tokens, whole ? 16 : 3), found, [&](const ProbedModel& model) {
    const ProbeResults with = probed(model);
    const ProbeResults without = probed(model, {.without_attention_residual = true, .without_mlp_residual = true});
    ClaimTable table{
        "Rank by layer, " + model.name, {"layer", "with residual", "±", "without", "±"}, {}, "rank of the stream"};
    const std::vector<const PointMeasures*> on = stream_of(with), off = stream_of(without);
    double least = static_cast<double>(tokens), collapsed_at = -1;
    for (size_t i = 0; i < on.size(); ++i) {
      const Spread &a = on[i]->ranks.rank, &b = off[i]->ranks.rank;
      const double layer = static_cast<double>(on[i]->layer);
      table.rows.push_back({layer, average_of(a), a.deviation().value_or(0), average_of(b), b.deviation().value_or(0)});
      least = std::min(least, average_of(a));
      collapsed_at = average_of(b) > rank_one ? -1 : collapsed_at < 0 ? layer : collapsed_at;
    }
    const double full = std::min(table.rows.front()[1], static_cast<double>(with.width));
    kept = kept && least >= 0.95 * full;
    high = high && least > 0.5 * full;
    const bool causal = model.model.architecture.blocks.front().attention.mask == Mask::causal;
    (causal ? causal_falls : falls) &= collapsed_at >= 0;
    found.compared.push_back(
        {model.name + ": least rank with residual", "63.7 of 64", fmt::format("{} of {}", shown(least), shown(full))});
    found.compared.push_back({model.name + ": rank without, after the last layer", "1", shown(table.rows.back()[3])});
    found.compared.push_back({fmt::format("{}: mean rank at most {} from layer", model.name, rank_one), "6",
                              collapsed_at < 0 ? "never" : shown(collapsed_at)});
    found.tables.push_back(std::move(table));
  });
  found.verdict = kept && falls && causal_falls ? ClaimVerdict::holds
                  : high && falls               ? ClaimVerdict::holds_corrected
                                                : ClaimVerdict::does_not_hold;
  found.because =
      fmt::format("with residual the rank {}; without it {}{}",
                  kept   ? "stays"
                  : high ? "stays high, but does fall in some model"
                         : "falls below half in some model",
                  falls ? "falls to 1 in every encoder" : "falls, but not to 1 in every encoder",
                  causal_falls ? "" : ", and not in a causal model, whose attention matrices are triangular");
  return found;
}

// ---- Experiment 1: |rank LN(X) - rank X|, gains as they are and half of them zero

double mean_change(const ProbeResults& results) {
  double sum = 0, count = 0;
  for (const NormMeasures& norm : results.norms) {
    if (const std::optional<double> change = norm.rank_change.average()) {
      sum += *change;
      ++count;
    }
  }
  return count > 0 ? sum / count : std::nan("");
}

// The largest change among the models, with gains as they are and with half of them zero.
struct LargestChange {
  bool measured = false;
  double kept = 0, zeroed = 0;

  void add(double with_gains, double without) {
    measured = true;
    kept = std::max(kept, with_gains);
    zeroed = std::max(zeroed, without);
  }
};

std::string in_words(const LargestChange& change) {
  constexpr const char* dash = "not measured";
  return change.measured ? fmt::format("by up to {}, and by up to {} with half of its gains zero", shown(change.kept),
                                       shown(change.zeroed))
                         : dash;
}

Outcome rank_neutrality(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  Outcome found;
  ClaimTable table{"Mean |rank after - rank before| over all norms (threshold 1e-3)",
                   {"width", "gains kept", "half zeroed"},
                   {},
                   "mean change of the rank by a norm",
                   {"width"},
                   "model"};
  LargestChange few, many;  // with fewer tokens than dimensions, and with as many or more
  std::vector<ProbedModel> models = probed_models(trial, whole ? 64 : 20, whole ? 16 : 3);
  for (ProbedModel& longer : probed_models(trial, whole ? 512 : 40, whole ? 1 : 3)) {
    models.push_back(std::move(longer));
  }
  measure_each(models, found, [&](const ProbedModel& model) {
    const double plain = mean_change(probed(model)), zeroed = mean_change(probed(model, {.zero_gains = 0.5}));
    const double width = static_cast<double>(model.model.architecture.width);
    const double length = static_cast<double>(model.inputs[0].ids.size(1));
    table.names.push_back(fmt::format("{}, {:.0f} tokens", model.name, length));
    table.rows.push_back({width, plain, zeroed});
    (length < width ? few : many).add(plain, zeroed);
  });
  const auto number = [](const LargestChange& of, double value) { return of.measured ? shown(value) : "not measured"; };
  found.compared = {{"fewer tokens than dimensions: largest mean change", "0.041", number(few, few.kept)},
                    {"the same, half of the gains zero", "0.036", number(few, few.zeroed)},
                    {"as many tokens or more: largest mean change", "not said", number(many, many.kept)},
                    {"the same, half of the gains zero", "not said", number(many, many.zeroed)}};
  found.tables = {table};
  constexpr double one_rank_in_two = 0.5;
  const bool first_half = few.kept <= one_rank_in_two, second_half = few.zeroed <= one_rank_in_two;
  const bool elsewhere = std::max(many.kept, many.zeroed) <= one_rank_in_two;
  found.verdict = !first_half || !second_half ? ClaimVerdict::does_not_hold
                  : !elsewhere                ? ClaimVerdict::holds_corrected
                                              : ClaimVerdict::holds;
  const char* halves = first_half && second_half ? ""
                       : first_half              ? "the first half holds, the second does not: "
                       : second_half             ? "the second half holds, the first does not: "
                                                 : "neither half holds: ";
  found.because = fmt::format("{}with fewer tokens than dimensions, as in the paper, a norm changes the rank {}",
                              halves, in_words(few));
  found.because += many.measured ? "; with as many or more " + in_words(many) : "";
  return found;
}

// ---- Experiment 4: asymmetry of a head against the rank of its layer, and against how its subspace lies to the others

struct HeadPoints {
  std::vector<double> asymmetry, rank, alignment;
  std::vector<std::string> heads;  // "block 3, head 5"
};

// cos² of the smallest angle to each other head of the layer, the mean.
std::optional<double> alignment_of(const LayerMeasures& layer, int64_t head) {
  double sum = 0, count = 0;
  for (const HeadPair& pair : layer.pairs) {
    if ((pair.first == head || pair.second == head) && pair.alignment.average()) {
      sum += average_of(pair.alignment);
      ++count;
    }
  }
  return count > 0 ? std::optional(sum / count) : std::nullopt;
}

// A point for each stored head: layers that run one block have one asymmetry, and count once, by their means.
HeadPoints heads_of(const ProbeResults& results) {
  struct Sum {
    double asymmetry = 0, rank = 0, alignment = 0, layers = 0;
  };
  std::map<std::pair<int64_t, int64_t>, Sum> sums;
  const std::map<int64_t, double> ranks = written_ranks(results);
  for (const LayerMeasures& layer : results.layers) {
    for (int64_t h = 0; h < std::ssize(layer.heads); ++h) {
      const std::optional<double> asymmetry = layer.heads[h].asymmetry;
      const std::optional<double> aligned = alignment_of(layer, h);
      if (asymmetry && aligned && ranks.contains(layer.layer)) {
        Sum& sum = sums[{layer.block, h}];
        sum = {*asymmetry, sum.rank + ranks.at(layer.layer), sum.alignment + *aligned, sum.layers + 1};
      }
    }
  }
  HeadPoints points;
  for (const auto& [head, sum] : sums) {
    points.asymmetry.push_back(sum.asymmetry);
    points.rank.push_back(sum.rank / sum.layers);
    points.alignment.push_back(sum.alignment / sum.layers);
    points.heads.push_back(fmt::format("block {}, head {}", head.first, head.second));
  }
  return points;
}

std::string in_words(const Correlation& found) {
  return found.is_defined ? fmt::format("r = {:+.3f}, p = {:.2g} ({} heads)", found.r, found.p, found.count)
                          : fmt::format("undefined: too few heads, or all alike ({})", found.count);
}

// What a claim says of how a head's asymmetry goes with another number of it.
struct HeadQuestion {
  std::vector<double> HeadPoints::*with = nullptr;
  std::string words, claimed;  // what that number is; what the paper has of it
  double sign = 1;             // of the correlation that is looked for
  bool is_claimed = true;      // the claim: all trained models have it, or none
  std::string because;         // with two places: how many of how many
};

// In each model; random heads are shown and decide nothing.
Outcome correlate(const Trial& trial, const HeadQuestion& question) {
  const bool whole = trial.scale == ClaimScale::small;
  Outcome found;
  int64_t trained = 0, correlated = 0;
  measure_each(probed_models(trial, whole ? 48 : 16, whole ? 32 : 3), found, [&](const ProbedModel& model) {
    const HeadPoints points = heads_of(probed(model));
    const std::vector<double>& numbers = points.*question.with;
    const Correlation measured = correlation(points.asymmetry, numbers);
    const bool counts = model.trained && measured.is_defined;
    trained += counts;
    correlated += counts && measured.p < 0.01 && question.sign * measured.r > 0.3;
    found.compared.push_back({model.name, question.claimed, in_words(measured)});
    if (!points.asymmetry.empty()) {
      found.figures.push_back(
          {.kind = FigureKind::scatter,
           .title = fmt::format("A head's asymmetry and {}, {}", question.words, model.name),
           .words = "A point for each stored head: " + in_words(measured) + ".",
           .x = {.words = "directional asymmetry ‖Mₐ‖/‖M‖ of M = W_Q W_Kᵀ"},
           .y = {.words = question.words},
           .series = {{.name = "heads", .x = points.asymmetry, .y = numbers, .labels = points.heads}}});
    }
  });
  if (trained == 0) {
    found.because = "random heads say nothing of specialisation: name trained models with --model";
    return found;
  }
  const bool holds = correlated == (question.is_claimed ? trained : 0);
  found.verdict = holds ? ClaimVerdict::holds : ClaimVerdict::does_not_hold;
  found.because = fmt::format(fmt::runtime(question.because), correlated, trained);
  return found;
}

Outcome asymmetry_vs_rank(const Trial& trial) {
  return correlate(trial, {.with = &HeadPoints::rank,
                           .words = "effective rank of its layer",
                           .claimed = "r = +0.152, p = 0.068",
                           .sign = -1,
                           .is_claimed = false,
                           .because = "{} of {} trained models have the negative correlation (r < -0.3, p < 0.01) that "
                                      "shrinking subspaces would give"});
}

Outcome asymmetry_vs_angles(const Trial& trial) {
  return correlate(trial,
                   {.with = &HeadPoints::alignment,
                    .words = "mean cos² of its angles to others",
                    .claimed = "positive",
                    .because = "directional heads are more aligned (r > 0.3, p < 0.01) in {} of {} trained models"});
}

}  // namespace

std::vector<PaperClaim> claims_of_probed_models() {
  constexpr Paper paper = Paper::rank_and_symmetry;
  std::vector<PaperClaim> all = {
      {"rank-neutrality", paper, "Experiment 1",
       "LayerNorm changes the rank by 0.041 on average, and by 0.036 with half of its gains zero.",
       ClaimVerdict::does_not_hold, "0.00521, and 46.3 with half of the gains zero", rank_neutrality},
      {"residual-stability", paper, "Experiment 2",
       "With residual connections the rank stays 63.7 of 64; without, it is 1 from layer 6 on.",
       ClaimVerdict::holds_corrected, "63.4 of 64 with, 1 without", residual_stability},
      {"asymmetry-vs-rank", paper, "Experiment 4",
       "A head's asymmetry does not predict the rank of multi-head attention.", ClaimVerdict::holds,
       "in 0 of 2 trained models", asymmetry_vs_rank, true},
      {"asymmetry-vs-angles", paper, "Conjecture 6.5",
       "Directional heads write into subspaces that are aligned with those of other heads.",
       ClaimVerdict::does_not_hold, "in 0 of 3 trained models", asymmetry_vs_angles, true},
  };
  for (PaperClaim& claim : all) {
    claim.of_activations = true;
  }
  return all;
}

}  // namespace pare
