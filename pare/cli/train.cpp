// pare train: an Architecture trained from one JSON, into a run folder that can be continued and compared.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/ranks.h"
#include "pare/cli/subject.h"
#include "pare/cli/train_display.h"
#include "pare/ranks/shares.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"
#include "pare/train/run_folder.h"
#include "pare/train/token_shards.h"
#include "pare/train/train.h"

namespace pare {

namespace {

constexpr uint64_t largest_training_config = 64'000'000;

struct TrainFlags {
  std::string config, out;
  std::vector<std::string> changes;
  bool resume = false, print_config = false, prepare = false;
};

void print_keys(const Settings& settings) {
  const std::vector<ConfigKey> keys = train_config_keys();
  if (settings.json) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const ConfigKey& key : keys) {
      list.push_back({{"key", key.key}, {"default", key.fallback}, {"meaning", key.meaning}});
    }
    print_json({{"keys", list}});
    return;
  }
  std::string text;
  for (const ConfigKey& key : keys) {
    text += fmt::format("{} [{}]\n{}\n", key.key, key.fallback, wrapped(key.meaning, 4, "    "));
  }
  print_text(text);
}

nlohmann::ordered_json to_json(const TrainResult& r) {
  return {{"path", r.path},
          {"name", r.name},
          {"parameters", r.parameters},
          {"steps", r.steps},
          {"resumed_from", r.resumed_from},
          {"loss", r.loss},
          {"cross_entropy", r.cross_entropy},
          {"validation", r.validation},
          {"accuracy", r.accuracy},
          {"seconds", r.seconds},
          {"checkpoint", r.checkpoint}};
}

nlohmann::json read_configuration(const TrainFlags& flags) {
  if (!flags.config.empty()) {
    return parse_json(read_text_file(flags.config, largest_training_config), flags.config);
  }
  if (!flags.resume && !flags.changes.empty()) {
    return nlohmann::json::object();  // all of it is on the command line
  }
  refuse_if(!flags.resume, "no configuration was named: pare train CONFIG.json -o RUN (--print-config lists its keys)");
  if (!path_exists(std::filesystem::path(flags.out) / "config.json")) {
    throw InputError(fmt::format("{} is no run that could be continued: {}", quote(flags.out),
                                 path_exists(flags.out)
                                     ? "it has no config.json. For the runs of a sweep, name its configuration, too"
                                     : "nothing is there. To begin one: pare train CONFIG.json -o RUN"));
  }
  return read_run_json(flags.out, "config.json");
}

// Where what is wrong was written.
std::string subject_of(const TrainFlags& flags) {
  constexpr size_t most_shown = 3;
  if (flags.config.empty() && !flags.resume) {
    return "command line";
  }
  const std::string file = flags.config.empty() ? flags.out : flags.config;
  if (flags.changes.empty()) {
    return file;
  }
  return flags.changes.size() <= most_shown
             ? fmt::format("{} with {}", file, fmt::join(flags.changes, " "))
             : fmt::format("{} with {} changes of the command line", file, flags.changes.size());
}

// The text as tokens on disk, instead of a run.
void prepare_command(nlohmann::json written, const TrainFlags& flags, const std::string& subject,
                     const Settings& settings) {
  if (written.is_object()) {
    written.erase("sweep");  // whose runs read the same text
  }
  if (settings.seed_given) {
    set_key(written, "data.seed", settings.seed, find_architecture);  // all that is drawn here
  }
  const PreparedShards made = write_shards(train_config_from_json(written, subject, find_architecture),
                                           output_target(flags.out), chosen_device(settings));
  if (settings.json) {
    print_json({{"prepared",
                 {{"path", made.path},
                  {"dtype", made.dtype},
                  {"train_tokens", made.train_tokens},
                  {"validation_tokens", made.validation_tokens},
                  {"shards", made.shards}}}});
    return;
  }
  print_text(fmt::format("{}: {} tokens for training and {} for validation, as {} in {} file{}\n", escaped(made.path),
                         with_commas(made.train_tokens), with_commas(made.validation_tokens), made.dtype,
                         with_commas(made.shards), made.shards == 1 ? "" : "s"));
}

