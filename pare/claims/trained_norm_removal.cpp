// Norms taken out of a trained model, after which paper 0's theorems apply to it: what that costs in loss, in tokens
// and against as many parameters taken out of the MLP, and what then goes exactly.

#include "pare/claims/trained_norm_removal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "pare/arch/architecture_json.h"
#include "pare/arch/presets.h"
#include "pare/claims/exact_rewrite.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

using nlohmann::json;
using NormChanges = std::vector<std::pair<std::string, json>>;

constexpr const char* stories_ending = "-stories260K";

// ---- The plan

// Sizes of a scale. Steps that follow a baseline: few, as many as the headline has, and many.
struct NormSizes {
  int64_t baseline = 0, longer_baseline = 0, few = 0, usual = 0, many = 0;
  std::vector<int64_t> seeds, widths;
};

NormSizes sizes_of_norm_removal(ClaimScale scale) {
  switch (scale) {
    case ClaimScale::smoke:
      return {.baseline = 20, .longer_baseline = 30, .few = 5, .usual = 10, .many = 15, .seeds = {0, 1}, .widths = {}};
    case ClaimScale::small:
      return {.baseline = 250,
              .longer_baseline = 1600,
              .few = 200,
              .usual = 1000,
              .many = 3000,
              .seeds = {0, 1, 2},
              .widths = {256, 512, 768}};
    case ClaimScale::full:
      return {.baseline = 60'000,
              .longer_baseline = 120'000,
              .few = 1200,
              .usual = 6000,
              .many = 18'000,
              .seeds = {0},
              .widths = {}};
  }
  PARE_UNREACHABLE("a scale");
}

// What a run of the second stage becomes, in the words of `morph.to`; nothing: it is trained on as it is.
const json no_norms = {{"norms", "none"}};
const json no_norms_no_skips = {{"norms", "none"}, {"mlp", {{"skip", false}}}};

// Names of models that others start from are those of their folders in the plan, and part of the variants' own.
class NormPlan {
 public:
  explicit NormPlan(const Trial& trial)
      : scale_(trial.scale), sizes_(sizes_of_norm_removal(trial.scale)), model_(usual_run(trial)) {
    if (scale_ == ClaimScale::full) {  // as paper 0 trained: 490k tokens a step of OpenWebText
      model_ = changed(model_, {{"architecture", architecture_to_json(find_preset("gpt2").value())},
                                {"data", {{"shards", "openwebtext"}}},
                                {"batch", 24},
                                {"accumulate", 20},
                                {"optimiser.lr", 6e-4},
                                {"optimiser.min_lr", 6e-5},
                                {"optimiser.warmup", 2000}});
    }
  }

  std::vector<PlannedRun> runs() {
    headline(0);
    further_changes();
    skips_after_norms();
    for (const int64_t seed : sizes_.seeds) {
      if (seed != 0) {
        headline(seed);
      }
    }
    if (scale_ == ClaimScale::small) {
      stories();
      for (const int64_t seed : sizes_.seeds) {
        if (seed != 0) {
          pair("-few", model_, sizes_.few, "baseline", seed);
        }
      }
      sizes();
      longer();
      faster();
    }
    return std::move(runs_);
  }

 private:
  static std::string name_of(const std::string& variant, const json& config) {
    return PlannedRun{variant, config}.name();
  }

  void add(const std::string& variant, const json& config, const std::string& from = {}, bool eliminated = false,
           const std::string& teacher = {}, const std::string& passes = {}) {
    PlannedRun run{.variant = variant, .config = config, .from = from, .teacher = teacher, .passes = passes};
    if (eliminated) {
      run.look = [](const std::filesystem::path& folder) { return rewritten_exactly(folder, "eliminate_projection"); };
    }
    runs_.push_back(std::move(run));
  }

  // Of that many steps; what comes after three fifths of them is there to recover.
  static json further(const json& model, int64_t steps, int64_t seed, const json& to = {}, int64_t order = 1) {
    json config = changed(model, {{"steps", steps},
                                  {"seed", seed},
                                  {"data.seed", order},  // the same batches for all, and none as the baseline had them
                                  {"optimiser.warmup", std::max<int64_t>(1, steps / 20)},
                                  {"evaluate.every", std::max<int64_t>(steps / 5, 1)}});
    return to.is_null() ? config : changed(config, {{"morph.to", to}, {"morph.steps", steps * 3 / 5}});
  }

