// pare reproduce: a claim of a paper, run; claimed and measured side by side.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/report.h"
#include "pare/claims/trained.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/ranks.h"
#include "pare/cli/report_file.h"
#include "pare/cli/subject.h"
#include "pare/cli/train_display.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/log.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/sha256.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace {

struct AskedClaim {
  std::string claim, scale = "smoke", output, text, data;
  std::vector<std::string> models;
  std::optional<double> minutes;
  std::string runs;
  bool list = false, markdown = false, force = false;
};

constexpr const char* page_name = "README.md";
constexpr const char* results_name = "results.json";
constexpr const char* report_name = "report.html";

// With --force: what a run before this one wrote, and nothing else. Its results say which claim they are of.
void check_replaceable_results(const std::filesystem::path& folder) {
  const auto refuse = [&](const std::string& name, const char* why) {
    throw InputError(fmt::format("{} holds {}, which {}: --force replaces only what reproduce wrote",
                                 quote(shown(folder)), quote(name), why));
  };
  for (const std::filesystem::directory_entry& entry : entries_of(folder)) {
    const std::string name = entry.path().filename();
    const bool picture = name.starts_with("figure-") && name.ends_with(".svg");
    if (entry.is_symlink() || !entry.is_regular_file() ||
        (name != page_name && name != results_name && name != report_name && !picture)) {
      refuse(name, "is none of its files");
    }
  }
  constexpr uint64_t largest = 10'000'000;
  if (entries_of(folder).empty()) {
    return;
  }
  const std::string results = read_text_file(folder / results_name, largest);
  const nlohmann::json json = nlohmann::json::parse(results, nullptr, false);
  const bool known = json.is_object() && json.contains("claim") && json["claim"].is_string();
  const std::string id = known ? json["claim"].get<std::string>() : "";
  if (find_claim(id) == nullptr) {
    refuse(results_name, "names no claim");
  }
  if (!read_text_file(folder / page_name, largest).starts_with("# " + id + "\n")) {
    refuse(page_name, "is not the page of that claim");
  }
}

ReplaceCheck replace_check(const AskedClaim& asked) {
  return asked.force ? ReplaceCheck(check_replaceable_results) : ReplaceCheck();
}

// Of every file that is read; by name and not by path, since pages are shown to others.
std::vector<Fact> hashes_of_inputs(const AskedClaim& asked) {
  std::vector<Fact> hashes;
  for (const std::string& model : asked.models) {
    for (const Fact& file : hashes_of(describe_files(open_model(model)), name_of_path(model) + "/")) {
      hashes.push_back(file);
    }
  }
  if (!asked.text.empty()) {
    hashes.push_back({name_of_path(asked.text), sha256_of_file(asked.text)});
  }
  return hashes;
}

// A folder that has runs of this claim, or nothing, or that is not there yet.
void check_folder_of_runs(const AskedClaim& asked) {
  const std::filesystem::path folder = output_target(asked.output);
  if (!path_exists(folder)) {
    check_target(folder, OutputKind::folder, nullptr);
    return;
  }
  refuse_if(!is_folder(folder), "{} is no folder: name one for what {} trains", quote(shown(folder)), asked.claim);
  std::vector<std::filesystem::directory_entry> there = entries_of(folder);
  std::erase_if(there, [](const std::filesystem::directory_entry& entry) {  // of a run that was killed as it began
    return entry.path().filename().string().starts_with(fmt::format(".{}.", kept_runs_file));
  });
  refuse_if(!there.empty() && !path_exists(folder / kept_runs_file),
            "{} is not empty and has no {} to go on from: name another folder", quote(shown(folder)), kept_runs_file);
}

void write_folder(const AskedClaim& asked, const Measured& measured, const ReportOrigin& origin,
                  const std::vector<Fact>& hashes) {
  std::map<std::string, std::string> files = pictures_of(measured);
  files[page_name] = page_of(measured);
  files[results_name] = to_json(measured).dump(1) + "\n";
  files[report_name] = to_html(report_of(measured, origin.time, hashes));
  if (measured.claim->keeps_runs()) {  // they stay where they are
    for (const auto& [name, text] : files) {
      AtomicFile file(output_target(asked.output) / name, [](const std::filesystem::path&) {});
      write_text_file(file.temporary(), text);
      print_warnings(file.commit());
    }
  } else {
    AtomicFolder folder(asked.output, replace_check(asked));
    for (const auto& [name, text] : files) {
      write_text_file(folder.temporary() / name, text);
    }
    print_warnings(folder.commit());
  }
  log_info(fmt::format("wrote {}: {}, {} and {}", shown(asked.output), page_name, results_name, report_name));
}

