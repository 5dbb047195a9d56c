#include "pare/claims/trained_claims.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/comparators.h"
#include "pare/claims/finished_run.h"
#include "pare/claims/plan.h"
#include "pare/claims/probed_models.h"
#include "pare/probes/probe.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t probed_sequences = 8, probed_length = 64;  // tokens, as many as the paper's sentences have

double average_of(const Spread& spread) {
  return spread.average().value_or(std::nan(""));
}

// Of each layer: the stream after it, what its attention wrote, how directional and how aligned its heads are.
Json ranks_of(const Model& model, const Inputs& inputs) {
  Probe probe(model, {.arithmetic = {.dtype = at::kFloat}});
  probe.measure(inputs);
  const ProbeResults results = probe.results();
  const std::vector<const PointMeasures*> stream = stream_of(results);
  Json layers = Json::array();
  for (const LayerMeasures& layer : results.layers) {
    Spread asymmetry, alignment;
    for (const HeadMeasures& head : layer.heads) {
      asymmetry.add(head.asymmetry.value_or(std::nan("")));
    }
    for (const HeadPair& pair : layer.pairs) {
      alignment.add(average_of(pair.alignment));
    }
    const auto written = std::find_if(results.points.begin(), results.points.end(), [&](const PointMeasures& point) {
      return point.kind == PointKind::written && point.layer == layer.layer && point.sublayer == Sublayer::attention;
    });
    const auto after = std::find_if(stream.begin(), stream.end(),
                                    [&](const PointMeasures* point) { return point->layer == layer.layer + 1; });
    layers.push_back(
        {{"stream", after == stream.end() ? Json() : Json(average_of((*after)->ranks.effective_rank))},
         {"stream_rank", after == stream.end() ? Json() : Json(average_of((*after)->ranks.rank))},
         {"attention", written == results.points.end() ? Json() : Json(average_of(written->ranks.effective_rank))},
         {"asymmetry", average_of(asymmetry)},
         {"alignment", average_of(alignment)}});
  }
  return layers;
}

Json look_at_ranks(const std::filesystem::path& run) {
  const Inputs inputs = held_out(run, probed_sequences, probed_length);
  Json found = Json::array();
  for (const StoredCheckpoint& stored : checkpoints_of(run)) {
    found.push_back({{"step", stored.step}, {"layers", ranks_of(open_model(stored.folder).model, inputs)}});
  }
  return found;
}

const std::vector<std::string> rank_variants = {"baseline", "no-mlp", "no-attention-skip", "no-skips"};

double rank_number(const Json& layer, const char* key) {
  return layer.contains(key) && layer[key].is_number() ? layer[key].get<double>() : std::nan("");
}

// The mean over the layers of one checkpoint.
double over_layers(const Json& checkpoint, const char* key) {
  Spread all;
  for (const Json& layer : checkpoint.at("layers")) {
    all.add(rank_number(layer, key));
  }
  return average_of(all);
}

double last_layer(const Json& checkpoint, const char* key) {
  return checkpoint.at("layers").empty() ? std::nan("") : rank_number(checkpoint.at("layers").back(), key);
}

std::vector<const TrainedRun*> probed_runs(const TrainedRuns& runs, const std::string& variant) {
  std::vector<const TrainedRun*> found = runs.ended(variant);
  std::erase_if(found, [](const TrainedRun* run) { return !run->seen.is_array() || run->seen.size() < 2; });
  return found;
}

// From the first checkpoint to the last, a pair for each layer of each run.
struct LayerChanges {
  std::vector<double> asymmetry, rank;
  std::vector<double> directional;  // the change of the rank where the asymmetry rose
  size_t runs = 0;
};

LayerChanges changes_of(const TrainedRuns& runs, const std::string& variant) {
  LayerChanges found;
  for (const TrainedRun* run : probed_runs(runs, variant)) {
    const Json &first = run->seen.front().at("layers"), &last = run->seen.back().at("layers");
    for (size_t layer = 0; layer < std::min(first.size(), last.size()); ++layer) {
      const double asymmetry = rank_number(last[layer], "asymmetry") - rank_number(first[layer], "asymmetry");
      const double rank = rank_number(last[layer], "attention") - rank_number(first[layer], "attention");
      if (!std::isfinite(asymmetry) || !std::isfinite(rank)) {
        continue;
      }
      found.asymmetry.push_back(asymmetry);
      found.rank.push_back(rank);
      if (asymmetry > 0) {
        found.directional.push_back(rank);
      }
    }
    ++found.runs;
  }
  return found;
}

