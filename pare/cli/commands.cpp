#include "pare/cli/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/log.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr const char* exit_codes = R"(Exit codes: 0 done; 1 bad input or usage, or the system refused (file, memory);
2 a pass refused; 3 verification failed; 70 a bug of pare; 130 interrupted.
'pare COMMAND --help' shows a command's own flags, and an example.)";

void add_settings(CLI::App& app, Settings& settings) {
  app.add_option("--device", settings.device, "cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "CPU threads [all cores]")
      ->check(CLI::Range(1, 4096).description(""))
      ->type_name("N");
  app.add_option("--seed", settings.seed, "of everything random")
      ->check(CLI::Range(0.0, 0x1p64).description(""))  // CLI11 alone takes -1 for 2^64 - 1
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--json", settings.json, "one JSON document on stdout, nothing else there");
  app.add_flag("--quiet", settings.quiet, "no progress and no notes on stderr");
}

std::vector<std::string> known_flags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::App* scope = &app; scope != nullptr; scope = scope->get_parent()) {
    for (const CLI::Option* option : scope->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        flags.push_back("--" + name);
      }
    }
  }
  return flags;
}

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = nearest(word, known);
  return near.empty() ? "" : fmt::format("; did you mean {}?", near);
}

[[noreturn]] void refuse_unexpected(const CLI::App& app, const std::string& word) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty() && !word.starts_with("-")) {
    const std::vector<std::string> names = command_names(app);
    throw InputError(fmt::format("there is no command {}{} (commands: {})", quote(word), suggestion(word, names),
                                 fmt::join(names, ", ")));
  }
  const CLI::App& scope = chosen.empty() ? app : *chosen.front();
  if (!word.starts_with("-")) {
    throw InputError(fmt::format("{} takes no further argument {} (see 'pare {} --help')", scope.get_name(),
                                 quote(word), scope.get_name()));
  }
  const std::string flag = word.substr(0, word.find('='));
  throw InputError(fmt::format("{} has no flag {}{} (see '{} --help')", chosen.empty() ? "pare" : scope.get_name(),
                               quote(flag), suggestion(flag, known_flags(scope)),
                               chosen.empty() ? "pare" : "pare " + scope.get_name()));
}

// Says which flags are everywhere in the help of each command, where the reader looks for them.
void describe(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    command->footer(command->get_footer() +
                    "\n\nEverywhere: --device cpu|cuda, --threads N, --seed N, --json, --quiet, --help");
    command->group("Commands");
    command->get_formatter()->column_width(26);
  }
}

}  // namespace

CLI::Validator one_of(const std::vector<std::string>& words) {
  CLI::IsMember validator(words);
  return validator.description("");  // the option's own text lists them
}

void run_command_line(const std::vector<std::string>& arguments) {
  Settings settings;
  CLI::App app("pare tells you what a transformer can provably do without.", "pare");
  app.get_formatter()->column_width(26);
  app.set_version_flag("--version", "pare " PARE_VERSION, "the version of pare");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.set_help_flag("-h,--help", "this text");
  app.fallthrough();
  app.footer(exit_codes);
  add_settings(app, settings);
  add_audit(app, settings);
  add_rewrite(app, settings);
  add_init(app, settings);
  add_run(app, settings);
  add_verify(app, settings);
  add_passes(app, settings);
  add_demo(app, settings);
  describe(app);
  app.parse_complete_callback([&settings] {
    set_quiet(settings.quiet);
    if (settings.threads > 0) {
      at::set_num_threads(settings.threads);
    }
  });
  try {
    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // the order CLI11 wants
    app.parse(std::move(reversed));
    if (app.get_subcommands().empty()) {
      throw InputError(fmt::format("a command is needed: {} (see 'pare --help')", fmt::join(command_names(app), ", ")));
    }
  } catch (const CLI::CallForHelp&) {
    print_text(app.help());
  } catch (const CLI::CallForVersion& version) {
    print_text(std::string(version.what()) + "\n");
  } catch (const CLI::ExtrasError& error) {
    const std::vector<std::string> unexpected = app.remaining(true);
    PARE_CHECK(!unexpected.empty(), error.what());
    refuse_unexpected(app, unexpected.front());
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    throw InputError(
        fmt::format("{} (see 'pare{} --help')", error.what(), chosen.empty() ? "" : " " + chosen.front()->get_name()));
  }
}

}  // namespace pare