  std::string baseline(const std::string& variant, const json& model, int64_t steps, int64_t seed) {
    const json config = changed(model, {{"steps", steps},
                                        {"seed", seed},
                                        {"optimiser.warmup", std::min<int64_t>(100, steps / 5)},
                                        {"evaluate.every", steps}});
    add(variant, config);
    return name_of(variant, config);
  }

  // Trained on as it is, and with all norms gone.
  void pair(const std::string& ending, const json& model, int64_t steps, const std::string& from_variant, int64_t seed,
            bool eliminated = false) {
    const std::string from = name_of(from_variant, changed(model_, {{"seed", seed}}));
    add("control" + ending, further(model, steps, seed), from);
    add("norms" + ending, further(model, steps, seed, no_norms), from, eliminated);
  }

  json narrow() const {  // as many parameters as one projection of every layer has
    const int64_t width = model_.at("architecture").at("width").get<int64_t>();
    return {{"mlp", {{"width", width * 7 / 2}}}};
  }

  void headline(int64_t seed) {
    const std::string from = baseline("baseline", model_, sizes_.baseline, seed);
    pair("", model_, sizes_.usual, "baseline", seed, seed == 0);
    add("norms-and-skips", further(model_, sizes_.usual, seed, no_norms_no_skips), from, seed == 0);
    add("smaller-mlp", further(model_, sizes_.usual, seed, narrow()), from);
  }

  void further_changes() {
    const std::string from = name_of("baseline", model_);
    add("norms-teacher", further(model_, sizes_.usual, 0, no_norms), from, false, from);
    pair("-few", model_, sizes_.few, "baseline", 0);
    for (const char* projection : {"query", "key", "value"}) {
      const json to = {{"attention", {{projection, "identity"}}}};
      add(fmt::format("no-{}", projection), further(model_, sizes_.usual, 0, to), from);
    }
  }

  // From the model without norms: on as it is; the skips fade; or they become neurons, exactly, and these fade.
  void skips_after_norms() {
    const std::string from = name_of("norms", model_);
    json bare = changed(model_, {{"architecture.final_norm", nullptr},
                                 {"architecture.blocks.*.attention.norm", nullptr},
                                 {"architecture.blocks.*.mlp.norm", nullptr}});
    add("after-norms-control", further(bare, sizes_.usual, 0, {}, 2), from);
    add("after-norms-skips", further(bare, sizes_.usual, 0, {{"mlp", {{"skip", false}}}}, 2), from);
    const int64_t width = bare.at("architecture").at("width").get<int64_t>();
    const json wide =
        changed(bare, {{"architecture.blocks.*.mlp.skip", false}, {"architecture.blocks.*.mlp.width", 6 * width}});
    add("after-norms-widened", further(wide, sizes_.usual, 0, {{"mlp", {{"width", 4 * width}}}}, 2), from, true, {},
        "absorb_skip{widen=true}");
  }

  void sizes() {
    for (const int64_t seed : {0, 1}) {
      for (const int64_t width : sizes_.widths) {
        at_size(fmt::format("-width-{}", width), seed,
                {{"architecture.width", width},
                 {"architecture.blocks.*.attention.heads", width / 64},
                 {"architecture.blocks.*.mlp.width", 4 * width}});
      }
      at_size("-layers-12", seed, {{"architecture.blocks.0.repeat", 12}});
    }
  }

  void at_size(const std::string& ending, int64_t seed, const NormChanges& changes) {
    const json model = changed(model_, changes);
    baseline("baseline" + ending, model, sizes_.baseline, seed);
    pair(ending, model, sizes_.usual, "baseline" + ending, seed);
  }

