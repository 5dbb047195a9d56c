#include "pare/train/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "pare/algebra/morph_plan.h"
#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/sha256.h"
#include "pare/train/morph.h"
#include "pare/train/run_folder.h"

namespace pare {

namespace {

struct ReadRun {
  std::string path;
  TrainConfig config;
  nlohmann::json manifest, source;                          // data.json, start.json
  std::map<int64_t, std::pair<double, double>> validation;  // step: loss, accuracy
  std::vector<double> losses;  // of step 1, 2, ...: the cross-entropy, without what a teacher or a morph adds
};

ReadRun read_run(const std::string& path) {
  refuse_if(!path_exists(std::filesystem::path(path) / "data.json"),
            "{} is not a run: expected a folder that 'pare train' wrote", quote(path));
  ReadRun run{.path = path};
  run.config = read_run_config(path);
  run.manifest = read_run_json(path, "data.json");
  run.source = read_run_source(path);
  for (const nlohmann::json& line : read_metrics(path)) {
    const char* key = has_other_parts(run.config) ? "cross_entropy" : "loss";
    if (const auto trained = line.find(key); trained != line.end() && line.at("step") == run.losses.size() + 1) {
      run.losses.push_back(trained->get<double>());
    }
    const auto loss = line.find("validation"), accuracy = line.find("accuracy");
    if (loss != line.end() && loss->is_number() && accuracy != line.end() && accuracy->is_number()) {
      run.validation[line.at("step").get<int64_t>()] = {loss->get<double>(), accuracy->get<double>()};
    }
  }
  return run;
}

// Where the files lie is no difference, nor how they are packed, if they hold the same.
bool is_packaging(const std::string& key, const nlohmann::json& a, const nlohmann::json& b) {
  const char* contents = "/data/contents/train/sha256";
  const char* pixels = "/data/contents/train/sha256_of_pixels";
  const bool known = (a.contains(contents) && b.contains(contents)) || (a.contains(pixels) && b.contains(pixels));
  return key.ends_with("/path") || (known && (key.starts_with("/data/train") || key.starts_with("/data/validation/")));
}

// A longer run begins with the order of a shorter one: what both have drawn is compared, not how much.
bool has_same_order(const ReadRun& a, const ReadRun& b) {
  const std::filesystem::path files[] = {std::filesystem::path(a.path) / "order.i32",
                                         std::filesystem::path(b.path) / "order.i32"};
  if (!path_exists(files[0]) || !path_exists(files[1])) {
    return false;
  }
  const InputFile first(files[0]), second(files[1]);
  const uint64_t common = std::min(first.size(), second.size());
  constexpr uint64_t piece = 1 << 20;
  std::vector<std::byte> ours(piece), theirs(piece);
  for (uint64_t begin = 0; begin < common; begin += piece) {
    const size_t count = static_cast<size_t>(std::min(piece, common - begin));
    const std::span<std::byte> left = std::span(ours).first(count), right = std::span(theirs).first(count);
    if (first.read_at(begin, left) != count || second.read_at(begin, right) != count ||
        !std::equal(left.begin(), left.end(), right.begin())) {
      return false;
    }
  }
  return common > 0;
}

void note_differences(const ReadRun& first, const ReadRun& other, Problems& problems) {
  const nlohmann::json a = first.manifest.flatten(), b = other.manifest.flatten();
  std::map<std::string, std::pair<std::string, std::string>> differing;
  const auto note = [&](const nlohmann::json& from, const nlohmann::json& to) {
    for (const auto& [key, value] : from.items()) {
      if (!is_packaging(key, a, b) && (!to.contains(key) || to[key] != value)) {
        differing[key] = {a.contains(key) ? a[key].dump() : "nothing", b.contains(key) ? b[key].dump() : "nothing"};
      }
    }
  };
  note(a, b);
  note(b, a);
  if (differing.contains("/order/draws") && has_same_order(first, other)) {
    differing.erase("/order/draws");
    differing.erase("/order/sha256");
  }
  for (const auto& [key, values] : differing) {
    std::string dotted = key.substr(1);
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    problems.add(fmt::format("{}: {} of its data is {}, but {} in {}", quote(other.path), dotted, values.second,
                             values.first, quote(first.path)));
  }
}

// The start is no step of training: what stands there was learned by nobody.
int64_t last_common_step(const std::vector<ReadRun>& runs) {
  for (auto at = runs.front().validation.rbegin(); at != runs.front().validation.rend() && at->first > 0; ++at) {
    const auto has = [&](const ReadRun& run) { return run.validation.contains(at->first); };
    if (std::ranges::all_of(runs, has)) {
      return at->first;
    }
  }
  Problems problems;
  for (const ReadRun& run : runs) {
    const int64_t last = run.validation.empty() ? 0 : run.validation.rbegin()->first;
    problems.add(fmt::format("{} has done {} of its {} steps, and was last measured after step {}", quote(run.path),
                             run.losses.size(), run.config.steps, last));
  }
  problems.throw_if_any(
      "these runs have no step after their start at which all of them were measured: continue those that were stopped "
      "(--resume), leave them out, or choose the same evaluate.every");
  return 0;
}

// What files a run began with, or learned from, wherever they lie.
std::string hashes_in(const nlohmann::json& source, const char* key) {
  const auto found = source.find(key);
  return found == source.end() ? "" : found->value("sha256", nlohmann::json()).dump();
}

// Runs with the same key are one row. A path may hold another model than when the run before began.
std::string without_seed(const ReadRun& run) {
  TrainConfig config = run.config;
  config.seed = 0;
  config.name.clear();
  config.checkpoint = {};
  return train_config_to_json(config).dump() + hashes_in(run.source, "from") + hashes_in(run.source, "teacher");
}

// A folder, with the beginning of its hash where another row has another model of that path.
std::string model_words(const ReadRun& run, const char* key, const std::vector<ReadRun>& runs) {
  const auto found = run.source.find(key);
  if (found == run.source.end()) {
    return "";
  }
  const std::string path = found->value("path", ""), hashes = hashes_in(run.source, key);
  const bool ambiguous = std::ranges::any_of(runs, [&](const ReadRun& other) {
    return other.source.contains(key) && other.source[key].value("path", "") == path &&
           hashes_in(other.source, key) != hashes;
  });
  return ambiguous ? fmt::format("{} as it was with the SHA-256 {}...", path, sha256_of(hashes).substr(0, 8)) : path;
}

std::string recipe_words(const TrainConfig& config) {
  const std::string recipe = train_config_to_json(config).at("init").at("recipe").get<std::string>();
  switch (config.init.recipe) {
    case InitRecipe::plain:
      return recipe;
    case InitRecipe::gpt2:
      return fmt::format("{} with deviation {:g}{}", recipe, config.init.deviation,
                         config.init.key == 1 ? "" : fmt::format(", keys {:g} times that", config.init.key));
    case InitRecipe::norm_free:
    case InitRecipe::orthogonal:
      return fmt::format("{} with embeddings of {:g}", recipe, config.init.embedding);
  }
  PARE_UNREACHABLE("a recipe that nobody draws by");
}

std::string start_words(const ReadRun& run, const std::vector<ReadRun>& runs) {
  const std::string from = model_words(run, "from", runs);
  return from.empty() ? "drawn by " + recipe_words(run.config) : "from " + from;
}

bool draws_its_start(const ReadRun& run) {
  const auto from = run.source.find("from");
  return from == run.source.end() || from->value("drawn", nlohmann::json::array()) != nlohmann::json::array();
}

// What decides the numbers of the start, but for the seed: files, wherever they lie, and how the rest is drawn.
std::string start_key(const ReadRun& run) {
  return hashes_in(run.source, "from") + (draws_its_start(run) ? recipe_words(run.config) : "");
}

// Whether runs that differ in their seed differ in anything but the order of somebody's sums.
bool depends_on_seed(const ReadRun& run) {
  return draws_its_start(run) || run.config.dropout != DropoutRates();
}

// What is not the same in all rows besides what they are to be compared for.
std::vector<std::string> notes_on(const RunComparison& comparison, bool starts_differ) {
  std::vector<std::string> notes;
  const std::vector<ComparedRuns>& rows = comparison.rows;
  for (const ComparedRuns& row : rows) {
    if (comparison.step < row.steps) {
      const auto [least, most] = std::minmax_element(row.done.begin(), row.done.end());
      notes.push_back(
          fmt::format("{} is not at its end there: step {} of {}, of which {} done; its learning rate has yet to fall",
                      row.name, with_commas(comparison.step), with_commas(row.steps),
                      *least == *most ? fmt::format("{} are", with_commas(*least))
                                      : fmt::format("{} to {} are", with_commas(*least), with_commas(*most))));
    }
    if (row.t) {
      notes.push_back(
          fmt::format("{} is still between two Architectures there (t = {:.3g}): its parameters are those that it has "
                      "then, not those of its end",
                      row.name, *row.t));
    }
  }
  if (starts_differ) {
    std::string list;
    for (const ComparedRuns& row : rows) {
      list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", row.name, row.start);
    }
    notes.push_back(
        fmt::format("They did not start from the same numbers, so a difference may be the start's ({})", list));
  }
  if (rows.size() == 1 && rows.front().paths.size() > 1) {
    notes.emplace_back(
        "They differ in nothing but their seed, and so are one row: there is nothing to compare them with");
  }
  const auto seeds_of = [](const ComparedRuns& row) { return std::set(row.seeds.begin(), row.seeds.end()); };
  const auto other_seeds = [&](const ComparedRuns& row) { return seeds_of(row) != seeds_of(rows.front()); };
  if (std::ranges::any_of(rows, other_seeds)) {
    std::string list;
    for (const ComparedRuns& row : rows) {
      list += fmt::format("{}{}: {}", list.empty() ? "" : "; ", row.name, fmt::join(row.seeds, ", "));
    }
    notes.push_back(fmt::format("The seeds are not the same ({})", list));
  }
  return notes;
}

// What a run is at a step: before the end of a morph it has what leaves, too.
Architecture architecture_at(const TrainConfig& config, int64_t step) {
  return config.morph.to && step < config.morph.steps
             ? plan_morph(config.architecture, *config.morph.to, "morph.to").from
             : last_architecture(config);
}

std::string name_of_run(const ReadRun& run) {
  const std::filesystem::path path = output_target(run.path);
  return run.config.name.empty() ? path.filename().string() : run.config.name;
}

// What the names of runs with different seeds have in common: "base-seed0", "base-seed1" are "base".
std::string name_of_seeds(const std::string& name, int64_t seed) {
  const std::string ending = fmt::format("seed{}", seed);
  if (name == ending || !name.ends_with("-" + ending)) {
    return name;
  }
  return name.substr(0, name.size() - ending.size() - 1);
}

// Of runs that differ in their seed alone: what their names have in common, else all of them, or the first and how many
// more. The last one's would be taken for one run.
std::string name_of_group(const std::vector<const ReadRun*>& runs) {
  if (runs.size() == 1) {
    return name_of_run(*runs.front());
  }
  std::vector<std::string> names;
  for (const ReadRun* run : runs) {
    const std::string name = name_of_seeds(name_of_run(*run), run->config.seed);
    if (std::ranges::find(names, name) == names.end()) {
      names.push_back(name);
    }
  }
  constexpr size_t most = 2;
  return names.size() <= most ? fmt::format("{}", fmt::join(names, ", "))
                              : fmt::format("{} and {} more", names.front(), names.size() - 1);
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

constexpr int64_t most_points = 100;  // of a curve

// Each point from the values that the seeds have there.
void add_point(LossCurve& curve, int64_t step, const std::vector<double>& values) {
  curve.steps.push_back(step);
  const Estimate estimate = estimate_of(values);
  curve.loss.push_back(estimate.mean);
  if (estimate.deviation) {
    curve.spread.push_back(*estimate.deviation);
  }
}

LossCurve training_curve(const std::vector<const ReadRun*>& runs, int64_t last, int64_t window) {
  LossCurve curve;
  for (int64_t begin = 0; begin < last; begin += window) {
    const int64_t end = std::min(begin + window, last);
    std::vector<double> means;
    for (const ReadRun* run : runs) {
      means.push_back(mean_of({run->losses.begin() + begin, run->losses.begin() + end}));
    }
    add_point(curve, end, means);
  }
  return curve;
}

LossCurve validation_curve(const std::vector<const ReadRun*>& runs, int64_t last) {
  LossCurve curve;
  for (const auto& [step, measured] : runs.front()->validation) {
    std::vector<double> values;
    for (const ReadRun* run : runs) {
      if (const auto found = run->validation.find(step); found != run->validation.end()) {
        values.push_back(found->second.first);
      }
    }
    if (step <= last && values.size() == runs.size()) {
      add_point(curve, step, values);
    }
  }
  return curve;
}

// Where neither row draws anything by its seed, all seeds are one pair, however often it was run.
Estimate difference_at(const std::vector<const ReadRun*>& of, const std::vector<const ReadRun*>& first, int64_t step) {
  const bool by_seed = depends_on_seed(*of.front()) || depends_on_seed(*first.front());
  const auto observed = [&](const std::vector<const ReadRun*>& runs) {
    return mapped(runs, [&](const ReadRun* run) {
      return Observed{.seed = by_seed ? run->config.seed : 0, .value = run->validation.at(step).first};
    });
  };
  return paired_difference(observed(of), observed(first));
}

// Data and order are the same in all. A band is drawn where every point has an interval.
LossCurve difference_curve(const std::vector<const ReadRun*>& of, const LossCurve& measured,
                           const std::vector<const ReadRun*>& first, const LossCurve& first_measured) {
  LossCurve curve;
  for (const int64_t step : measured.steps) {
    if (std::ranges::find(first_measured.steps, step) == first_measured.steps.end()) {
      continue;
    }
    const Estimate difference = difference_at(of, first, step);
    if (difference.count == 0) {
      continue;
    }
    curve.steps.push_back(step);
    curve.loss.push_back(difference.mean);
    if (difference.interval) {
      curve.spread.push_back(difference.half_width());
    }
  }
  if (curve.spread.size() != curve.steps.size()) {
    curve.spread.clear();
  }
  return curve;
}

// The last so many parts of a path.
std::string end_of_path(const std::filesystem::path& path, int64_t parts) {
  const std::vector<std::string> names = mapped(path, [](const std::filesystem::path& part) { return part.string(); });
  const int64_t first = std::max<int64_t>(0, std::ssize(names) - parts);
  std::filesystem::path found;
  for (size_t i = static_cast<size_t>(first); i < names.size(); ++i) {
    found /= names[i];
  }
  return found.string();
}

// Rows that would be called alike are called by as much of their paths as tells them apart, and by that of their first
// run where the paths without seeds do not.
void tell_apart(std::vector<ComparedRuns>& rows) {
  std::map<std::string, int64_t> called;
  int64_t deepest = 1;
  for (const ComparedRuns& row : rows) {
    ++called[row.name];
    const std::filesystem::path path = output_target(row.paths.front());
    deepest = std::max<int64_t>(deepest, std::distance(path.begin(), path.end()));
  }
  for (const bool with_seed : {false, true}) {
    for (int64_t parts = 1; parts <= deepest; ++parts) {
      std::vector<std::string> names;
      for (const ComparedRuns& row : rows) {
        const std::string path = end_of_path(output_target(row.paths.front()), parts);
        const bool strip = row.paths.size() > 1 && !with_seed;
        names.push_back(called[row.name] == 1 ? row.name : strip ? name_of_seeds(path, row.seeds.front()) : path);
      }
      if (std::set(names.begin(), names.end()).size() == rows.size()) {
        for (size_t i = 0; i < rows.size(); ++i) {
          rows[i].name = names[i];
        }
        return;
      }
    }
  }
}

}  // namespace

RunComparison compare_runs(const std::vector<std::string>& paths, const std::optional<double>& margin) {
  if (margin && !(*margin > 0)) {
    throw InputError(fmt::format("a margin of {:g}: expected one above 0, in nats", *margin));
  }
  std::vector<ReadRun> runs;
  Problems problems;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path));
    note_differences(runs.front(), runs.back(), problems);
  }
  problems.throw_if_any("these runs cannot be compared: they did not see the same data in the same order");
  RunComparison comparison{.step = last_common_step(runs), .data = runs.front().manifest, .margin = margin};
  comparison.window = std::max<int64_t>(1, (comparison.step + most_points - 1) / most_points);
  std::map<std::string, size_t> rows;
  std::vector<std::vector<const ReadRun*>> seeds;
  for (const ReadRun& run : runs) {
    refuse_if(std::ssize(run.losses) < comparison.step,
              "{} was measured after step {}, but its metrics.jsonl has the losses of {} steps only: was it edited?",
              quote(run.path), comparison.step, run.losses.size());
    const auto [place, added] = rows.emplace(without_seed(run), comparison.rows.size());
    if (added) {
      const MorphConfig& morph = run.config.morph;
      const Counts counted = count(architecture_at(run.config, comparison.step));
      const auto embeddings = counted.parts.find(Part::embedding);
      comparison.rows.push_back(
          {.steps = run.config.steps,
           .start = start_words(run, runs),
           .teacher = model_words(run, "teacher", runs),
           .t = morph.to && comparison.step < morph.steps ? std::optional(morph_t(comparison.step, morph.steps))
                                                          : std::nullopt,
           .parameters = counted.total,
           .outside_embeddings = counted.total - (embeddings == counted.parts.end() ? 0 : embeddings->second),
           .rate = run.config.optimiser.lr});
      seeds.emplace_back();
    }
    seeds[place->second].push_back(&run);
    ComparedRuns& row = comparison.rows[place->second];
    row.paths.push_back(run.path);
    row.seeds.push_back(run.config.seed);
    row.done.push_back(std::ssize(run.losses));
    row.losses.push_back(run.validation.at(comparison.step).first);
    row.accuracies.push_back(run.validation.at(comparison.step).second);
  }
  for (size_t i = 0; i < comparison.rows.size(); ++i) {
    ComparedRuns& row = comparison.rows[i];
    row.name = name_of_group(seeds[i]);
    row.loss = mean_of(row.losses);
    row.accuracy = mean_of(row.accuracies);
    row.spread = estimate_of(row.losses).deviation;
    row.training = training_curve(seeds[i], comparison.step, comparison.window);
    row.validation = validation_curve(seeds[i], comparison.step);
    row.difference = difference_at(seeds[i], seeds.front(), comparison.step);
    row.differences = difference_curve(seeds[i], row.validation, seeds.front(), comparison.rows.front().validation);
  }
  tell_apart(comparison.rows);
  const auto other_start = [&](const ReadRun& run) { return start_key(run) != start_key(runs.front()); };
  comparison.notes = notes_on(comparison, std::ranges::any_of(runs, other_start));
  return comparison;
}

}  // namespace pare