// Flags that would say nothing are a misunderstanding.
void check_use(const AskedClaim& asked) {
  refuse_if(asked.list && !asked.claim.empty(), "--list shows all claims and runs none: give {} or --list",
            quote(asked.claim));
  refuse_if(
      asked.list && (!asked.models.empty() || !asked.text.empty() || !asked.output.empty() || !asked.data.empty() ||
                     asked.minutes || !asked.runs.empty() || asked.scale != "smoke"),
      "--list measures nothing: --model, --text, --data, --minutes, --runs, --scale and --output say nothing to it");
  refuse_if(asked.markdown && !asked.list,
            "--markdown is a form of the list: give --list too, or -o FOLDER for the page of a claim");
  refuse_if(asked.force && asked.output.empty(), "--force replaces what is in the folder of -o: give -o FOLDER too");
}

void check_training(const AskedClaim& asked, const PaperClaim& claim, uint64_t seed) {
  if (asked.minutes && !(*asked.minutes > 0)) {
    throw InputError(fmt::format("--minutes {}: expected a time above 0", *asked.minutes));
  }
  refuse_if(claim.keeps_runs() && seed != 0, "{} trains with the seeds of its plan: leave --seed out", claim.id);
  refuse_if(!claim.trains() && (!asked.data.empty() || asked.minutes || asked.scale == "full"),
            "{} trains nothing: --data, --minutes and --scale full say nothing to it", claim.id);
  refuse_if(!claim.paper_trained && asked.scale == "full",
            "the paper of {} trained nothing, so that it has no full scale: give --scale small", claim.id);
  refuse_if(!claim.keeps_runs() && (!asked.data.empty() || asked.minutes || !asked.runs.empty()),
            "{} {}: --data, --minutes and --runs say nothing to it", claim.id,
            claim.trains() ? "draws its data and is trained at once" : "trains nothing");
  refuse_if(claim.keeps_runs() && asked.force, "{} goes on in the folder of -o and replaces no run: leave --force out",
            claim.id);
  refuse_if(!asked.data.empty() && !is_folder(asked.data), "--data {}: there is no such folder", quote(asked.data));
  refuse_if(!asked.data.empty() && asked.scale == "smoke",
            "smoke scale draws its data: give --scale small too, or leave --data out");
  refuse_if(claim.keeps_runs() && asked.data.empty() && asked.scale != "smoke" && asked.output.empty(),
            "{} trains at scale {}: give --data FOLDER with the corpora, or -o FOLDER with runs "
            "that are judged as they are",
            claim.id, asked.scale);
}

ClaimScale scale_of(const std::string& word) {
  return word == "full" ? ClaimScale::full : word == "small" ? ClaimScale::small : ClaimScale::smoke;
}

std::vector<std::string> claim_names() {
  return mapped(claims(), &PaperClaim::id);
}

void print_list(const AskedClaim& asked, const Settings& settings) {
  if (settings.json) {
    print_json(claims_to_json());
  } else {
    print_text(asked.markdown ? page_of_claims() : list_of_claims());
  }
}