  void longer() {
    const std::string from = name_of("baseline", model_);
    pair("-many", model_, sizes_.many, "baseline", 0);
    add("norms-and-skips-many", further(model_, sizes_.many, 0, no_norms_no_skips), from, true);
    add("smaller-mlp-many", further(model_, sizes_.many, 0, narrow()), from);
    for (const int64_t seed : {0, 1}) {
      baseline("baseline-longer", model_, sizes_.longer_baseline, seed);
      pair("-longer", model_, sizes_.usual, "baseline-longer", seed);
    }
  }

  // Whether another learning rate would decide otherwise.
  void faster() {
    for (const int64_t seed : {0, 1}) {
      const std::string from = name_of("baseline", changed(model_, {{"seed", seed}}));
      const json quick = changed(model_, {{"optimiser.lr", 2e-3}});
      add("control", further(quick, sizes_.usual, seed), from);
      add("norms", further(quick, sizes_.usual, seed, no_norms), from);
    }
  }

  // A model that others trained, small enough for a CPU. Its weights are given, so seeds are those of the order.
  void stories() {
    const json model = {{"from", "stories260K"},
                        {"data", {{"train", {"tinystories-sample.txt"}}, {"tokenizer", "stories260K"}}},
                        {"context", 96},
                        {"batch", 8},
                        {"optimiser", {{"lr", 5e-4}, {"min_lr", 1e-4}}},
                        {"checkpoint", {{"every", 100'000}, {"keep", 1}}}};
    constexpr int64_t steps = 1600;
    for (const int64_t seed : sizes_.seeds) {
      add(std::string("control") + stories_ending, further(model, steps, seed, {}, seed));
      // Trained to its end and with gated MLPs, it needs tokens of one size more than a model that still learns.
      add(std::string("norms") + stories_ending,
          changed(further(model, steps, seed, no_norms, seed), {{"morph.evenness", 1.0}}));
    }
  }

  ClaimScale scale_;
  NormSizes sizes_;
  json model_;
  std::vector<PlannedRun> runs_;
};

// ---- The judge

enum class NormCost { none, some, unknown };

// The same model, trained on as it is and with its norms gone.
struct NormSetting {
  std::string words, ending;  // of the variants' names
};

std::vector<NormSetting> norm_settings(ClaimScale scale) {
  const NormSizes sizes = sizes_of_norm_removal(scale);
  std::vector<NormSetting> found = {{with_commas(sizes.usual) + " steps", ""},
                                    {with_commas(sizes.few) + " steps", "-few"},
                                    {with_commas(sizes.many) + " steps", "-many"},
                                    {fmt::format("after {} steps", with_commas(sizes.longer_baseline)), "-longer"},
                                    {"12 layers", "-layers-12"},
                                    {"stories260K", stories_ending}};
  for (const int64_t width : sizes.widths) {
    found.push_back({fmt::format("width {}", width), fmt::format("-width-{}", width)});
  }
  return found;
}

struct NormPair {
  NormSetting setting;
  Settled control, without;
  NormCost cost = NormCost::unknown;
  double difference() const { return without.loss - control.loss; }
};

// Each at its best rate among those that both were trained at.
std::optional<std::pair<Settled, Settled>> at_common_rates(const TrainedRuns& runs, const std::string& control,
                                                           const std::string& without) {
  std::optional<Settled> first, second;
  for (const Settled& a : runs.at_rates(control)) {
    for (const Settled& b : runs.at_rates(without)) {
      if (a.rate != b.rate) {
        continue;
      }
      first = first && first->loss <= a.loss ? first : a;
      second = second && second->loss <= b.loss ? second : b;
    }
  }
  return first ? std::optional(std::pair(*first, *second)) : std::nullopt;
}

// The largest deviation over seeds of any variant on the same text, for settings that have one seed.
std::optional<double> usual_spread(const std::vector<NormSetting>& settings, const TrainedRuns& runs) {
  std::optional<double> largest;
  for (const NormSetting& setting : settings) {
    for (const char* variant : {"control", "norms"}) {
      for (const Settled& settled : runs.at_rates(variant + setting.ending)) {
        if (settled.spread && setting.ending != stories_ending) {
          largest = std::max(largest.value_or(0), *settled.spread);
        }
      }
    }
  }
  return largest;
}

// With seeds, what they differ by decides. With one seed the spread of other settings does: within it they are equal,
// beyond three times it they are not.
NormCost cost_of(const Settled& control, const Settled& without, const std::optional<double>& usual) {
  const double more = without.loss - control.loss;
  if (const std::optional<double> spread = spread_of_difference(control, without)) {
    return more <= *spread ? NormCost::none : NormCost::some;
  }
  if (!usual) {
    return NormCost::unknown;
  }
  const double spread = std::sqrt(2.0) * *usual;
  return more <= spread ? NormCost::none : more > 3 * spread ? NormCost::some : NormCost::unknown;
}

std::vector<NormPair> pairs_of(ClaimScale scale, const TrainedRuns& runs) {
  const std::vector<NormSetting> settings = norm_settings(scale);
  const std::optional<double> usual = usual_spread(settings, runs);
  std::vector<NormPair> found;
  for (const NormSetting& setting : settings) {
    if (const auto both = at_common_rates(runs, "control" + setting.ending, "norms" + setting.ending)) {
      found.push_back({setting, both->first, both->second, cost_of(both->first, both->second, usual)});
    }
  }
  return found;
}

std::string numbers_of(const NormPair& pair) {
  return fmt::format("{:.4f} against {:.4f}", pair.without.loss, pair.control.loss);
}

std::string difference_of(const NormPair& pair) {
  const std::optional<double> spread = spread_of_difference(pair.without, pair.control);
  return fmt::format("{:+.4f}{}", pair.difference(), spread ? fmt::format(" ± {:.4f}", *spread) : ", one seed");
}

std::string named(const std::vector<NormPair>& pairs, NormCost cost) {
  std::vector<std::string> words;
  for (const NormPair& pair : pairs) {
    if (pair.cost == cost) {
      words.push_back(fmt::format("{} ({})", pair.setting.words, numbers_of(pair)));
    }
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

void decide(const std::vector<NormPair>& pairs, Outcome& found) {
  const auto any = [&](NormCost cost) {
    return std::any_of(pairs.begin(), pairs.end(), [cost](const NormPair& pair) { return pair.cost == cost; });
  };
  if (pairs.empty() || !pairs.front().setting.ending.empty()) {
    found.because = "the model was not trained both with and without its norms yet";
    return;
  }
  const NormPair& first = pairs.front();
  if (first.cost == NormCost::unknown) {
    found.because = fmt::format("one seed of each, {}: what seeds differ by is not known yet", numbers_of(first));
    return;
  }
  if (!any(NormCost::some)) {
    found.verdict = ClaimVerdict::holds;
    found.because = "without norms the loss is the same or less: " + named(pairs, NormCost::none);
    return;
  }
  if (!any(NormCost::none)) {
    found.verdict = ClaimVerdict::does_not_hold;
    found.because = "without norms the loss is higher: " + named(pairs, NormCost::some);
    return;
  }
  found.verdict = ClaimVerdict::holds_corrected;
  found.because = fmt::format("norms go at no cost in {}, and at some in {}", named(pairs, NormCost::none),
                              named(pairs, NormCost::some));
}

std::string in_words(const nlohmann::ordered_json& eliminated) {
  if (eliminated.contains("refused")) {
    return "refused";
  }
  const int64_t before = eliminated.at("before").get<int64_t>(), after = eliminated.at("after").get<int64_t>();
  return fmt::format("{} fewer, {:.2f} %: {}", with_commas(before - after),
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before),
                     eliminated.at("verdict").get<std::string>());
}

ClaimTable table_of_settings(const std::vector<NormPair>& pairs) {
  ClaimTable table{.title = "What norms cost to remove, in nats a token, by setting",
                   .columns = {"trained on", "±", "norms gone", "±", "difference", "seeds"},
                   .measured = "validation loss, nats a token",
                   .settings = {"difference", "seeds"},
                   .rows_are = "setting",
                   .decimals = 4};
  for (const NormPair& pair : pairs) {
    table.names.push_back(pair.setting.words);
    table.rows.push_back({pair.control.loss, pair.control.spread.value_or(std::nan("")), pair.without.loss,
                          pair.without.spread.value_or(std::nan("")), pair.difference(),
                          static_cast<double>(std::min(pair.control.runs.size(), pair.without.runs.size()))});
  }
  return table;
}

// A point for each variant: what it lost in parameters, what the run's end can still lose exactly included.
Figure loss_by_parameters(const TrainedRuns& runs, const std::vector<std::string>& variants) {
  Figure figure{.kind = FigureKind::scatter, .title = "Loss against parameters removed"};
  figure.words =
      "Of all variants after as many steps on the same batches. Parameters that go exactly once the norms are "
      "gone count as removed.";
  figure.x = {.words = "parameters removed"};
  figure.y = {.words = "validation loss", .unit = "nats a token"};
  const std::optional<Settled> control = runs.best("control");
  for (const std::string& variant : variants) {
    const std::optional<Settled> best = runs.best(variant);
    if (!control || !best) {
      continue;
    }
    int64_t parameters = best->parameters;
    for (const TrainedRun* run : best->runs) {
      if (run->seen.is_object() && run->seen.contains("after")) {
        parameters = run->seen.at("after").get<int64_t>();
      }
    }
    figure.series.push_back({.name = variant,
                             .x = {static_cast<double>(control->parameters - parameters)},
                             .y = {best->loss},
                             .labels = {variant}});
  }
  return figure;
}

}  // namespace

std::vector<PlannedRun> plan_of_norm_removal(const Trial& trial) {
  return NormPlan(trial).runs();
}

Outcome judge_norm_removal(const Trial& trial, const TrainedRuns& runs) {
  Outcome found;
  const std::vector<NormPair> pairs = pairs_of(trial.scale, runs);
  if (trial.scale == ClaimScale::smoke) {
    found.because = fmt::format("at this scale nothing can be said of what norms cost{}",
                                pairs.empty() ? "" : ": " + numbers_of(pairs.front()));
  } else {
    decide(pairs, found);
  }
  for (const NormPair& pair : pairs) {
    found.compared.push_back({fmt::format("norms gone, {}", pair.setting.words), "no loss", difference_of(pair)});
  }
  for (const TrainedRun& run : runs.all()) {
    if (run.seen.is_object()) {
      found.compared.push_back({run.variant + ": more goes exactly", "yes", in_words(run.seen)});
    }
    if (!run.stopped.empty()) {
      found.compared.push_back({fmt::format("{}, seed {}", run.variant, run.seed), "trains", "stopped"});
    }
  }
  const std::vector<std::string> headline = {"control", "norms",    "norms-teacher",   "no-query",
                                             "no-key",  "no-value", "norms-and-skips", "smaller-mlp"};
  const std::vector<std::string> after = {"after-norms-control", "after-norms-skips", "after-norms-widened"};
  found.tables = {table_of_settings(pairs), table_of_variants("From one baseline, on the same batches", runs, headline),
                  table_of_variants("From the model without norms: its MLP skips go too", runs, after),
                  table_of_variants("The same with three times the steps", runs,
                                    {"control-many", "norms-many", "norms-and-skips-many", "smaller-mlp-many"})};
  std::erase_if(found.tables, [](const ClaimTable& table) { return table.rows.empty(); });
  found.figures = {curves_of_variants("Loss while norms go", runs, headline), loss_by_parameters(runs, headline)};
  std::erase_if(found.figures, [](const Figure& figure) { return figure.series.empty(); });
  if (found.compared.empty()) {
    found.compared.push_back({"norms gone", "no loss", "not trained"});
  }
  return found;
}

std::vector<PaperClaim> claims_of_norm_removal() {
  return {trained_claim(
      {.id = "norm-removal",
       .paper = Paper::query_elimination,
       .place = "Remark 2",
       .says = "Norms can be taken out of a trained model at no cost, and then a projection of it goes exactly.",
       .cost_in_full = "28 hours on one H200: GPT-2 124M on 29.5B tokens of OpenWebText (18.5 h at 442k tokens/s), and "
                       "five times 2.9B tokens from there"},
      plan_of_norm_removal, judge_norm_removal)};
}

}  // namespace pare
