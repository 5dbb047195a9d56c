#include "pare/claims/trained_claims.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/finished_run.h"
#include "pare/claims/judged.h"
#include "pare/claims/plan.h"
#include "pare/claims/probed_models.h"
#include "pare/probes/probe.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t probed_sequences = 8, probed_length = 64;  // tokens, as many as the paper's sentences have

// Of each layer: the stream after it, what its attention wrote, how directional and how aligned its heads are.
Json ranks_of(const Model& model, const Inputs& inputs) {
  Probe probe(model, {.arithmetic = {.dtype = at::kFloat}});
  probe.measure(inputs);
  const ProbeResults results = probe.results();
  std::map<int64_t, double> written = written_ranks(results);
  Json layers = Json::array();
  for (const LayerMeasures& layer : results.layers) {
    Spread asymmetry, alignment;
    for (const HeadMeasures& head : layer.heads) {
      asymmetry.add(head.asymmetry.value_or(std::nan("")));
    }
    for (const HeadPair& pair : layer.pairs) {
      alignment.add(average_of(pair.alignment));
    }
    layers.push_back({{"asymmetry", average_of(asymmetry)}, {"alignment", average_of(alignment)}});
    layers.back()["attention"] = written.contains(layer.layer) ? Json(written[layer.layer]) : Json();
    for (const PointMeasures* point : stream_of(results)) {
      if (point->layer == layer.layer + 1) {
        layers.back()["stream"] = average_of(point->ranks.effective_rank);
        layers.back()["stream_rank"] = average_of(point->ranks.rank);
      }
    }
  }
  return layers;
}

Json look_at_ranks(const std::filesystem::path& run) {
  const Inputs inputs = held_out(run, probed_sequences, probed_length);
  return mapped(checkpoints_of(run), [&](const StoredCheckpoint& stored) {
    return Json{{"step", stored.step}, {"layers", ranks_of(open_model(stored.folder).model, inputs)}};
  });
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
};

LayerChanges changes_of(const std::vector<const TrainedRun*>& runs) {
  LayerChanges found;
  for (const TrainedRun* run : runs) {
    const Json &first = run->seen.front().at("layers"), &last = run->seen.back().at("layers");
    for (size_t layer = 0; layer < std::min(first.size(), last.size()); ++layer) {
      const auto change = [&](const char* key) {
        return rank_number(last[layer], key) - rank_number(first[layer], key);
      };
      if (!std::isfinite(change("asymmetry")) || !std::isfinite(change("attention"))) {
        continue;
      }
      found.asymmetry.push_back(change("asymmetry"));
      found.rank.push_back(change("attention"));
      if (change("asymmetry") > 0) {
        found.directional.push_back(change("attention"));
      }
    }
  }
  return found;
}

// What is shown of a checkpoint, over the steps.
struct RankColumn {
  const char *column, *words, *key;
  double (*number)(const Json&, const char*);
  int digits;
  const char* claimed;  // of the baseline
};
const std::vector<RankColumn> rank_columns = {
    {"stream", "effective rank of the stream", "stream", over_layers, 1, "not said"},
    {"written by attention", "effective rank that attention writes", "attention", over_layers, 1, "falls"},
    {"after the last", "effective rank after the last layer", "stream", last_layer, 1, "open"},
    {"asymmetry", "asymmetry of heads", "asymmetry", over_layers, 3, "rises"},
    {"alignment", "alignment of heads (cos²)", "alignment", over_layers, 3, "rises"}};

// First and last checkpoints of all runs of a variant, and all checkpoints of the first.
void add_variant(const std::string& variant, const std::vector<const TrainedRun*>& runs, ClaimSheet& sheet) {
  ClaimTable table{.title = fmt::format("While it learns: {}, one seed, means over the layers", variant),
                   .columns = {"step"},
                   .measured = "effective rank",
                   .settings = {rank_columns[3].column, rank_columns[4].column}};
  for (const Json& checkpoint : runs.front()->seen) {
    table.rows.push_back({checkpoint.at("step").get<double>()});
  }
  for (const RankColumn& column : rank_columns) {
    Spread first, last;
    for (const TrainedRun* run : runs) {
      first.add(column.number(run->seen.front(), column.key));
      last.add(column.number(run->seen.back(), column.key));
    }
    const bool skips = !variant.ends_with("skip") && !variant.ends_with("skips");
    if (variant == "baseline" || column.number == last_layer) {
      sheet.rows.push_back(
          {{fmt::format("{}: {}", variant, column.words), Found::too_few,
            fmt::format("{:.{}f} -> {:.{}f}", average_of(first), column.digits, average_of(last), column.digits)},
           skips ? column.claimed : "1"});
    }
    table.columns.push_back(column.column);
    for (size_t i = 0; i < table.rows.size(); ++i) {
      table.rows[i].push_back(column.number(runs.front()->seen[i], column.key));
    }
  }
  sheet.tables.push_back(std::move(table));
}