// --seed goes before what a file says, which is noted, but not before what was said beside it.
void set_seed(nlohmann::json& written, const TrainFlags& flags, const Settings& settings) {
  const auto change =
      std::ranges::find_if(flags.changes, [](const std::string& text) { return text.starts_with("seed="); });
  if (change != flags.changes.end()) {
    throw InputError(
        fmt::format("the seed is said twice, by --seed {} and by {}: leave one of them out", settings.seed, *change));
  }
  const nlohmann::json before = written.is_object() ? written.value("seed", nlohmann::json()) : nlohmann::json();
  if (!before.is_null() && before != settings.seed) {
    log_info(fmt::format("seed {} of --seed, not the {} of {}", settings.seed, json_shown(before),
                         flags.config.empty() ? flags.out : flags.config));
  }
  set_key(written, "seed", settings.seed, find_architecture);
}

// A sweep has seeds of its own, in whichever of its ways they are written.
void check_seeds(const std::vector<SweepRun>& runs, const Settings& settings) {
  for (const SweepRun& run : runs) {
    if (settings.seed_given && run.config.value("seed", nlohmann::json()) != settings.seed) {
      throw InputError(fmt::format(
          "the seed is said twice, by --seed {} and by the sweep, which has {} for {}: leave one of them out",
          settings.seed, json_shown(run.config.value("seed", nlohmann::json())), run.name));
    }
  }
}

// Of runs that are shared out, what each rank has of them, in the order of the runs.
nlohmann::ordered_json gathered(const nlohmann::ordered_json& own, const Communicator& ranks) {
  nlohmann::ordered_json all = nlohmann::ordered_json::object();
  for (const std::string& part : ranks.all_gather(own.dump())) {
    all.update(nlohmann::ordered_json::parse(part));
  }
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < all.size(); ++i) {
    list.push_back(all.at(std::to_string(i)));
  }
  return list;
}

std::string joined_json(const std::vector<TrainConfig>& configs) {
  std::string text;
  for (const TrainConfig& config : configs) {
    text += train_config_to_json(config).dump() + "\n";
  }
  return text;
}

