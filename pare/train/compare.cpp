#include "pare/train/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/text.h"
#include "pare/train/run_folder.h"

namespace pare {

namespace {

struct ReadRun {
  std::string path;
  TrainConfig config;
  nlohmann::json manifest;
  std::map<int64_t, std::pair<double, double>> validation;  // step: loss, accuracy
};

ReadRun read_run(const std::string& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(std::filesystem::path(path) / "data.json", unknown)) {
    throw InputError(fmt::format("{} is not a run: expected a folder that 'pare train' wrote", quote(path)));
  }
  ReadRun run{.path = path};
  run.config = train_config_from_json(
      read_run_json(path, "config.json"), path + "/config.json", [](const std::string& word) -> Architecture {
        throw InputError("the architecture of a run is written out, found " + quote(word));
      });
  run.manifest = read_run_json(path, "data.json");
  for (const nlohmann::json& line : read_metrics(path)) {
    const auto loss = line.find("validation"), accuracy = line.find("accuracy");
    if (loss != line.end() && loss->is_number() && accuracy != line.end() && accuracy->is_number()) {
      run.validation[line.at("step").get<int64_t>()] = {loss->get<double>(), accuracy->get<double>()};
    }
  }
  return run;
}

// Where the files lie is no difference, if they hold the same bytes.
void note_differences(const ReadRun& first, const ReadRun& other, Problems& problems) {
  const nlohmann::json a = first.manifest.flatten(), b = other.manifest.flatten();
  std::map<std::string, std::pair<std::string, std::string>> differing;
  const auto note = [&](const nlohmann::json& from, const nlohmann::json& to) {
    for (const auto& [key, value] : from.items()) {
      if (!key.ends_with("/path") && (!to.contains(key) || to[key] != value)) {
        differing[key] = {a.contains(key) ? a[key].dump() : "nothing", b.contains(key) ? b[key].dump() : "nothing"};
      }
    }
  };
  note(a, b);
  note(b, a);
  for (const auto& [key, values] : differing) {
    std::string dotted = key.substr(1);
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    problems.add(fmt::format("{}: {} of its data is {}, but {} in {}", quote(other.path), dotted, values.second,
                             values.first, quote(first.path)));
  }
}

int64_t last_common_step(const std::vector<ReadRun>& runs) {
  for (auto at = runs.front().validation.rbegin(); at != runs.front().validation.rend(); ++at) {
    const auto has = [&](const ReadRun& run) { return run.validation.contains(at->first); };
    if (std::all_of(runs.begin(), runs.end(), has)) {
      return at->first;
    }
  }
  throw InputError("the runs have no step at which all of them were measured: choose the same evaluate.every");
}

std::string without_seed(TrainConfig config) {
  config.seed = 0;
  config.name.clear();
  config.checkpoint = {};
  return train_config_to_json(config).dump();
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

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::optional<double> deviation_of(const std::vector<double>& values) {
  if (values.size() < 2) {
    return std::nullopt;
  }
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

}  // namespace

RunComparison compare_runs(const std::vector<std::string>& paths) {
  std::vector<ReadRun> runs;
  Problems problems;
  for (const std::string& path : paths) {
    runs.push_back(read_run(path));
    note_differences(runs.front(), runs.back(), problems);
  }
  problems.throw_if_any("these runs cannot be compared: they did not see the same data in the same order");
  RunComparison comparison{.step = last_common_step(runs)};
  std::map<std::string, size_t> rows;
  for (const ReadRun& run : runs) {
    const auto [place, added] = rows.emplace(without_seed(run.config), comparison.rows.size());
    if (added) {
      comparison.rows.push_back({.name = name_of_run(run), .parameters = count(last_architecture(run.config)).total});
    }
    ComparedRuns& row = comparison.rows[place->second];
    if (!added) {
      row.name = name_of_seeds(name_of_run(run), run.config.seed);
    }
    row.paths.push_back(run.path);
    row.losses.push_back(run.validation.at(comparison.step).first);
    row.accuracies.push_back(run.validation.at(comparison.step).second);
  }
  for (ComparedRuns& row : comparison.rows) {
    row.loss = mean_of(row.losses);
    row.accuracy = mean_of(row.accuracies);
    row.spread = deviation_of(row.losses);
  }
  return comparison;
}

std::string comparison_text(const RunComparison& comparison) {
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right});
  table.row({"run", "parameters", "loss", "difference", "seeds", "accuracy"});
  table.rule();
  const ComparedRuns& first = comparison.rows.front();
  for (const ComparedRuns& row : comparison.rows) {
    const std::string seeds = row.spread ? fmt::format("{} (± {:.4f})", row.losses.size(), *row.spread) : "1";
    table.row({row.name, with_commas(row.parameters), fmt::format("{:.4f}", row.loss),
               &row == &first ? "" : fmt::format("{:+.4f}", row.loss - first.loss), seeds,
               fmt::format("{:.2f} %", 100 * row.accuracy)});
  }
  return fmt::format("Validation after {} steps, on the same data in the same order. Loss in nats a target.\n\n{}",
                     with_commas(comparison.step), table.text());
}

nlohmann::ordered_json comparison_json(const RunComparison& comparison) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const ComparedRuns& row : comparison.rows) {
    rows.push_back({{"name", row.name},
                    {"paths", row.paths},
                    {"parameters", row.parameters},
                    {"loss", row.loss},
                    {"difference", row.loss - comparison.rows.front().loss},
                    {"spread", row.spread ? nlohmann::ordered_json(*row.spread) : nlohmann::ordered_json(nullptr)},
                    {"losses", row.losses},
                    {"accuracy", row.accuracy}});
  }
  return {{"step", comparison.step}, {"runs", rows}};
}

}  // namespace pare
