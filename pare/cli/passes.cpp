// pare passes: every pass with its theorem, preconditions, options and what it saves.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/rewrite/pipeline.h"
#include "pare/support/mapped.h"
#include "pare/support/table.h"

namespace pare {

namespace {

std::string page_of(const Pass& pass) {
  return fmt::format("docs/theorems/{}.md", pass.id);
}

std::string text_of(const Pass& pass) {
  constexpr size_t indent = 12;
  std::string text = fmt::format("{}\n", pass.id);
  text += wrapped(pass.theorem, indent, "  theorem   ");
  text += wrapped(pass.reference, indent, "  from      ");
  text += wrapped(page_of(pass), indent, "  proof     ");
  text += wrapped(pass.saves, indent, "  saves     ");
  for (size_t i = 0; i < pass.preconditions.size(); ++i) {
    text += wrapped(fmt::format("P{} {}", i + 1, pass.preconditions[i]), indent + 3,
                    i == 0 ? "  needs     " : "            ");
  }
  for (const PassOption& option : pass.options) {
    text += wrapped(fmt::format("{}={} [{}]", option.name, option.values, option.fallback), indent, "  option    ");
  }
  return text;
}

nlohmann::ordered_json to_json(const Pass& pass) {
  nlohmann::ordered_json json = {
      {"id", pass.id},         {"theorem", pass.theorem}, {"reference", pass.reference},
      {"page", page_of(pass)}, {"saves", pass.saves},     {"preconditions", pass.preconditions}};
  json["options"] = nlohmann::ordered_json::array();
  for (const PassOption& option : pass.options) {
    json["options"].push_back({{"name", option.name}, {"values", option.values}, {"default", option.fallback}});
  }
  return json;
}

void passes_command(const std::string& id, const Settings& settings) {
  std::vector<const Pass*> shown = all_passes();
  if (!id.empty()) {
    shown = {parse_passes(id).front().pass};
  }
  if (settings.json) {
    const nlohmann::ordered_json list = mapped(shown, [](const Pass* pass) { return to_json(*pass); });
    print_json({{"passes", list}});
    return;
  }
  const std::vector<std::string> texts = mapped(shown, [](const Pass* pass) { return text_of(*pass); });
  print_text(fmt::format("{}\nThe papers: docs/papers.md\n", fmt::join(texts, "\n")));
}

}  // namespace

void add_passes(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("passes", "Every pass: its theorem, what it needs, what it saves");
  auto id = std::make_shared<std::string>();
  command->add_option("ID", *id, "one pass [all]")->check(list_of(pass_names()));
  command->footer("Example: pare passes eliminate_projection");
  command->callback([id, &settings] { passes_command(*id, settings); });
}

}  // namespace pare
