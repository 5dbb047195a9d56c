// Paper 4, Corollary 6.8: whether the directional energy of a layer stands for the rank that its attention lacks. Three
// questions: whether the two go together over the layers of trained models, whether the energy is a number of the
// function at all, and what a rank does when the energy alone is raised.

#include "pare/claims/claim.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "pare/algebra/operations.h"
#include "pare/claims/draws.h"
#include "pare/claims/probed_models.h"
#include "pare/model/block.h"
#include "pare/model/executor.h"
#include "pare/probes/score_maps.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

// Named before anything was measured. A proxy goes with what it stands for: Spearman's correlation over the layers of
// trained models, ranked within each, is at least so much, and its 95 % interval excludes zero.
constexpr double least_correlation = 0.5;

// ---- The energy of a layer: the mean over its heads of ‖M_a‖², M = W_Q W_Kᵀ

// With (M - Mᵀ) / 2 for M_a, ‖M_a‖² = (‖M‖² - tr M²) / 2, and neither needs M.
double energy_of_head(const at::Tensor& query, const at::Tensor& key) {
  const at::Tensor across = at::matmul(key.t(), query);
  const at::Tensor squares = at::trace(at::matmul(at::matmul(query.t(), query), at::matmul(key.t(), key)));
  return (0.5 * (squares - at::trace(at::matmul(across, across)))).item<double>();
}

// The norm whose output block n reads; none where there is none with a gain of its own.
std::optional<ModuleId> norm_before(const Architecture& a, int64_t n) {
  const auto usable = [](const std::optional<Norm>& norm) { return norm && norm->gain && norm->offset == 0; };
  const std::optional<Norm>& own = a.blocks[n].attention.norm;
  if (own && own->place == NormPlace::pre) {
    return usable(own) ? std::optional(in_attention(n, Slot::norm)) : std::nullopt;
  }
  if (n == 0) {
    const bool is_read = !a.embedding.factor;  // else a matrix stands between
    return is_read && usable(a.embedding.norm) ? std::optional(in_embedding(Slot::norm)) : std::nullopt;
  }
  const Block& before = a.blocks[n - 1];
  return before.mlp && usable(before.mlp->norm) && before.mlp->norm->place == NormPlace::post
             ? std::optional(in_mlp(n - 1, Slot::norm))
             : std::nullopt;
}

// Of each block, as its matrices are stored, or with the gain of the norm before them in them.
enum class Gain { left_out, folded };
std::vector<double> energies_of(const Model& model, Gain gain) {
  const Architecture& a = model.architecture;
  Loader loader(a, model.weights, {.dtype = at::kDouble}, false);
  std::vector<double> found;
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const std::optional<ModuleId> norm = gain == Gain::folded ? norm_before(a, n) : std::nullopt;
    const at::Tensor factors =
        norm ? loader.tensor(weight_of(*norm)).unsqueeze(1) : at::ones({a.width, 1}, at::kDouble);
    double sum = 0, heads = 0;
    for (const auto& [query, key] : score_maps(load_block(loader, a, n).attention, false).heads) {
      sum += energy_of_head(factors * query, factors * key);
      ++heads;
    }
    found.push_back(sum / heads);
  }
  return found;
}

// ---- The same function with other energies

// What block n reads is multiplied by factors[n] in the norm before it and divided by it in W_Q, W_K and W_V, so that
// its energy is divided by factors[n]⁴. After a post-norm the skip carries the factor too: W_O takes it, and the next
// norm takes it back.
Model rescaled(Model model, const std::vector<double>& factors) {
  const auto scale = [&](const TensorId& id, double factor) {
    const auto found = model.weights.find(name_of(id));
    if (found != model.weights.end()) {  // a bias may be absent
      const Weight old = found->second;
      found->second = computed(old.shape(), Formula("rescaled"), {old},
                               [factor](std::vector<at::Tensor>& inputs) { return inputs[0] * factor; });
    }
  };
  for (int64_t n = 0; n < std::ssize(factors); ++n) {
    const ModuleId norm = norm_before(model.architecture, n).value();
    for (const TensorId& id : {weight_of(norm), bias_of(norm)}) {
      scale(id, factors[n]);
    }
    for (const Slot slot : {Slot::query, Slot::key, Slot::value}) {
      scale(weight_of(in_attention(n, slot)), 1 / factors[n]);
    }
    Norm& own = model.architecture.blocks[n].attention.norm.value();
    if (own.place == NormPlace::post) {
      for (const TensorId& id : {weight_of(in_attention(n, Slot::output)), bias_of(in_attention(n, Slot::output))}) {
        scale(id, factors[n]);
      }
      own.epsilon *= factors[n] * factors[n];
    }
  }
  return model;
}

