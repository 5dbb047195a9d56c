#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "pare/claims/trained.h"
#include "pare/probes/spread.h"
#include "pare/support/error.h"
#include "pare/support/text.h"

namespace pare {

namespace {

// Of each variant at its best rate the validation loss over the steps, above that of the reference where there is one.
// Who saw other data than it has no such curve.
Figure figure_of_variants(const std::string& title, const TrainedRuns& runs, const std::vector<std::string>& variants,
                          const TrainedRun* reference) {
  Figure figure{.kind = FigureKind::lines, .title = title};
  figure.words = "Each variant at its best learning rate; one seed.";
  figure.x = {.words = "step"};
  figure.y = {.words = "validation loss", .unit = "nats a token"};
  for (const std::string& variant : variants) {
    const std::optional<Settled> best = runs.best(variant);
    if (!best || (reference != nullptr && best->runs.front()->data != reference->data)) {
      continue;
    }
    Series& series = figure.series.emplace_back(Series{.name = variant});
    for (const auto& [step, loss] : best->runs.front()->validation) {
      const bool known = reference == nullptr || reference->validation.contains(step);
      if (step > 0 && known) {  // what is drawn before the first step says nothing, and hides the rest
        series.x.push_back(static_cast<double>(step));
        series.y.push_back(loss - (reference != nullptr ? reference->validation.at(step) : 0));
      }
    }
  }
  return figure;
}

}  // namespace

const TrainedRun* TrainedRuns::find(const std::string& name) const {
  const auto found = std::find_if(runs_.begin(), runs_.end(), [&](const TrainedRun& run) { return run.name == name; });
  return found == runs_.end() ? nullptr : &*found;
}

namespace {

// Runs in bfloat16 on one H200, each trained twice with the same seed, where no order of sums is kept: six of 1,600
// steps of 131k tokens, five of 1,000 steps of 33k. Who has learnt less is still on the way to where all come.
double known_spread_of_repeated(const TrainedRun& run) {
  return run.device != "cuda" ? 0 : run.steps >= 1600 ? 0.0014 : 0.0035;
}

}  // namespace

std::vector<Settled> TrainedRuns::at_rates(const std::string& variant) const {
  std::map<double, std::vector<const TrainedRun*>> by_rate;
  for (const TrainedRun* run : ended(variant)) {
    by_rate[run->rate].push_back(run);
  }
  std::vector<Settled> found;
  for (const auto& [rate, runs] : by_rate) {
    Spread losses, accuracies;
    for (const TrainedRun* run : runs) {
      losses.add(run->loss);
      accuracies.add(run->accuracy);
    }
    found.push_back({.variant = variant,
                     .rate = rate,
                     .runs = runs,
                     .parameters = runs.front()->parameters,
                     .loss = losses.mean,
                     .accuracy = accuracies.mean,
                     .spread = losses.deviation(),
                     .accuracy_spread = accuracies.deviation(),
                     .spread_of_repeated = std::max(spread_of_repeated(runs.front()->device).first,
                                                    known_spread_of_repeated(*runs.front()))});
  }
  return found;
}

std::pair<double, int64_t> TrainedRuns::spread_of_repeated(const std::string& device) const {
  double squares = 0;
  int64_t pairs = 0;
  for (const TrainedRun& run : runs_) {
    for (const TrainedRun::Again& again : run.device == device ? run.repeated : std::vector<TrainedRun::Again>()) {
      squares += (again.loss - run.loss) * (again.loss - run.loss);
      ++pairs;
    }
  }
  return {pairs > 0 ? std::sqrt(squares / static_cast<double>(2 * pairs)) : 0, pairs};
}

std::optional<Settled> TrainedRuns::at_rate(const std::string& variant, double rate) const {
  const std::vector<Settled> all = at_rates(variant);
  const auto there = std::find_if(all.begin(), all.end(), [rate](const Settled& one) { return one.rate == rate; });
  return there == all.end() ? std::nullopt : std::optional(*there);
}

std::optional<Settled> TrainedRuns::best(const std::string& variant) const {
  const std::vector<Settled> all = at_rates(variant);
  const auto least =
      std::min_element(all.begin(), all.end(), [](const Settled& a, const Settled& b) { return a.loss < b.loss; });
  return least == all.end() ? std::nullopt : std::optional(*least);
}

namespace {

std::vector<const TrainedRun*> runs_of(const std::vector<TrainedRun>& runs, const std::string& variant, bool ended) {
  std::vector<const TrainedRun*> found;
  for (const TrainedRun& run : runs) {
    if (run.variant == variant && run.stopped.empty() == ended) {
      found.push_back(&run);
    }
  }
  return found;
}

}  // namespace

std::vector<const TrainedRun*> TrainedRuns::ended(const std::string& variant) const {
  return runs_of(runs_, variant, true);
}

std::vector<const TrainedRun*> TrainedRuns::stopped(const std::string& variant) const {
  return runs_of(runs_, variant, false);
}

double least_loss(const TrainedRun& run) {
  double least = run.loss;
  for (const auto& [step, loss] : run.validation) {
    least = std::min(least, loss);
  }
  return least;
}

bool diverged(const TrainedRun& run) {
  return !run.classifies && run.loss > 2 * least_loss(run);
}

TrainedRuns::TrainedRuns(std::vector<TrainedRun> runs, std::vector<std::string> missing, bool interrupted)
    : runs_(std::move(runs)), missing_(std::move(missing)), interrupted_(interrupted) {
  for (TrainedRun& run : runs_) {
    if (run.stopped.empty() && diverged(run)) {
      run.stopped = "it diverged";
    }
  }
}

Settled of_shared_seeds(const Settled& a, const Settled& b) {
  Settled shared = a;
  std::erase_if(shared.runs, [&b](const TrainedRun* run) {
    return std::none_of(b.runs.begin(), b.runs.end(),
                        [run](const TrainedRun* other) { return run->seed == other->seed; });
  });
  if (shared.runs.empty()) {
    return a;
  }
  Spread losses;
  for (const TrainedRun* run : shared.runs) {
    losses.add(run->loss);
  }
  shared.loss = losses.mean;
  return shared;
}

double difference_of(const Settled& a, const Settled& reference) {
  return of_shared_seeds(a, reference).loss - of_shared_seeds(reference, a).loss;
}

std::optional<double> spread_of_difference(const Settled& a, const Settled& b) {
  if (!a.spread && !b.spread) {
    return std::nullopt;
  }
  return std::hypot(std::max(a.spread ? *a.spread : *b.spread, a.spread_of_repeated),
                    std::max(b.spread ? *b.spread : *a.spread, b.spread_of_repeated));
}

bool have_several_seeds(const Settled& a, const Settled& b) {
  return std::min(a.runs.size(), b.runs.size()) > 1;
}

std::optional<bool> equal_within_spread(const Settled& a, const Settled& b) {
  const std::optional<double> spread = spread_of_difference(a, b);
  if (!spread) {
    return std::nullopt;
  }
  const double difference = std::abs(difference_of(a, b));
  if (have_several_seeds(a, b)) {
    return difference <= *spread;
  }
  return difference > 3 * *spread ? std::optional(false) : std::nullopt;
}

std::string difference_in_words(const Settled& a, const Settled& reference) {
  const double difference = difference_of(a, reference);
  const std::string words = fmt::format("{:.4f} {}", std::abs(difference), difference < 0 ? "less" : "more");
  if (!have_several_seeds(a, reference)) {
    return words + ", of one seed";
  }
  return equal_within_spread(a, reference).value_or(false)
             ? fmt::format("equal within the seeds' spread ({}, spread {:.4f})", words,
                           *spread_of_difference(a, reference))
             : words;
}

std::string difference_shown(const Settled& a, const Settled& reference) {
  const bool several = have_several_seeds(a, reference);
  const char* note = !several ? " (one seed)" : equal_within_spread(a, reference).value_or(false) ? " (equal)" : "";
  return fmt::format("{:+.4f}{}", difference_of(a, reference), note);
}

ClaimTable table_of_variants(const std::string& title, const TrainedRuns& runs,
                             const std::vector<std::string>& variants) {
  ClaimTable table{.title = title,
                   .columns = {"loss", "±", "difference", "parameters", "rate", "seeds"},
                   .measured = "loss above that of the first, nats a token",
                   .settings = {"loss", "parameters", "rate", "seeds"},  // bars of whole losses would all look alike
                   .rows_are = "variant",
                   .decimals = 4,
                   .spread_over = "the seeds"};
  std::optional<Settled> reference;
  for (const std::string& variant : variants) {
    const std::optional<Settled> best = runs.best(variant);
    if (!best) {
      continue;
    }
    reference = reference ? reference : best;
    const bool same = best->runs.front()->data == reference->runs.front()->data;
    table.names.push_back(variant);
    table.rows.push_back({best->loss, best->spread.value_or(std::nan("")),
                          same ? difference_of(*best, *reference) : std::nan(""), static_cast<double>(best->parameters),
                          best->rate, static_cast<double>(best->runs.size())});
  }
  return table;
}

Figure differences_of_variants(const std::string& title, const TrainedRuns& runs,
                               const std::vector<std::string>& variants) {
  const std::optional<Settled> first = runs.best(variants.front());
  Figure figure = first ? figure_of_variants(title, runs, variants, first->runs.front()) : Figure{.title = title};
  figure.y.words = "validation loss above that of " + variants.front();
  return figure;
}

Figure curves_of_variants(const std::string& title, const TrainedRuns& runs, const std::vector<std::string>& variants) {
  return figure_of_variants(title, runs, variants, nullptr);
}

namespace {

std::string cost_in_words(const TrainedRuns& runs) {
  std::map<std::string, double> seconds;
  for (const TrainedRun& run : runs.all()) {
    seconds[run.device] += run.seconds;
    for (const TrainedRun::Again& again : run.repeated) {
      seconds[run.device] += again.seconds;
    }
  }
  std::string words = fmt::format("{} of {} runs", runs.all().size(), runs.all().size() + runs.missing().size());
  for (const auto& [device, time] : seconds) {
    words += fmt::format(", {} on {}", human_time(std::ceil(time)), device == "cuda" ? "one GPU" : "the CPU");
  }
  return words;
}

}  // namespace

PaperClaim trained_claim(PaperClaim claim, PlanOfClaim plan, JudgeOfClaim judge) {
  PARE_CHECK(claim.trains(), "a claim that trains says what that costs in full: " + claim.id);
  claim.keeps_runs = true;
  claim.measure = [id = claim.id, plan = std::move(plan), judge = std::move(judge)](const Trial& trial) {
    const std::vector<PlannedRun> planned = plan(trial);
    const TrainedRuns runs = trained_runs(id, trial, planned);
    Outcome outcome = [&]() -> Outcome {
      try {
        return judge(trial, runs);
      } catch (const nlohmann::json::exception& error) {  // of what was seen of a run, which only a judge reads
        throw InputError(fmt::format("{}: what was seen of a run is not as it was kept ({})",
                                     quote((trial.folder / kept_runs_file).string()), error.what()));
      }
    }();
    if (const auto [spread, pairs] = runs.spread_of_repeated("cuda"); pairs > 0) {
      outcome.compared.push_back({fmt::format("the same run again, {} {}", pairs, pairs == 1 ? "pair" : "pairs"),
                                  "not said", fmt::format("a deviation of {:.4f}", spread)});
    }
    outcome.cost = cost_in_words(runs);
    if (runs.interrupted()) {
      const size_t done = runs.all().size();
      outcome.partial = fmt::format("{} of {} runs", done, done + runs.missing().size());
    }
    return outcome;
  };
  return claim;
}

}  // namespace pare
