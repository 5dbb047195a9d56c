#include "pare/cli/commands.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/dtype.h"
#include "pare/cli/output.h"
#include "pare/cli/ranks.h"
#include "pare/passes/pass.h"
#include "pare/support/error.h"
#include "pare/support/log.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/progress.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr const char* exit_codes = R"(Exit codes: 0 done; 1 bad input or usage, or the system refused (file, memory);
2 a pass refused; 3 verification failed; 70 a bug of pare; 130 interrupted.
'pare help COMMAND' shows a command's own flags, and an example.)";

void add_settings(CLI::App& app, Settings& settings) {
  app.add_option("--device", settings.device, "cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--threads", settings.threads, "CPU threads [all cores]")
      ->check(whole_number(1, 4096))
      ->type_name("N");
  app.add_option("--seed", settings.seed, "of everything random")
      ->check(whole_number(0, std::numeric_limits<uint64_t>::max()))
      ->each([&settings](const std::string&) { settings.seed_given = true; })
      ->type_name("N")
      ->capture_default_str();
  app.add_flag("--json", settings.json, "one JSON document on stdout, nothing else there");
  app.add_flag("--quiet", settings.quiet, "no progress and no notes on stderr");
  app.add_flag("--ignore-unknown-keys", settings.ignore_unknown_keys,
               "read a config.json with keys that pare does not know");
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
  return mapped(app.get_subcommands({}), &CLI::App::get_name);
}

[[noreturn]] void refuse_command(const CLI::App& app, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  throw InputError(fmt::format("there is no command {}{} (commands: {})", quote(word), did_you_mean(word, names),
                               fmt::join(names, ", ")));
}

[[noreturn]] void refuse_unexpected(const CLI::App& app, const std::string& word) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (chosen.empty() && !word.starts_with("-")) {
    refuse_command(app, word);
  }
  const CLI::App& scope = chosen.empty() ? app : *chosen.front();
  refuse_if(!word.starts_with("-"), "{} takes no further argument {} (see 'pare {} --help')", scope.get_name(),
            quote(word), scope.get_name());
  const std::string flag = word.substr(0, word.find('='));
  throw InputError(fmt::format("{} has no flag {}{} (see '{} --help')", chosen.empty() ? "pare" : scope.get_name(),
                               quote(flag), did_you_mean(flag, known_flags(scope)),
                               chosen.empty() ? "pare" : "pare " + scope.get_name()));
}

// Before anything else: that another flag is missing, or a word too many, is what a mistyped one leads to.
void refuse_mistyped_flag(const CLI::App& app) {
  for (const std::string& word : app.remaining(true)) {
    if (word.starts_with("-")) {
      refuse_unexpected(app, word);
    }
  }
}

// An empty name is what a script's unset variable leaves: it is no way to leave a flag out.
void check_values(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      const std::vector<std::string>& values = option->results();
      if (std::ranges::find(values, "") != values.end()) {
        throw InputError(fmt::format("{} is empty: give it a value{} (see 'pare {} --help')", option->get_name(),
                                     option->get_required() ? "" : ", or leave it out", command->get_name()));
      }
    }
  }
}

// Says which flags are everywhere in the help of each command, where the reader looks for them.
void describe(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    command->footer(command->get_footer() +
                    "\n\nEverywhere: --device cpu|cuda, --threads N, --seed N, --json, --quiet, --help,\n"
                    "            --ignore-unknown-keys");
    command->group("Commands");
    command->get_formatter()->column_width(26);
  }
}

// The name of a validator says what to offer; its description would be shown in the help, where the option's own text
// already lists the words.
std::string offer_name(Offer kind, const std::vector<std::string>& words) {
  return fmt::format("{}:{}", static_cast<int>(kind), fmt::join(words, "|"));
}

CLI::Validator offering(Offer kind, const std::vector<std::string>& words) {
  return CLI::Validator([](std::string&) { return std::string(); }, "", offer_name(kind, words));
}

std::string help_of(const CLI::App& app) {
  return fitted(app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
}

// 'help audit' as 'audit --help': CLI11 would take the second word for a second command.
std::vector<std::string> with_help_as_flag(const CLI::App& app, std::vector<std::string> arguments) {
  const std::vector<std::string> names = command_names(app);
  const auto is_name = [&](const std::string& word) { return std::ranges::find(names, word) != names.end(); };
  const auto command = std::ranges::find_if(arguments, is_name);
  if (command == arguments.end() || *command != "help") {
    return arguments;
  }
  const auto subject =
      std::find_if(command + 1, arguments.end(), [](const std::string& word) { return !word.starts_with("-"); });
  if (subject == arguments.end()) {
    return arguments;
  }
  if (!is_name(*subject)) {
    refuse_command(app, *subject);
  }
  arguments.erase(command);
  arguments.emplace_back("--help");
  return arguments;
}

// Text for people; with --json it is a document too, since there always is one.
void print_page(const std::string& text, bool json) {
  if (json) {
    print_json({{"text", text}});
  } else {
    print_text(text);
  }
}

}  // namespace

bool has_flag(const std::vector<std::string>& arguments, const std::string& flag) {
  const auto end = std::ranges::find(arguments, "--");  // the rest is no flag
  return std::any_of(arguments.begin(), end,
                     [&](const std::string& word) { return word == flag || word == flag + "=true"; });
}

CLI::Validator whole_number(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) -> std::string {
        uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        return whole && value >= least && value <= most
                   ? ""
                   : fmt::format("expected a whole number from {} to {}, found {}", least, most, quote(text));
      },
      "");
}

