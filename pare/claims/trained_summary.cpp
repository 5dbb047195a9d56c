#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "pare/claims/trained.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"

namespace pare {

const TrainedRun* TrainedRuns::find(const std::string& name) const {
  const auto found = std::ranges::find(runs_, name, &TrainedRun::name);
  return found == runs_.end() ? nullptr : &*found;
}

std::vector<Settled> TrainedRuns::at_rates(const std::string& variant) const {
  std::map<double, std::vector<const TrainedRun*>> by_rate;
  for (const TrainedRun* run : ended(variant)) {
    by_rate[run->rate].push_back(run);
  }
  std::vector<Settled> found;
  for (const auto& [rate, runs] : by_rate) {
    Moments losses, accuracies;
    for (const TrainedRun* run : runs) {
      losses.add(run->mean_loss());
      accuracies.add(run->accuracy);
    }
    found.push_back({.variant = variant,
                     .rate = rate,
                     .runs = runs,
                     .parameters = runs.front()->parameters,
                     .loss = losses.mean,
                     .accuracy = accuracies.mean});
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
  const auto there = std::ranges::find(all, rate, &Settled::rate);
  return there == all.end() ? std::nullopt : std::optional(*there);
}

// Rates that fewer seeds than three were trained at stand only where none has more.
static void leave_tried_once(std::vector<Settled>& rates) {
  size_t most = 0;
  for (const Settled& one : rates) {
    most = std::max(most, one.runs.size());
  }
  std::erase_if(rates, [most](const Settled& one) { return one.runs.size() < std::min<size_t>(most, 3); });
}

std::optional<Settled> TrainedRuns::best(const std::string& variant, double Settled::*by) const {
  std::vector<Settled> all = at_rates(variant);
  leave_tried_once(all);
  const auto least = std::ranges::min_element(
      all, [by](const Settled& a, const Settled& b) { return by == &Settled::loss ? a.loss < b.loss : a.*by > b.*by; });
  return least == all.end() ? std::nullopt : std::optional(*least);
}

static std::vector<const TrainedRun*> runs_of(const std::vector<TrainedRun>& runs, const std::string& variant,
                                              bool ended) {
  std::vector<const TrainedRun*> found;
  for (const TrainedRun& run : runs) {
    if (run.variant == variant && run.stopped.empty() == ended) {
      found.push_back(&run);
    }
  }
  return found;
}

std::vector<const TrainedRun*> TrainedRuns::ended(const std::string& variant) const {
  return runs_of(runs_, variant, true);
}

std::vector<const TrainedRun*> TrainedRuns::stopped(const std::string& variant) const {
  return runs_of(runs_, variant, false);
}

double TrainedRun::mean_loss() const {
  Moments losses;
  losses.add(loss);
  for (const Again& again : repeated) {
    losses.add(again.loss);
  }
  return losses.mean;
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

namespace {

// On a GPU a model that is trained again is another one: two runs that went on from different trainings of it are no
// pair.
bool began_apart(const TrainedRun& a, const TrainedRun& b) {
  constexpr double same_start = 1e-3;  // one function in two forms, in bfloat16
  const auto start = [](const TrainedRun& run) {
    const auto found = run.validation.find(0);
    return found == run.validation.end() ? std::nan("") : found->second;
  };
  return a.goes_on && b.goes_on && a.seed == b.seed && std::abs(start(a) - start(b)) > same_start;
}

// The runs of the first that began where those of the reference did.
Settled began_with(Settled a, const Settled& reference) {
  std::erase_if(a.runs, [&](const TrainedRun* run) {
    return std::ranges::any_of(reference.runs, [&](const TrainedRun* other) { return began_apart(*run, *other); });
  });
  return a;
}

template <class Number>
std::vector<Observed> observed(const Settled& settled, Number TrainedRun::*number) {
  return mapped(settled.runs, [&](const TrainedRun* run) {
    return Observed{run->seed, run->data, std::invoke(number, *run)};
  });
}

// What the runs of a variant measured after so many steps.
std::vector<Observed> observed_at(const Settled& settled, int64_t step) {
  std::vector<Observed> found;
  for (const TrainedRun* run : settled.runs) {
    if (const auto loss = run->validation.find(step); loss != run->validation.end()) {
      found.push_back({run->seed, run->data, loss->second});
    }
  }
  return found;
}

// Above the reference where there is one. What is drawn before the first step says nothing, and hides the rest.
Figure figure_of_variants(const std::string& title, const TrainedRuns& runs, const std::vector<std::string>& variants,
                          const std::optional<Settled>& reference) {
  Figure figure{.kind = FigureKind::lines, .title = title};
  figure.words = reference
                     ? "Each variant at its best learning rate, mean over pairs of one seed; the band is its 95 % "
                       "interval, where there are several."
                     : "Each variant at its best learning rate, mean over its seeds.";
  figure.x = {.words = "step"};
  figure.y = {.words = "validation loss", .unit = "nats a token"};
  for (const std::string& variant : variants) {
    std::optional<Settled> best = runs.best(variant);
    if (best && reference) {
      best = began_with(*best, *reference);
    }
    if (!best || best->runs.empty()) {
      continue;
    }
    Series series{.name = variant};
    for (const auto& [step, loss] : best->runs.front()->validation) {
      Moments losses;
      for (const Observed& one : observed_at(*best, step)) {
        losses.add(one.value);
      }
      const Estimate shown = reference ? paired_difference(observed_at(*best, step), observed_at(*reference, step))
                                       : Estimate{.count = losses.count, .mean = losses.mean};
      if (step > 0 && shown.count > 0) {
        series.x.push_back(static_cast<double>(step));
        series.y.push_back(shown.mean);
        series.spread.push_back(shown.interval ? shown.half_width() : std::nan(""));
      }
    }
    if (std::ranges::any_of(series.spread, [](double half) { return std::isnan(half); })) {
      series.spread.clear();
    }
    if (!series.x.empty()) {
      figure.series.push_back(std::move(series));
    }
  }
  return figure;
}

}  // namespace

Estimate loss_above(const Settled& a, const Settled& reference) {
  return paired_difference(observed(began_with(a, reference), &TrainedRun::mean_loss),
                           observed(reference, &TrainedRun::mean_loss));
}

Estimate points_above(const Settled& a, const Settled& reference) {
  return paired_difference(observed(a, &TrainedRun::points), observed(reference, &TrainedRun::points));
}

Estimate points_of(const Settled& settled) {
  const std::vector<double> values = mapped(settled.runs, &TrainedRun::points);
  return estimate_of(values);
}

std::optional<std::pair<Settled, Settled>> at_best_rates(const TrainedRuns& runs, const std::string& variant,
                                                         const std::string& reference) {
  const std::optional<Settled> a = runs.best(variant), b = runs.best(reference);
  return a && b ? std::optional(std::pair(*a, *b)) : std::nullopt;
}

std::optional<std::pair<Settled, Settled>> at_common_rates(const TrainedRuns& runs, const std::string& variant,
                                                           const std::string& reference) {
  const auto least = [&runs](const std::string& of, const std::string& other) -> std::optional<Settled> {
    std::vector<Settled> all = runs.at_rates(of);
    std::erase_if(all, [&](const Settled& one) { return !runs.at_rate(other, one.rate); });
    leave_tried_once(all);
    const auto found = std::ranges::min_element(all, {}, &Settled::loss);
    return found == all.end() ? std::nullopt : std::optional(*found);
  };
  const std::optional<Settled> ours = least(variant, reference), theirs = least(reference, variant);
  return ours ? std::optional(std::pair(*ours, *theirs)) : std::nullopt;
}

Figure differences_of_variants(const std::string& title, const TrainedRuns& runs,
                               const std::vector<std::string>& variants) {
  const std::optional<Settled> first = runs.best(variants.front());
  Figure figure =
      first ? figure_of_variants(title, runs, {variants.begin() + 1, variants.end()}, first) : Figure{.title = title};
  figure.y.words = "validation loss above that of " + variants.front();
  return figure;
}

Figure curves_of_variants(const std::string& title, const TrainedRuns& runs, const std::vector<std::string>& variants) {
  return figure_of_variants(title, runs, variants, std::nullopt);
}

static std::string cost_in_words(const TrainedRuns& runs) {
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

PaperClaim trained_claim(PaperClaim claim) {
  PARE_CHECK(claim.trains() && claim.plan && claim.judge,
             "a claim that trains has a plan, a judge and a cost: " + claim.id);
  claim.measure = [claim](const Trial& trial) {
    const TrainedRuns runs = trained_runs(claim.id, trial, claim.plan(trial));
    Outcome outcome = [&]() -> Outcome {
      try {
        return claim.judge(trial, runs);
      } catch (const nlohmann::json::exception& error) {  // of what was seen of a run, which only a judge reads
        throw InputError(fmt::format("{}: what was seen of a run is not as it was kept ({})",
                                     quote((trial.folder / kept_runs_file).string()), error.what()));
      }
    }();
    if (const auto [spread, pairs] = runs.spread_of_repeated("cuda"); pairs > 0) {
      outcome.compared.push_back(
          {fmt::format("standard deviation of repeated runs, {} {}", pairs, pairs == 1 ? "pair" : "pairs"), "not said",
           fmt::format("{:.4f}", spread)});
    }
    if (outcome.how.empty()) {
      outcome.how = "A seed is that of the initial weights; the order of the data is the same for all runs";
    }
    outcome.how +=
        ".\n\nA difference (diff) is the mean over pairs of runs with the same seed, data and order of the data, ± "
        "half of its 95 % interval (Student's t). A run that was repeated on a GPU counts once, by its mean: in "
        "bfloat16, repetitions differ. About one interval in twenty does not contain the true difference";
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
