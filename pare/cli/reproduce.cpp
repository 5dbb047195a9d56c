// pare reproduce: a claim of a paper, run; claimed and measured side by side.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/model_folder.h"
#include "pare/claims/report.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/report_file.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/log.h"
#include "pare/support/sha256.h"
#include "pare/support/text.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace {

struct AskedClaim {
  std::string claim, scale = "smoke", output, text;
  std::vector<std::string> models;
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
    if (entry.is_symlink() || !entry.is_regular_file() ||
        (name != page_name && name != results_name && name != report_name)) {
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

void write_folder(const AskedClaim& asked, const Measured& measured, const ReportOrigin& origin,
                  const std::vector<Fact>& hashes) {
  AtomicFolder folder(asked.output, replace_check(asked));
  write_text_file(folder.temporary() / page_name, page_of(measured));
  write_text_file(folder.temporary() / results_name, to_json(measured).dump(1) + "\n");
  write_text_file(folder.temporary() / report_name, to_html(report_of(measured, origin.time, hashes)));
  print_warnings(folder.commit());
  log_info(fmt::format("wrote {}: {}, {} and {}", shown(asked.output), page_name, results_name, report_name));
}

// Flags that would say nothing are a misunderstanding.
void check_use(const AskedClaim& asked) {
  if (asked.list && !asked.claim.empty()) {
    throw InputError(fmt::format("--list shows all claims and runs none: give {} or --list", quote(asked.claim)));
  }
  if (asked.list && (!asked.models.empty() || !asked.text.empty() || !asked.output.empty())) {
    throw InputError("--list measures nothing: --model, --text and --output say nothing to it");
  }
  if (asked.markdown && !asked.list) {
    throw InputError("--markdown is a form of the list: give --list too, or -o FOLDER for the page of a claim");
  }
  if (asked.force && asked.output.empty()) {
    throw InputError("--force replaces what is in the folder of -o: give -o FOLDER too");
  }
}

std::vector<std::string> claim_names() {
  std::vector<std::string> names;
  for (const PaperClaim& claim : claims()) {
    names.push_back(claim.id);
  }
  return names;
}

void print_list(const AskedClaim& asked, const Settings& settings) {
  if (settings.json) {
    print_json(claims_to_json());
  } else {
    print_text(asked.markdown ? page_of_claims() : list_of_claims());
  }
}

void reproduce_command(const AskedClaim& asked, const Settings& settings) {
  check_use(asked);
  if (asked.list) {
    print_list(asked, settings);
    return;
  }
  if (asked.claim.empty()) {
    throw InputError("no claim was named: pare reproduce CLAIM, or --list to see them all");
  }
  const PaperClaim* claim = find_claim(asked.claim);
  if (claim == nullptr) {
    throw InputError(fmt::format("unknown claim {}{}: 'pare reproduce --list' shows all", quote(asked.claim),
                                 did_you_mean(asked.claim, claim_names(), " (did you mean {}?)")));
  }
  if (!claim->of_activations && (!asked.models.empty() || !asked.text.empty())) {
    throw InputError(fmt::format("{} is measured on no model: --model and --text say nothing to it", claim->id));
  }
  if (asked.models.empty() && !asked.text.empty()) {
    throw InputError("--text is what the models of --model read: name one, or leave it out");
  }
  if (!asked.output.empty()) {
    check_target(asked.output, OutputKind::folder, replace_check(asked));  // before the work
  }
  const std::vector<Fact> hashes = asked.output.empty() ? std::vector<Fact>() : hashes_of_inputs(asked);
  const ClaimScale scale = asked.scale == "small" ? ClaimScale::small : ClaimScale::smoke;
  const Measured measured =
      measure(*claim, {scale, settings.seed, {asked.models.begin(), asked.models.end()}, asked.text});
  const bool partial = !measured.outcome.partial.empty();
  // What an earlier run measured is worth more than a part of it.
  if (!asked.output.empty() && !(partial && std::filesystem::exists(asked.output))) {
    write_folder(asked, measured, report_origin(settings), hashes);
  }
  if (settings.json) {
    nlohmann::ordered_json document = to_json(measured);
    if (partial) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  } else {
    print_text(text_of(measured));
  }
  if (partial) {
    throw Interrupted();
  }
}

}  // namespace

void add_reproduce(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("reproduce", "A paper's claim, run: claimed beside measured");
  auto asked = std::make_shared<AskedClaim>();
  command->add_option("CLAIM", asked->claim, "one of --list")->check(suggested(claim_names()));
  command->add_flag("--list", asked->list, "every claim with its verdict");
  command->add_flag("--markdown", asked->markdown, "the list as the page experiments/README.md");
  command->add_option("--scale", asked->scale, "smoke: seconds; small: minutes, the paper's sizes")
      ->check(one_of({"smoke", "small"}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--model", asked->models, "activations of this model too; may be repeated")->type_name("FOLDER");
  command->add_option("--text", asked->text, "that these models read [drawn tokens]")->type_name("FILE");
  command->add_option("-o,--output", asked->output, "a folder for README.md, results.json and report.html")
      ->type_name("FOLDER");
  command->add_flag("--force", asked->force, "replace what an earlier run wrote there");
  command->footer(R"(Ctrl-C keeps the models that were measured: they are shown, and decide nothing.
Example: pare reproduce linear-recovery)");
  command->callback([asked, &settings] { reproduce_command(*asked, settings); });
}

}  // namespace pare