// A number of all variants over the steps.
Figure rank_curves(const std::vector<ClaimTable>& tables, const std::vector<std::string>& variants, size_t column) {
  Figure figure{.title = std::string(rank_columns[column].words),
                .words = "Mean over the layers and the sequences that were probed; one seed.",
                .x = {.words = "step"},
                .y = {.words = rank_columns[column].words}};
  for (size_t i = 0; i < tables.size(); ++i) {
    Series series{.name = variants[i]};
    for (const std::vector<double>& row : tables[i].rows) {
      series.x.push_back(row[0]);
      series.y.push_back(row[column + 1]);
    }
    figure.series.push_back(std::move(series));
  }
  return figure;
}

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
  ClaimSheet sheet;
  std::vector<std::string> shown;
  for (const std::string& variant : rank_variants) {
    if (const std::vector<const TrainedRun*> probed = probed_runs(runs, variant); !probed.empty()) {
      add_variant(variant, probed, sheet);
      shown.push_back(variant);
    }
  }
  const std::vector<const TrainedRun*> baselines = probed_runs(runs, "baseline");
  const LayerChanges changes = changes_of(baselines);
  const auto fell = [](const std::vector<double>& ranks) {
    const int64_t number = std::ranges::count_if(ranks, [](double change) { return change < 0; });
    return fmt::format("{} of {}", number, ranks.size());
  };
  ClaimFinding headline{"change of the rank, more directional heads"};
  if (!changes.rank.empty()) {
    const Estimate change = estimate_of(changes.directional);
    headline = ranked(headline.what, change, ClaimedTrend::falls);
    headline.words = change.interval ? fmt::format("{:+.1f} ± {:.1f}, fell in {} layers of {} runs", change.mean,
                                                   change.half_width(), fell(changes.directional), baselines.size())
                                     : fmt::format("too few: {} layers", change.count);
    if (baselines.size() < 2) {  // its layers learned together
      headline.found = Found::too_few;
    }
    sheet.rows.push_back({{"layers whose rank fell", Found::too_few, fell(changes.rank)}});
    sheet.figures.push_back(
        {.kind = FigureKind::scatter,
         .title = "What training changes in a layer: asymmetry of its heads, effective rank of what they write",
         .words = "A point for each layer of each baseline run, from its first checkpoint to its last.",
         .x = {.words = "change of the mean asymmetry"},
         .y = {.words = "change of the effective rank that attention writes"},
         .series = {{.name = "layers", .x = changes.asymmetry, .y = changes.rank}}});
  }
  sheet.rows.push_back({headline, "falls", ClaimRole::headline});
  sheet.rows.push_back(
      {trend("slope of that change by the asymmetry's", changes.asymmetry, changes.rank, ClaimedTrend::falls), "falls",
       ClaimRole::further});
  for (const size_t column : {0, 1, 3}) {
    sheet.figures.push_back(rank_curves(sheet.tables, shown, column));
  }
  return judged(trial.scale, runs, sheet);
}

}  // namespace

std::vector<PaperClaim> claims_of_trained_ranks() {
  return {
      trained_claim({.id = "rank-dynamics",
                     .paper = Paper::rank_and_symmetry,
                     .place = "Section 12, Corollary 6.6",
                     .says = "As heads become directional in training, the rank of the attention output falls; whether "
                             "that of the residual stream falls is open.",
                     .recorded = ClaimVerdict::does_not_hold,
                     .number = "fell in 0 of 5 layers, and in 0 of all 12",
                     .cost_in_full = "7 models of BERT-base's size, 8 billion bytes each: 35 hours of one H200",
                     .plan = plan_rank_dynamics,
                     .judge = judge_rank_dynamics})};
}

}  // namespace pare