bool can_be_rescaled(const Architecture& a) {
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const Attention& t = a.blocks[n].attention;
    if (!norm_before(a, n) || !t.norm || !has_dense_projections(t) || !is<Dense>(t.output)) {
      return false;
    }
  }
  return std::ssize(a.blocks) == std::ssize(layer_blocks(a));
}

at::Tensor answer_of(const ProbedModel& model) {
  Inputs few = model.inputs.front();
  few.ids = few.ids.narrow(0, 0, 1);
  const Outputs said = Executor(model.model, at::kDouble).forward(few);
  return said.logits.defined() ? said.logits : said.hidden;
}

// ---- Over the layers of a model

struct LayerPoints {
  std::vector<double> stored, folded, missing, smooth;  // energies; d less the rank, and less the effective rank
};

LayerPoints points_of(const ProbedModel& model) {
  const ProbeResults results = probed(model);
  LayerPoints points{energies_of(model.model, Gain::left_out), energies_of(model.model, Gain::folded), {}, {}};
  const double width = static_cast<double>(results.width), none = std::nan("");
  const std::map<int64_t, double> ranks = written_ranks(results);
  for (const LayerMeasures& layer : results.layers) {
    points.missing.push_back(layer.corpus_rank ? width - static_cast<double>(*layer.corpus_rank) : none);
    points.smooth.push_back(ranks.contains(layer.layer) ? width - ranks.at(layer.layer) : none);
  }
  return points;
}

// Places in order, from -1 to 1; those that are alike have the mean of theirs.
std::vector<double> places_of(const std::vector<double>& values) {
  return mapped(values, [&](double value) {
    const auto below = std::ranges::count_if(values, [&](double other) { return other < value; });
    const auto above = std::ranges::count_if(values, [&](double other) { return other > value; });
    return static_cast<double>(below - above) / static_cast<double>(values.size());
  });
}

// Spearman's correlation within models, of all of them together.
struct WithinModels {
  std::vector<double> energy, lacking;  // places within a model
  int64_t models = 0;

  void add(const std::vector<double>& energies, const std::vector<double>& ranks) {
    std::ranges::copy(places_of(energies), std::back_inserter(energy));
    std::ranges::copy(places_of(ranks), std::back_inserter(lacking));
    ++models;
  }
};

struct Proxy {
  std::string words;
  bool stands = false;
  double r = std::nan("");
};

Proxy judged_proxy(const WithinModels& points) {
  const Correlation found = correlation(points.energy, points.lacking);
  const int64_t free = std::ssize(points.energy) - points.models + 1 - 3;  // every model has a mean of its own
  if (!found.is_defined || free < 1) {
    return {fmt::format("undefined: too few layers, or all alike ({})", found.count)};
  }
  constexpr double of_95_percent = 1.959964;
  const double z = std::atanh(std::clamp(found.r, -1 + 1e-15, 1 - 1e-15));
  const double half = of_95_percent / std::sqrt(static_cast<double>(free));
  const double least = std::tanh(z - half), most = std::tanh(z + half);
  return {fmt::format("{:+.2f} ({:+.2f} to {:+.2f}, {} layers)", found.r, least, most, found.count),
          found.r >= least_correlation && least > 0, found.r};
}

double within_model(const std::vector<double>& energies, const std::vector<double>& ranks) {
  WithinModels one;
  one.add(energies, ranks);
  return judged_proxy(one).r;
}

