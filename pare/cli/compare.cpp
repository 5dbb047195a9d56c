// pare compare: training runs side by side, where that is fair.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/report_file.h"
#include "pare/report/pages.h"
#include "pare/support/output_place.h"
#include "pare/train/compare.h"

namespace pare {

namespace {

struct CompareFlags {
  std::vector<std::string> runs;
  std::optional<double> margin;
  ReportFlags report;
};

void compare_command(const CompareFlags& flags, const Settings& settings) {
  check_report_file(flags.report);
  for (const std::string& run : flags.runs) {
    if (flags.report.wanted()) {
      check_input_stays(run, flags.report.file);
    }
  }
  const RunComparison comparison = compare_runs(flags.runs, flags.margin);
  if (flags.report.wanted()) {
    write_report(flags.report, compare_report(comparison, report_origin(settings)));
  }
  if (settings.json) {
    print_json(comparison_json(comparison));
  } else {
    print_text(comparison_text(comparison));
  }
}

}  // namespace

void add_compare(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("compare", "Compare training runs, paired by seed and data");
  auto flags = std::make_shared<CompareFlags>();
  command->add_option("RUN", flags->runs, "run folders; others are compared with the first")->required();
  command->add_option("--margin", flags->margin, "call losses within X nats equal\n[nothing is called equal]")
      ->type_name("X");
  add_report_flags(*command, flags->report, "-o,--report");
  command->footer("Example: pare compare /tmp/sweep/* -o /tmp/sweep.html");
  command->callback([flags, &settings] { compare_command(*flags, settings); });
}

}  // namespace pare