CLI::Validator number_between(double least, double most, bool with_least) {
  return CLI::Validator(
      [=](const std::string& text) -> std::string {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool whole = error == std::errc() && end == text.data() + text.size();
        const bool inside = value <= most && (with_least ? value >= least : value > least);
        return whole && inside ? ""
                               : fmt::format("expected a number {} {:g} and at most {:g}, found {}",
                                             with_least ? "of at least" : "above", least, most, quote(text));
      },
      "");
}

CLI::Validator one_of(const std::vector<std::string>& words) {
  CLI::IsMember validator(words);
  return validator.description("").name(offer_name(Offer::only, words));
}

CLI::Validator suggested(const std::vector<std::string>& words) {
  return offering(Offer::or_path, words);
}

CLI::Validator list_of(const std::vector<std::string>& words) {
  return offering(Offer::list, words);
}

CLI::Validator dtype_or(const std::vector<std::string>& others) {
  std::vector<std::string> words = {"float64", "float32", "bfloat16", "float16"};
  words.insert(words.end(), others.begin(), others.end());
  const auto check = [others, words](std::string& value) -> std::string {
    if (std::ranges::find(others, value) != others.end()) {
      return "";
    }
    std::string typed = value.starts_with("torch.") ? value.substr(6) : value;
    std::ranges::transform(typed, typed.begin(), [](unsigned char c) { return std::tolower(c); });
    const std::optional<Dtype> dtype = float_dtype_from_word(typed);
    if (!dtype) {
      return fmt::format("{} is not one of {} (short names such as bf16, fp16 and half are known too)", quote(value),
                         fmt::join(words, ", "));
    }
    value = word(*dtype);
    return "";
  };
  return CLI::Validator(check, "", offer_name(Offer::only, words));
}

Offered offered_by(const std::string& validator_name) {
  if (validator_name.size() < 2 || validator_name[1] != ':') {
    return {};
  }
  Offered offered{.kind = static_cast<Offer>(validator_name[0] - '0'), .words = {}};
  for (size_t begin = 2; begin < validator_name.size();) {
    const size_t end = std::min(validator_name.find('|', begin), validator_name.size());
    offered.words.push_back(validator_name.substr(begin, end - begin));
    begin = end + 1;
  }
  return offered;
}

std::vector<std::string> pass_names() {
  return mapped(all_passes(), [](const Pass* pass) { return std::string(pass->id); });
}

void add_help(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("help", "This text, or that of a command");
  auto name = std::make_shared<std::string>();
  std::vector<std::string> names = command_names(app);
  command->add_option("COMMAND", *name, "a command [all]")->check(list_of(names));
  command->footer("Example: pare help audit");
  command->callback([&app, &settings] { print_page(help_of(app), settings.json); });
}

void run_command_line(const std::vector<std::string>& arguments) {
  Settings settings;
  settings.command = "pare";
  for (const std::string& argument : arguments) {
    settings.command += " " + shell_word(argument);
  }
  CLI::App app("pare tells you what a transformer can provably do without.", "pare");
  app.get_formatter()->column_width(26);
  app.set_version_flag("-V,--version", "pare " PARE_VERSION, "the version of pare");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.set_help_flag("-h,--help", "this text");
  app.fallthrough();
  app.footer(exit_codes);
  add_settings(app, settings);
  add_audit(app, settings);
  add_rewrite(app, settings);
  add_export(app, settings);
  add_init(app, settings);
  add_run(app, settings);
  add_generate(app, settings);
  add_bench(app, settings);
  add_verify(app, settings);
  add_probe(app, settings);
  add_train(app, settings);
  add_compare(app, settings);
  add_passes(app, settings);
  add_families(app, settings);
  add_presets(app, settings);
  add_reproduce(app, settings);
  add_demo(app, settings);
  add_help(app, settings);
  add_completion(app, settings);
  describe(app);
  app.parse_complete_callback([&app, &settings] {
    check_values(app);
    for (const CLI::App* command : app.get_subcommands()) {
      check_takes_ranks(command->get_name());
    }
    set_quiet(settings.quiet);
    show_progress(!settings.quiet);
    if (settings.threads > 0) {
      at::set_num_threads(settings.threads);
    }
  });
  try {
    std::vector<std::string> words = with_help_as_flag(app, arguments);
    std::ranges::reverse(words);  // the order CLI11 wants
    app.parse(std::move(words));
    if (app.get_subcommands().empty()) {
      throw InputError(fmt::format("a command is needed: {} (see 'pare --help')", fmt::join(command_names(app), ", ")));
    }
  } catch (const CLI::CallForHelp&) {
    print_page(fitted(app.help()), has_flag(arguments, "--json"));
  } catch (const CLI::CallForVersion& version) {
    print_page(std::string(version.what()) + "\n", has_flag(arguments, "--json"));
  } catch (const CLI::ExtrasError& error) {
    refuse_mistyped_flag(app);
    const std::vector<std::string> unexpected = app.remaining(true);
    PARE_CHECK(!unexpected.empty(), error.what());
    refuse_unexpected(app, unexpected.front());
  } catch (const CLI::ParseError& error) {
    refuse_mistyped_flag(app);
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    throw InputError(
        fmt::format("{} (see 'pare{} --help')", error.what(), chosen.empty() ? "" : " " + chosen.front()->get_name()));
  }
}

}  // namespace pare