// ---- The energy alone, raised: M = M_s + t M_a of random heads

double effective_rank(const at::Tensor& matrix) {
  const at::Tensor values = at::linalg_svdvals(matrix), shares = values / values.sum();
  return at::exp(-at::special_xlogy(shares, shares).sum()).item<double>();
}

ClaimTable raised_energy(const Trial& trial, Outcome& found) {
  const int64_t n = 128, d = 64, heads = 4, k = 16;
  const int draws = trial.scale == ClaimScale::small ? 20 : 4;
  ClaimTable table{fmt::format("Random heads M = M_s + t M_a; {} tokens, width {}, means over {} draws", n, d, draws),
                   {"t", "energy / that at t = 1", "d - rank", "d - effective rank"},
                   {},
                   "dimensions that attention lacks",
                   {"energy / that at t = 1"}};
  for (const double t : {0.0, 0.5, 1.0, 2.0, 4.0, 8.0}) {
    at::Generator generator = generator_of(trial.seed);  // the same heads for every t
    double rank = 0, smooth = 0;
    for (int draw = 0; draw < draws; ++draw) {
      RandomHeads drawn = random_heads(heads, d, k, generator);
      const at::Tensor m = drawn.scores, turned = m.transpose(1, 2);
      drawn.scores = 0.5 * (m + turned) + 0.5 * t * (m - turned);
      const at::Tensor written = multi_head(drawn, gaussian({n, d}, 1, generator));
      rank += static_cast<double>(rank_of(written, usual_threshold)) / draws;
      smooth += effective_rank(written) / draws;
    }
    table.rows.push_back({t, t * t, static_cast<double>(d) - rank, static_cast<double>(d) - smooth});
  }
  const auto ends = [&](size_t column) {
    return shown(table.rows.front()[column]) + " and " + shown(table.rows.back()[column]);
  };
  found.compared.push_back({"random heads, energy 0 and 64 times: d - rank", "grows", ends(2)});
  found.compared.push_back({"the same: d - effective rank", "grows", ends(3)});
  return table;
}

// ----

// The same function with its energies in reverse: the highest becomes the lowest, and so on.
ProbedModel reversed(const ProbedModel& model, const std::vector<double>& energies) {
  std::vector<double> ordered = energies;
  std::ranges::sort(ordered);
  const std::vector<double> factors = mapped(energies, [&](double energy) {
    const size_t place = static_cast<size_t>(std::ranges::find(ordered, energy) - ordered.begin());
    return std::pow(energy / ordered[ordered.size() - 1 - place], 0.25);
  });
  ProbedModel other = model;
  other.model = rescaled(model.model, factors);
  return other;
}

