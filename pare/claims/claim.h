#pragma once
// What the papers claim, and what comes out when it is measured. A claim is a function that runs the experiment and
// decides by its own numbers; nothing is decided beforehand. The verdict that is recorded beside it is what
// `pare reproduce --list` shows, and a test runs every claim and compares.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "pare/ranks/communicator.h"
#include "pare/report/report.h"

namespace pare {

enum class Paper {
  query_elimination,
  skipless,
  attention_only,
  minimum_transformer,
  rank_and_symmetry,
  without_layer_norm
};
enum class ClaimVerdict { holds, holds_corrected, does_not_hold, undecided };
// Seconds; minutes: the paper's own sizes, or as near as a CPU comes, and on a GPU where it trains; what a paper
// trained.
enum class ClaimScale { smoke, small, full };

struct Compared {
  std::string what, claimed, measured;
};

// Drawn against its first column, or as bars where its rows have names. A column "±" is the spread of the one before.
struct ClaimTable {
  std::string title;
  std::vector<std::string> columns;
  std::vector<std::vector<double>> rows;
  std::string measured;                    // what is drawn of it, in words
  std::vector<std::string> settings = {};  // columns that are not drawn: no measurements, or of another kind
  std::string rows_are = {};               // what the rows are, where they have names: "model"
  std::vector<std::string> names = {};     // of the rows; empty: none
  std::string notes_are = {};              // a last column of words, where there is one: its head
  std::vector<std::string> notes = {};
  std::optional<int> decimals = {};  // of numbers that are not whole; none: three digits that mean something
  std::string band = "one standard deviation over the sequences";  // what a column ± is
};
constexpr const char* interval_of_pairs = "the 95 % interval of a mean over pairs of one seed";

struct Outcome {
  ClaimVerdict verdict = ClaimVerdict::undecided;
  std::string because;  // the number that decides it; where it holds corrected, the correction
  std::vector<Compared> compared;
  std::vector<ClaimTable> tables;
  std::vector<Figure> figures;  // what no table shows, such as a point for each head
  std::string how = {};         // the numbers were made, where that is not plain
  std::string cost = {};        // in words, of what was trained for it
  std::string partial = {};     // what Ctrl-C left: "3 of 8 measurements", which decide nothing; empty: all of it
};

struct TrainProgress;
struct PlannedRun;
class TrainedRuns;

struct Trial {
  ClaimScale scale = ClaimScale::smoke;
  uint64_t seed = 0;
  std::vector<std::filesystem::path> models = {};  // for claims about activations, beside a random one
  std::filesystem::path text = {};                 // that they read; none: drawn tokens
  // For claims that train (trained.h).
  std::filesystem::path data = {};    // the folder of corpora; none: beyond smoke scale nothing is trained
  std::filesystem::path folder = {};  // where what was trained is kept, and found; none: for as long as it takes
  std::string device = "cpu";
  std::optional<double> minutes = {};  // no run is begun that would not end by then
  std::string runs = {};               // only those whose names match; empty: all
  std::function<void(const std::string& run, const TrainProgress&)> progress = {};
  std::function<void(const std::string&)> note = {};
  Communicator ranks = {};  // that share out what is trained: the first of them judges it
};

struct PaperClaim {
  std::string id;
  Paper paper = Paper::query_elimination;
  std::string place;  // in the paper
  std::string says;   // one sentence
  ClaimVerdict recorded = ClaimVerdict::undecided;
  std::string number;  // of the recorded run, that the verdict hangs on; empty where nothing is decided
  std::function<Outcome(const Trial&)> measure = {};
  bool of_trained_models = false;  // undecided where none is named
  bool of_activations = false;     // measured on the models of the trial
  bool of_times = false;           // undecided at smoke scale, where nothing takes long enough
  std::string cost_in_full = {};   // of what the paper trained, or would have; empty: nothing is trained for it
  bool trains() const { return !cost_in_full.empty(); }
  bool paper_trained = true;  // else there is no full scale
  // Of runs that are found again in the folder that they were written to (trained.h): what is trained, and what is said
  // of what was trained of it.
  std::function<std::vector<PlannedRun>(const Trial&)> plan = {};
  std::function<Outcome(const Trial&, const TrainedRuns&)> judge = {};
  bool keeps_runs() const { return plan != nullptr; }
  ClaimScale recorded_at = ClaimScale::small;  // the scale of the run that came to the verdict
  std::string discussed = {};                  // a page beside that of the recorded run, on what follows from it
};

// Of a run beyond smoke scale: what it trains on; empty where it trains nothing.
std::string training_flags(const PaperClaim& claim);
// The command of the run that the recorded verdict, and the page in experiments/, come from.
std::string recorded_run(const PaperClaim& claim);

// All of them, paper by paper.
const std::vector<PaperClaim>& claims();
const PaperClaim* find_claim(const std::string& id);

std::string to_words(Paper paper);           // its number and its title, in short
std::string citation_of(Paper paper);        // "Graef 2024"
std::string to_words(ClaimVerdict verdict);  // "holds", "holds with a correction", ...
std::string to_words(ClaimScale scale);

// One list for each file.
std::vector<PaperClaim> claims_of_query_elimination();
std::vector<PaperClaim> claims_of_trained_queries();
std::vector<PaperClaim> claims_of_mlp_basis_transfer();
std::vector<PaperClaim> claims_of_norm_removal();
std::vector<PaperClaim> claims_of_skipless();
std::vector<PaperClaim> claims_of_invertible();
std::vector<PaperClaim> claims_of_decode_speed();
std::vector<PaperClaim> claims_of_trained_skipless();
std::vector<PaperClaim> claims_of_attention_only();
std::vector<PaperClaim> claims_of_trained_heads();
std::vector<PaperClaim> claims_of_minimum_transformer();
std::vector<PaperClaim> claims_of_trained_images();
std::vector<PaperClaim> claims_of_rank_and_symmetry();
std::vector<PaperClaim> claims_of_collapse();
std::vector<PaperClaim> claims_of_input_symmetries();
std::vector<PaperClaim> claims_of_probed_models();
std::vector<PaperClaim> claims_of_directional_energy();
std::vector<PaperClaim> claims_of_trained_gates();
std::vector<PaperClaim> claims_of_trained_ranks();

}  // namespace pare
