// pare presets: what every model that pare knows by name can lose, and what stands in the way of more.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/presets.h"
#include "pare/audit/survey.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/report_file.h"
#include "pare/report/pages.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

Architecture preset_called(const std::string& name) {
  const std::optional<Architecture> found = find_preset(name);
  refuse_if(!found, "there is no preset {}{} ('pare presets' lists all; of a folder or a file: 'pare audit')",
            quote(name), did_you_mean(name, preset_names()));
  return *found;
}

void presets_command(const std::vector<std::string>& asked, const ReportFlags& report, const Settings& settings) {
  check_report_file(report);
  const std::vector<std::string> names = asked.empty() ? preset_names() : asked;
  std::vector<Architecture> models;
  for (const std::string& name : names) {
    models.push_back(preset_called(name));
  }
  std::vector<SurveyRow> rows;
  Progress progress("models", names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    progress.advance();
    rows.push_back(survey(names[i], models[i]));
  }
  if (report.wanted()) {
    write_report(report, survey_report(rows, report_origin(settings)));
  }
  if (settings.json) {
    print_json(to_json(rows));
  } else {
    print_text(text_of(rows, !asked.empty()));
  }
}

}  // namespace

void add_presets(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("presets", "What well-known models can lose, in one table");
  auto names = std::make_shared<std::vector<std::string>>();
  auto report = std::make_shared<ReportFlags>();
  command->add_option("NAME", *names, "these, with details [all]")->check(list_of(preset_names()));
  add_report_flags(*command, *report);
  command->footer("Example: pare presets gpt2 llama-3.1-8b");
  command->callback([names, report, &settings] { presets_command(*names, *report, settings); });
}

}  // namespace pare