// Mean over the runs of a variant, of a number at their first or last checkpoint.
double mean_over_runs(const std::vector<const TrainedRun*>& runs, bool last, double (*number)(const Json&, const char*),
                      const char* key) {
  Spread all;
  for (const TrainedRun* run : runs) {
    all.add(number(last ? run->seen.back() : run->seen.front(), key));
  }
  return average_of(all);
}

Figure rank_curves(const TrainedRuns& runs, const std::string& title, const std::string& words, const char* key) {
  Figure figure{.kind = FigureKind::lines,
                .title = title,
                .words = "Mean over the layers and the sequences that were probed; one seed.",
                .x = {.words = "step"},
                .y = {.words = words}};
  for (const std::string& variant : rank_variants) {
    const std::vector<const TrainedRun*> probed = probed_runs(runs, variant);
    if (probed.empty()) {
      continue;
    }
    Series series{.name = variant};
    for (const Json& checkpoint : probed.front()->seen) {
      series.x.push_back(checkpoint.at("step").get<double>());
      series.y.push_back(over_layers(checkpoint, key));
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

ClaimTable table_of_checkpoints(const TrainedRun& run, const std::string& variant) {
  ClaimTable table{.title = fmt::format("While it learns: {}, one seed, means over the layers", variant),
                   .columns = {"step", "stream", "written by attention", "after the last", "asymmetry", "alignment"},
                   .measured = "effective rank",
                   .settings = {"asymmetry", "alignment"}};
  for (const Json& checkpoint : run.seen) {
    table.rows.push_back({checkpoint.at("step").get<double>(), over_layers(checkpoint, "stream"),
                          over_layers(checkpoint, "attention"), last_layer(checkpoint, "stream"),
                          over_layers(checkpoint, "asymmetry"), over_layers(checkpoint, "alignment")});
  }
  return table;
}

}  // namespace

std::vector<PlannedRun> plan_rank_dynamics(const Trial& trial) {
  const bool smoke = trial.scale == ClaimScale::smoke;
  const std::string block = "architecture.blocks.*.";
  nlohmann::json base = short_run(trial);
  base["checkpoint"] = {{"every", smoke ? 10 : 100}, {"keep", 0}};
  if (trial.scale == ClaimScale::full) {
    base = changed(base, {{"architecture.width", 768},
                          {block + "repeat", 12},
                          {block + "attention.heads", 12},
                          {block + "mlp.width", 3072},
                          {"steps", 60'000},
                          {"checkpoint.every", 5'000}});
  }
  const std::pair<std::string, nlohmann::json> no_attention_skip = {block + "attention.skip", false};
  PlanTable table{
      .forms = {form_of("baseline", "", {}), form_of("no-mlp", "", {{block + "mlp", nullptr}}),
                form_of("no-attention-skip", "", {no_attention_skip}),
                form_of("no-skips", "", {no_attention_skip, {block + "mlp.skip", false}})},
      .conditions = {{.ending = "", .config = base, .rates = {base.at("optimiser").at("lr").get<double>()}}},
      .lines = {{.forms = {"baseline", "no-skips"}}}};
  for (PlanForm& form : table.forms) {
    form.look = look_at_ranks;
    form.look_at_all = true;
  }
  if (!smoke) {
    table.lines.insert(table.lines.end(), {{.forms = {"baseline"}, .seeds = {1}},
                                           {.forms = {"no-mlp", "no-attention-skip"}},
                                           {.forms = {"baseline"}, .seeds = {2}},
                                           {.forms = {"no-skips"}, .seeds = {1}}});
  }
  return planned_runs(table);
}

Outcome judge_rank_dynamics(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  for (const std::string& variant : rank_variants) {
    const std::vector<const TrainedRun*> probed = probed_runs(runs, variant);
    if (probed.empty()) {
      continue;
    }
    const auto change = [&](double (*number)(const Json&, const char*), const char* key, int digits) {
      return fmt::format("{:.{}f} -> {:.{}f}", mean_over_runs(probed, false, number, key), digits,
                         mean_over_runs(probed, true, number, key), digits);
    };
    const bool skips = variant == "baseline" || variant == "no-mlp";
    found.compared.push_back(
        {variant + ": effective rank, last layer", skips ? "kept, or open" : "1", change(last_layer, "stream", 1)});
    if (variant == "baseline") {
      found.compared.push_back({"effective rank that attention writes", "falls", change(over_layers, "attention", 1)});
      found.compared.push_back({"asymmetry of heads", "rises", change(over_layers, "asymmetry", 3)});
      found.compared.push_back({"alignment of heads (cos²)", "rises", change(over_layers, "alignment", 3)});
    }
    found.tables.push_back(table_of_checkpoints(*probed.front(), variant));
  }
  const LayerChanges changes = changes_of(runs, "baseline");
  const auto fell = [](const std::vector<double>& ranks) {
    return std::count_if(ranks.begin(), ranks.end(), [](double change) { return change < 0; });
  };
  ClaimFindings findings{{"change of the rank in layers whose heads became more directional"}};
  if (!changes.rank.empty()) {
    ClaimFinding& headline = findings.headline;
    const Estimate change = estimate_of(changes.directional);
    headline = ranked(headline.what, change, ClaimedTrend::falls);
    headline.words = change.interval
                         ? fmt::format("{:+.1f} ± {:.1f}, fell in {} of {} layers of {} runs", change.mean,
                                       change.half_width(), fell(changes.directional), change.count, changes.runs)
                         : fmt::format("too few: {} layers", change.count);
    if (changes.runs < 2) {  // its layers learned together
      headline.found = Found::too_few;
    }
    findings.further = {
        trend("its slope by the change of the asymmetry", changes.asymmetry, changes.rank, ClaimedTrend::falls)};
    found.compared.push_back({"layers whose asymmetry rose: rank fell", "all",
                              fmt::format("{} of {}", fell(changes.directional), changes.directional.size())});
    found.compared.push_back(
        {"all layers: rank fell", "not said", fmt::format("{} of {}", fell(changes.rank), changes.rank.size())});
    found.compared.push_back({"slope of rank by asymmetry, changes", "falls", findings.further[0].words});
    found.figures.push_back(
        {.kind = FigureKind::scatter,
         .title = "What training changes in a layer: asymmetry of its heads, effective rank of what they write",
         .words = "A point for each layer of each run with skips, from its first checkpoint to its last.",
         .x = {.words = "change of the mean asymmetry"},
         .y = {.words = "change of the effective rank that attention writes"},
         .series = {{.name = "layers", .x = changes.asymmetry, .y = changes.rank}}});
  }
  if (found.compared.empty()) {
    found.compared.push_back({"runs with checkpoints that were probed", "some", "0"});
  } else {
    found.figures.push_back(rank_curves(runs, "Effective rank of the stream", "effective rank", "stream"));
    found.figures.push_back(rank_curves(runs, "Effective rank that attention writes", "effective rank", "attention"));
    found.figures.push_back(rank_curves(runs, "Asymmetry of the heads", "‖Mₐ‖/‖M‖", "asymmetry"));
  }
  decide(trial.scale, findings, found);
  return found;
}

std::vector<PaperClaim> claims_of_trained_ranks() {
  return {trained_claim({.id = "rank-dynamics",
                         .paper = Paper::rank_and_symmetry,
                         .place = "Section 12, Corollary 6.6",
                         .says = "As heads become directional in training, the rank of what attention writes falls; "
                                 "whether the stream's does is open.",
                         .recorded = ClaimVerdict::does_not_hold,
                         .cost_in_full = "7 models of BERT-base's size, 8 G bytes each: 35 hours of one H200"},
                        plan_rank_dynamics, judge_rank_dynamics)};
}

}  // namespace pare