Outcome directional_energy(const Trial& trial) {
  const bool whole = trial.scale == ClaimScale::small;
  Outcome found;
  found.how =
      "Energy: the mean over heads of ‖Mₐ‖², M = W_Q W_Kᵀ; the paper defines no P_a. Correlations are Spearman's over "
      "layers, ranked within each trained model, with their 95 % interval (Fisher). Rank: of all tokens together, at "
      "threshold 1e-3. Effective rank: exp of the entropy of the singular values, in a sequence. Gains folded: M with "
      "the gain of the norm before it. Reversed: the same function, with a factor between that norm and W_Q, W_K, W_V "
      "in each layer such that the highest energy becomes the lowest, and so on";
  ClaimTable layers{"By layer",
                    {"layer", "energy", "gains folded", "d - rank", "d - effective rank"},
                    {},
                    "dimensions that attention lacks",
                    {"layer", "energy", "gains folded"},
                    "model"};
  ClaimTable models{"Correlation of energy with d - rank and with d - effective rank",
                    {"rank", "effective", "folded: rank", "folded: eff.", "reversed"},
                    {},
                    "Spearman's correlation over layers",
                    {},
                    "model"};
  models.decimals = 3;
  WithinModels stored_rank, stored_smooth, folded_rank, folded_smooth;
  double widest = 1, moved = 0, answers = 0;  // of the energies; of ranks and answers with them
  measure_each(probed_models(trial, whole ? 48 : 16, whole ? 32 : 6), found, [&](const ProbedModel& model) {
    if (!can_be_rescaled(model.model.architecture)) {
      found.compared.push_back({model.name, "positive", "undefined: its layers share a block"});
      return;
    }
    const LayerPoints points = points_of(model);
    for (size_t layer = 0; layer < points.stored.size(); ++layer) {
      layers.names.push_back(model.name);
      layers.rows.push_back({static_cast<double>(layer), points.stored[layer], points.folded[layer],
                             points.missing[layer], points.smooth[layer]});
    }
    const ProbedModel other = reversed(model, points.stored);
    const LayerPoints same = points_of(other);
    for (size_t layer = 0; layer < points.stored.size(); ++layer) {
      widest = std::max(widest, points.stored[layer] / same.stored[layer]);
      moved = std::max({moved, std::abs(points.smooth[layer] - same.smooth[layer]),
                        std::abs(points.missing[layer] - same.missing[layer])});
    }
    answers = std::max(answers, relative_error(answer_of(other), answer_of(model)));
    models.names.push_back(model.name);
    models.rows.push_back({within_model(points.stored, points.missing), within_model(points.stored, points.smooth),
                           within_model(points.folded, points.missing), within_model(points.folded, points.smooth),
                           within_model(same.stored, same.smooth)});
    if (model.trained) {
      stored_rank.add(points.stored, points.missing);
      stored_smooth.add(points.stored, points.smooth);
      folded_rank.add(points.folded, points.missing);
      folded_smooth.add(points.folded, points.smooth);
    }
  });
  const Proxy rank = judged_proxy(stored_rank), smooth = judged_proxy(stored_smooth);
  const Proxy rank_folded = judged_proxy(folded_rank), smooth_folded = judged_proxy(folded_smooth);
  const bool trained = stored_rank.models > 0;
  if (trained) {
    found.compared.insert(found.compared.end(), {{"energy with d - rank", "positive", rank.words},
                                                 {"with d - effective rank", "positive", smooth.words},
                                                 {"gains folded, with d - rank", "positive", rank_folded.words},
                                                 {"with d - effective rank", "positive", smooth_folded.words}});
  }
  found.compared.insert(found.compared.end(), {{"energies reversed, same function: factor", "1", shown(widest)},
                                               {"the same: ranks differ by up to", "0", shown(moved)},
                                               {"the same: answers differ by up to", "0", shown(answers)}});
  found.tables = {models, raised_energy(trial, found), layers};
  const bool free = widest > 1.01 && moved < 1e-6 && answers < 1e-8;
  found.verdict = rank.stands && smooth.stands && !free        ? ClaimVerdict::holds
                  : rank_folded.stands && smooth_folded.stands ? ClaimVerdict::holds_corrected
                                                               : ClaimVerdict::does_not_hold;
  found.because =
      free ? fmt::format(
                 "a factor between a norm and W_Q, W_K, W_V changes the energy of a layer by up to {} times, the "
                 "answers by {:.0e} and the ranks by {}: the energy is no number of the function, nor is an "
                 "order of layers by it",
                 shown(widest), answers, shown(moved))
           : "the energy is a number of the function";
  found.because += trained ? fmt::format(
                                 "; with gains folded, which fixes the factor, the correlation with d - rank is {} "
                                 "in trained models, with d - effective rank {}",
                                 rank_folded.words, smooth_folded.words)
                           : "";
  return found;
}

}  // namespace

std::vector<PaperClaim> claims_of_directional_energy() {
  PaperClaim claim{"directional-energy",
                   Paper::rank_and_symmetry,
                   "Corollary 6.8",
                   "The directional energy of a layer stands for the rank that its attention lacks.",
                   ClaimVerdict::does_not_hold,
                   "3.78 times the energy, the same ranks to 7.11e-15",
                   directional_energy};
  claim.of_activations = true;
  return {claim};
}

}  // namespace pare
