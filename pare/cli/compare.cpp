// pare compare: training runs side by side, where that is fair.

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/train/compare.h"

namespace pare {

void add_compare(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("compare", "Training runs side by side, if they saw the same data");
  auto runs = std::make_shared<std::vector<std::string>>();
  command->add_option("RUN", *runs, "run folders; others are compared with the first")->required();
  command->footer("Example: pare compare /tmp/sweep/baseline-seed0 /tmp/sweep/no-query-seed0");
  command->callback([runs, &settings] {
    const RunComparison comparison = compare_runs(*runs);
    if (settings.json) {
      print_json(comparison_json(comparison));
    } else {
      print_text(comparison_text(comparison));
    }
  });
}

}  // namespace pare
