// pare audit: how many parameters a model has, where they are, what they cost, and which of them can go.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/presets.h"
#include "pare/audit/audit.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/report_file.h"
#include "pare/cli/subject.h"
#include "pare/report/pages.h"
#include "pare/verify/certificate.h"

namespace pare {

static void audit_command(const std::string& what, const std::string& adapter, Measure measure, Prove prove,
                          const ReportFlags& report, const Settings& settings) {
  check_report_file(report);
  const Subject subject = find_subject(what, settings, adapter);
  const Audit audit = subject.stored ? audit_model(*subject.stored, measure, prove)
                                     : audit_architecture(subject.architecture, measure, prove);
  if (report.wanted()) {
    const nlohmann::ordered_json described =
        subject.stored ? describe_files(*subject.stored) : nlohmann::ordered_json();
    write_report(report, audit_report(what, audit, described, report_origin(settings)));
  }
  if (settings.json) {
    print_json(to_json(audit));
  } else {
    print_text(text_of(audit));
  }
}

void add_audit(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("audit", "What can be removed, and why the rest cannot");
  auto what = std::make_shared<std::string>();
  auto adapter = std::make_shared<std::string>();
  auto conditions = std::make_shared<bool>(false);
  auto prove = std::make_shared<bool>(false);
  auto report = std::make_shared<ReportFlags>();
  command->add_option("MODEL", *what, "a folder, GGUF file, preset, or Architecture as JSON")
      ->required()
      ->check(suggested(preset_names()));
  command->add_flag("--conditions", *conditions, "measure every condition number; reads all weights");
  command->add_flag("--prove", *prove, "check the count by a Jacobian's rank, on a small twin");
  add_adapter_flag(*command, *adapter);
  add_report_flags(*command, *report);
  command->footer("Example: pare audit mistral-7b");
  command->callback([what, adapter, conditions, prove, report, &settings] {
    audit_command(*what, *adapter, *conditions ? Measure::always : Measure::usual, *prove ? Prove::yes : Prove::no,
                  *report, settings);
  });
}

}  // namespace pare
