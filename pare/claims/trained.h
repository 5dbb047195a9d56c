#pragma once
// Claims that need training. A claim plans its runs, each a configuration of `pare train`; what is missing is trained
// in the order of the plan, each result is kept as it comes (runs.json), and the claim judges what is there: time on a
// GPU comes in pieces, and nothing is trained twice.

#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "pare/claims/claim.h"
#include "pare/support/statistics.h"

namespace pare {

constexpr const char* kept_runs_file = "runs.json";  // in the folder of the trial

struct PlannedRun {
  std::string variant;  // fit for a folder's name; runs of one variant differ in their learning rate and seed
  // Of pare train, without a sweep; files of data, shards, a tokenizer and models to start or learn from by their names
  // in the folder of corpora. With data.samples it learns from what its teacher draws.
  nlohmann::json config;
  std::string from = {}, teacher = {};  // names of earlier runs: the last checkpoint of each
  std::string passes = {};              // of pare rewrite, which the model of `from` goes through first
  // What else is measured once it is trained, kept in `seen`: a finished run folder, with checkpoints as configured.
  std::function<nlohmann::ordered_json(const std::filesystem::path& run)> look = {};

  std::string name() const;  // VARIANT-lr0.001-seed0
  double rate() const;       // config's optimiser.lr, which has to be written
  int64_t seed() const;      // config's seed, or 0
};

struct TrainedRun {
  std::string name, variant;
  bool classifies = false;
  bool goes_on = false;  // it began with a model that another run of the plan trained
  double rate = 0;
  int64_t seed = 0, parameters = 0, steps = 0;
  double seconds = 0;
  std::string device;                                // "cpu", "cuda"
  std::string data;                                  // a hash of what it saw, in which order
  std::map<int64_t, double> validation, accuracies;  // by step
  double loss = 0, accuracy = 0;                     // of validation, the last
  std::string stopped;                               // why it came to no end that counts; empty: it did
  struct Again {
    double loss = 0, seconds = 0;  // 0: not known
  };
  std::vector<Again> repeated;  // with the same seed on the same kind of device, since others started from it
  nlohmann::ordered_json seen;

  double mean_loss() const;  // of it and its repetitions: a seed is one number
  double points() const { return 100 * accuracy; }
};

TrainedRun run_of(const PlannedRun& planned);  // its name and what follows from the plan

// The runs of a variant at one learning rate.
struct Settled {
  std::string variant;
  double rate = 0;
  std::vector<const TrainedRun*> runs;
  int64_t parameters = 0;
  double loss = 0, accuracy = 0;  // means over the seeds
};

class TrainedRuns {
 public:
  // A run that diverged is among those that stopped: where it ended says nothing.
  TrainedRuns(std::vector<TrainedRun> runs, std::vector<std::string> missing, bool interrupted = false);

  const std::vector<TrainedRun>& all() const { return runs_; }          // in the order of the plan
  const std::vector<std::string>& missing() const { return missing_; }  // names of runs that nobody has trained
  bool interrupted() const { return interrupted_; }                     // by Ctrl-C, before all were trained
  const TrainedRun* find(const std::string& name) const;                // nullptr: missing
  std::vector<Settled> at_rates(const std::string& variant) const;      // ascending; without those that stopped
  std::optional<Settled> at_rate(const std::string& variant, double rate) const;
  // Of these, the one of the least mean loss, or of the largest accuracy. Rates that fewer seeds than three were
  // trained at stand only where none has more.
  std::optional<Settled> best(const std::string& variant, double Settled::*by = &Settled::loss) const;
  std::vector<const TrainedRun*> ended(const std::string& variant) const;  // and did not stop before
  std::vector<const TrainedRun*> stopped(const std::string& variant) const;
  // The standard deviation of runs with the same seed on that device, and of how many pairs.
  std::pair<double, int64_t> spread_of_repeated(const std::string& device) const;

 private:
  std::vector<TrainedRun> runs_;
  std::vector<std::string> missing_;
  bool interrupted_ = false;
};

// Where several ranks train: on all but the first, once all is trained. What came of it the first has.
struct JudgedElsewhere {
  bool interrupted = false;
};

// Trains what is planned and missing, as far as the trial has data and time for it. InputError where it has data for
// nothing. Several ranks train a run each at a time; only the first writes what is kept. JudgedElsewhere on the others.
TrainedRuns trained_runs(const std::string& claim, const Trial& trial, const std::vector<PlannedRun>& plan);

// It ends at more than twice the least loss that it had, and is no classifier, whose loss grows where it is sure and
// wrong, and which may be no worse for that.
bool diverged(const TrainedRun& run);
double least_loss(const TrainedRun& run);  // of validation, at any step

// The claim is measured by judging what was trained of its plan.
PaperClaim trained_claim(PaperClaim claim);

// By how much the first is above the other, over the pairs of one seed that saw the same data in the same order.
Estimate loss_above(const Settled& a, const Settled& reference);
Estimate points_above(const Settled& a, const Settled& reference);  // of a hundred, in accuracy
Estimate points_of(const Settled& settled);
// Two variants, each at its best rate; or at its best of the rates that both were trained at. Nothing where one was not
// trained.
std::optional<std::pair<Settled, Settled>> at_best_rates(const TrainedRuns& runs, const std::string& variant,
                                                         const std::string& reference);
std::optional<std::pair<Settled, Settled>> at_common_rates(const TrainedRuns& runs, const std::string& variant,
                                                           const std::string& reference);

// Over the steps, each variant at its best rate: by how much it is above the first, with the 95 % interval as a band.
Figure differences_of_variants(const std::string& title, const TrainedRuns& runs,
                               const std::vector<std::string>& variants);
// Validation loss over the steps, of each variant at its best rate, mean over its seeds.
Figure curves_of_variants(const std::string& title, const TrainedRuns& runs, const std::vector<std::string>& variants);

// config with KEY = VALUE for each change, keys dotted as on the command line of pare train.
nlohmann::json changed(nlohmann::json config, const std::vector<std::pair<std::string, nlohmann::json>>& changes);

// What claims on bytes of novels have in common: d 384, 6 layers of 6 heads, context 512, learned positions, LayerNorm,
// GELU, biases, tied; 131k tokens a step, 1,600 steps, bfloat16 on a GPU. At smoke scale a model of width 32 that sorts
// numbers, on the CPU.
nlohmann::json usual_run(const Trial& trial);
// The same in a fifth of the time, for claims that ask of it which of two is better, not how good: 33k tokens a step,
// 1,000 steps.
nlohmann::json short_run(const Trial& trial);

}  // namespace pare