void train_command(TrainFlags flags, const Settings& settings, const Communicator& ranks) {
  refuse_if(flags.out.empty(), "no folder for the run was named: pare train CONFIG.json -o RUN");
  if (flags.config.find('=') != std::string::npos) {  // a change, and the run's own configuration, or none at all
    flags.changes.insert(flags.changes.begin(), std::exchange(flags.config, ""));
  }
  nlohmann::json written = read_configuration(flags);
  const std::string subject = subject_of(flags);
  for (const std::string& change : flags.changes) {
    set_key(written, change, find_architecture);
  }
  if (settings.seed_given && !flags.prepare) {
    set_seed(written, flags, settings);
  }
  refuse_if(flags.prepare && flags.resume,
            "--prepare makes tokens and no run, so --resume has nothing to continue: leave one of them out");
  refuse_if(flags.prepare && !ranks.alone(), "--prepare is the work of one process: run it without the launcher");
  if (flags.prepare) {
    prepare_command(std::move(written), flags, subject, settings);
    return;
  }
  std::vector<SweepRun> runs = expand_sweep(written, subject, find_architecture);
  check_seeds(runs, settings);
  const bool sweep = written.is_object() && written.contains("sweep");
  std::vector<TrainConfig> configs;
  for (const SweepRun& run : runs) {  // all are read before the first one runs
    configs.push_back(
        train_config_from_json(run.config, sweep ? subject + ": " + run.name : subject, find_architecture));
  }
  check_alike(ranks, "configuration", joined_json(configs));
  const at::Device device = chosen_device(settings);
  const std::filesystem::path out = output_target(flags.out);
  std::error_code unknown;
  if (sweep && ranks.is_first() && std::filesystem::exists(out, unknown) && !flags.resume) {
    RunFolder::refuse_existing(out);
  }
  refuse_if(sweep && std::filesystem::exists(out / "data.json", unknown),
            "{} is a run, and a sweep is a folder of runs: choose another folder for it", quote(flags.out));
  const bool made = sweep && ranks.is_first() && !std::filesystem::exists(out, unknown);
  if (made) {
    check_target(out, OutputKind::folder, nullptr);
    if (!std::filesystem::create_directory(out, unknown)) {
      fail_io("create", out, unknown.value());
    }
  }
  ranks.barrier();  // the folder of a sweep is there
  SequencesCache data;
  nlohmann::ordered_json ended = nlohmann::ordered_json::object();  // by the number of the run
  for (size_t i = 0; i < runs.size(); ++i) {
    if (sweep && static_cast<int>(i) % ranks.size() != ranks.rank()) {
      continue;  // another rank's
    }
    TrainDisplay display(runs[i].name);
    const TrainOptions options{.folder = sweep ? out / runs[i].name : out,
                               .resume = flags.resume,
                               .device = device,
                               .ranks = sweep ? Communicator() : ranks,  // a sweep's runs are shared out whole
                               .report = [&](const TrainProgress& p) { display.show(p); },
                               .note = [](const std::string& line) { log_info(line); },
                               .warn =
                                   [&](const std::string& text) {
                                     if (sweep || ranks.is_first()) {  // what all of them see
                                       print_warnings({text});
                                     }
                                   }};
    TrainResult result;
    try {
      result = train(configs[i], data.open(configs[i]), options);
    } catch (const InputError& error) {
      if (!sweep) {
        throw;
      }
      ended[std::to_string(i)] = error.what();  // of one variant; the others have nothing to do with it
      continue;
    }
    ended[std::to_string(i)] = to_json(result);
    if (!settings.json && (sweep || ranks.is_first())) {
      print_text(fmt::format("{}: {} steps, loss {:.4f}, validation {:.4f} ({:.2f} % right), {}\n",
                             escaped(result.path), with_commas(result.steps), result.cross_entropy, result.validation,
                             100 * result.accuracy, human_time(result.seconds)));
    }
  }
  if (!sweep && !ranks.is_first()) {
    return;
  }
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  std::vector<std::string> failures;
  for (const nlohmann::ordered_json& run :
       sweep ? gathered(ended, ranks) : nlohmann::ordered_json::array({ended["0"]})) {
    if (run.is_string()) {
      failures.push_back(run.get<std::string>());
    } else {
      results.push_back(run);
    }
  }
  if (!ranks.is_first()) {
    return;
  }
  if (!failures.empty()) {
    if (made) {
      std::filesystem::remove(out, unknown);  // where no run began: nothing goes but an empty folder
    }
    std::string list;
    for (const std::string& failure : failures) {
      list += "\n  " + failure;
    }
    throw InputError(fmt::format("{} of {} runs came to no end:{}", failures.size(), runs.size(), list));
  }
  if (settings.json) {
    print_json({{"runs", results}});
  }
}

}  // namespace

void add_train(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("train", "Train an architecture described by one JSON file");
  auto flags = std::make_shared<TrainFlags>();
  command->add_option("CONFIG", flags->config, "the configuration [with --resume: the run's own]");
  command->add_option("CHANGES", flags->changes, "KEY=VALUE, such as optimiser.lr=3e-4");
  command->add_option("-o,--output", flags->out, "the run folder, or the folder of a sweep's runs")
      ->type_name("FOLDER");
  command->add_flag("--resume", flags->resume, "continue from the last checkpoint");
  command->add_flag("--prepare", flags->prepare, "only store tokens, or data.samples, for data.shards");
  command->add_flag("--print-config", flags->print_config, "every key with its default and meaning");
  command->footer(fmt::format(
      "Several ranks: mpirun -n 4 pare train CONFIG.json -o RUN{}\n"
      "Example: pare train sorting.json -o /tmp/sorting steps=500",
      has_process_groups() ? "" : fmt::format("; not here, since\n{}", wrapped(how_to_get_process_groups, 2, "  "))));
  command->callback([flags, &settings] {
    if (flags->print_config) {
      print_keys(settings);
      return;
    }
    as_ranks(settings, [&](const Communicator& ranks) { train_command(*flags, settings, ranks); });
  });
}

}  // namespace pare