std::exception_ptr reproduce_command(const AskedClaim& asked, const Settings& settings, const Communicator& ranks) {
  check_use(asked);
  if (asked.list) {
    print_list(asked, settings);
    return nullptr;
  }
  refuse_if(asked.claim.empty(), "no claim was named: pare reproduce CLAIM, or --list to see them all");
  const PaperClaim* claim = find_claim(asked.claim);
  if (claim == nullptr) {
    throw InputError(fmt::format("unknown claim {}{}: 'pare reproduce --list' shows all", quote(asked.claim),
                                 did_you_mean(asked.claim, claim_names(), " (did you mean {}?)")));
  }
  if (!claim->of_activations && (!asked.models.empty() || !asked.text.empty())) {
    throw InputError(fmt::format("{} is measured on no model: --model and --text say nothing to it", claim->id));
  }
  refuse_if(asked.models.empty() && !asked.text.empty(),
            "--text is what the models of --model read: name one, or leave it out");
  check_training(asked, *claim, settings.seed);
  refuse_if(!ranks.alone() && !claim->keeps_runs(),
            "{} plans no runs of training that {} ranks could divide: run it without the launcher", claim->id,
            ranks.size());
  if (!ranks.is_first()) {
    // The first one writes what there is to write.
  } else if (!asked.output.empty() && claim->keeps_runs()) {
    check_folder_of_runs(asked);
  } else if (!asked.output.empty()) {
    check_target(asked.output, OutputKind::folder, replace_check(asked));  // before the work
  }
  const bool writes = !asked.output.empty() && ranks.is_first();
  const std::vector<Fact> hashes = writes ? hashes_of_inputs(asked) : std::vector<Fact>();
  std::optional<TrainDisplay> display;
  Trial trial{.scale = scale_of(asked.scale),
              .seed = settings.seed,
              .models = {asked.models.begin(), asked.models.end()},
              .text = asked.text,
              .data = asked.data,
              .device = settings.device,
              .minutes = asked.minutes,
              .runs = asked.runs,
              .ranks = ranks};
  if (claim->trains()) {
    chosen_device(settings);  // what there is to say of it
    trial.folder = asked.output.empty() ? std::filesystem::path() : output_target(asked.output);
    trial.note = [](const std::string& line) { log_info(line); };
    trial.progress = [&, shown = std::string()](const std::string& run, const TrainProgress& progress) mutable {
      if (run != shown) {
        display.emplace(run);
        shown = run;
      }
      display->show(progress);
    };
  }
  std::optional<Measured> found;
  try {
    found = measure(*claim, trial);
  } catch (const JudgedElsewhere& elsewhere) {
    return elsewhere.interrupted ? std::make_exception_ptr(Interrupted()) : nullptr;
  }
  const Measured& measured = *found;
  display.reset();
  const bool partial = !measured.outcome.partial.empty();
  if (!settings.json) {  // before what may fail: a disk that is full loses no measurement
    print_text(text_of(measured));
  }
  // What an earlier run measured is worth more than a part of it.
  if (writes && !(partial && std::filesystem::exists(asked.output))) {
    write_folder(asked, measured, report_origin(settings), hashes);
  }
  if (settings.json) {
    nlohmann::ordered_json document = to_json(measured);
    if (partial) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  }
  return partial ? std::make_exception_ptr(Interrupted()) : nullptr;
}

}  // namespace

void add_reproduce(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("reproduce", "Measure a paper's claim, and judge it");
  auto asked = std::make_shared<AskedClaim>();
  command->add_option("CLAIM", asked->claim, "one of --list")->check(suggested(claim_names()));
  command->add_flag("--list", asked->list, "every claim with its verdict");
  command->add_flag("--markdown", asked->markdown, "the list as the page experiments/README.md");
  command->add_option("--scale", asked->scale, "smoke: seconds; small: minutes; full: the paper's")
      ->check(one_of({"smoke", "small", "full"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--model", asked->models, "also measure this model; may be repeated")->type_name("FOLDER");
  command->add_option("--text", asked->text, "text for these models [random tokens]")->type_name("FILE");
  command->add_option("--data", asked->data, "corpora to train on, for claims that train")->type_name("FOLDER");
  command->add_option("--minutes", asked->minutes, "start no training that would end after N minutes");
  command->add_option("--runs", asked->runs, "train only these, such as 'norms*seed1'")->type_name("GLOB");
  command->add_option("-o,--output", asked->output, "folder for the page, the results and trained runs")
      ->type_name("FOLDER");
  command->add_flag("--force", asked->force, "overwrite the results of an earlier run");
  command->footer(R"(Ctrl-C keeps the models that were measured: they are shown, and decide nothing.
What was trained is kept in the folder of -o, which the same command goes on in.
Example: pare reproduce linear-recovery)");
  command->callback([asked, &settings] {
    as_one(settings, [&](const Communicator& ranks) { return reproduce_command(*asked, settings, ranks); });
  });
}

}  // namespace pare
