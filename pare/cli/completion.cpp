// pare completion: a script for the shell, made from the application itself, so that it knows every command and flag.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

struct FlagEntry {
  std::vector<std::string> spellings;  // -o, --output
  std::string description;
  bool takes_value = false;
  Offered offered;
};

struct CommandEntry {
  std::string name, description;
  std::vector<FlagEntry> flags;
  Offered positional;  // of all its positional arguments
  bool takes_path = false;
};

Offered offered_for(CLI::Option& option) {
  for (int i = 0;; ++i) {
    try {
      const Offered offered = offered_by(option.get_validator(i)->get_name());
      if (offered.kind != Offer::nothing) {
        return offered;
      }
    } catch (const CLI::OptionNotFound&) {  // CLI11 has no other way to count them
      return {};
    }
  }
}

std::vector<FlagEntry> flags_of(CLI::App& app) {
  std::vector<FlagEntry> flags;
  for (CLI::Option* option : app.get_options()) {
    FlagEntry flag{.spellings = {}, .description = option->get_description(), .takes_value = false, .offered = {}};
    for (const std::string& name : option->get_snames()) {
      flag.spellings.push_back("-" + name);
    }
    for (const std::string& name : option->get_lnames()) {
      flag.spellings.push_back("--" + name);
    }
    if (flag.spellings.empty()) {
      continue;
    }
    flag.takes_value = option->get_items_expected_max() > 0;
    flag.offered = offered_for(*option);
    flags.push_back(std::move(flag));
  }
  return flags;
}

CommandEntry entry_of(CLI::App& command) {
  CommandEntry entry{.name = command.get_name(), .description = command.get_description(), .flags = flags_of(command)};
  for (CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) {
      continue;
    }
    const Offered offered = offered_for(*option);
    entry.positional.words.insert(entry.positional.words.end(), offered.words.begin(), offered.words.end());
    entry.takes_path |= offered.kind == Offer::nothing || offered.kind == Offer::or_path;
  }
  return entry;
}

struct Application {
  std::vector<CommandEntry> commands;
  std::vector<FlagEntry> flags;  // of every command

  std::vector<std::string> names() const { return mapped(commands, &CommandEntry::name); }
};

// --help is an option of every command, and is offered once, with those that are everywhere.
Application read_application(CLI::App& app) {
  Application result{.commands = {}, .flags = flags_of(app)};
  for (CLI::App* command : app.get_subcommands({})) {
    CommandEntry entry = entry_of(*command);
    std::erase_if(entry.flags, [](const FlagEntry& flag) { return flag.spellings.back() == "--help"; });
    result.commands.push_back(std::move(entry));
  }
  return result;
}

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) {
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return result + "'";
}

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::string spellings_of(const std::vector<FlagEntry>& flags) {
  std::vector<std::string> all;
  for (const FlagEntry& flag : flags) {
    all.insert(all.end(), flag.spellings.begin(), flag.spellings.end());
  }
  return joined(all);
}

// bash and zsh: "COMMAND FLAG" as the pattern of a case, and what to offer for the flag's value.
std::string value_cases(const Application& app) {
  std::string cases;
  const auto add = [&cases](const std::string& command, const FlagEntry& flag) {
    if (!flag.takes_value) {
      return;
    }
    const std::vector<std::string> patterns =
        mapped(flag.spellings, [&](const std::string& spelling) { return fmt::format("{}' {}'", command, spelling); });
    const char* kind = flag.offered.kind == Offer::list ? "list" : flag.offered.kind == Offer::only ? "only" : "path";
    cases += fmt::format("    {}) kind={} offer={} ;;\n", fmt::join(patterns, "|"), kind,
                         quoted(joined(flag.offered.words)));
  };
  for (const CommandEntry& command : app.commands) {
    for (const FlagEntry& flag : command.flags) {
      add(command.name, flag);
    }
  }
  for (const FlagEntry& flag : app.flags) {
    add("*", flag);
  }
  return cases;
}

std::string positional_cases(const Application& app) {
  std::string cases = fmt::format("      '') offer={} flags='' kind=only ;;\n", quoted(joined(app.names())));
  for (const CommandEntry& command : app.commands) {
    cases +=
        fmt::format("      {}) offer={} flags={} kind={} ;;\n", command.name, quoted(joined(command.positional.words)),
                    quoted(spellings_of(command.flags)), command.takes_path ? "path" : "only");
  }
  return cases;
}

// What bash and zsh do alike: from the words before the cursor to `kind` and `offer`.
std::string shared_part(const Application& app) {
  return fmt::format(R"(  for given in "${{before_cursor[@]}}"; do
    case "$given" in {}) command="$given"; break ;; esac
  done
  case "$command $before" in
{}    *)
      case "$command" in
{}      esac
      case "$word" in -*) offer="$flags {}" kind=only ;; esac
      ;;
  esac
)",
                     fmt::join(app.names(), "|"), value_cases(app), positional_cases(app), spellings_of(app.flags));
}

std::string bash_script(const Application& app) {
  return fmt::format(R"(# bash completion for pare, made by 'pare completion bash'. Now: source <(pare completion bash)
# For good: pare completion bash > ~/.local/share/bash-completion/completions/pare
_pare() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command='' offer='' flags='' kind='' given
  local -a before_cursor=("${{COMP_WORDS[@]:1:COMP_CWORD-1}}")
  # --flag=value comes in three words.
  if [[ $word == = ]]; then word=''; elif [[ $before == = ]]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
{}  if [[ $kind == list ]]; then
    local head=''
    if [[ $word == *,* ]]; then head="${{word%,*}},"; fi
    COMPREPLY=($(compgen -P "$head" -W "$offer" -- "${{word##*,}}"))
    return
  fi
  COMPREPLY=($(compgen -W "$offer" -- "$word"))
  if [[ $kind == path ]]; then
    compopt -o filenames 2>/dev/null
    local path
    while IFS= read -r path; do COMPREPLY+=("$path"); done < <(compgen -f -- "$word")
  fi
}}
complete -F _pare pare
)",
                     shared_part(app));
}

std::string zsh_script(const Application& app) {
  return fmt::format(R"(#compdef pare
# zsh completion for pare, made by 'pare completion zsh'. Now: source <(pare completion zsh)
# For good: pare completion zsh > _pare, in a folder of $fpath
_pare() {{
  local word="${{words[CURRENT]}}" before="${{words[CURRENT-1]}}" command='' offer='' flags='' kind='' given
  local -a before_cursor=("${{(@)words[2,CURRENT-1]}}")
  if [[ $word == --*=* ]]; then before="${{word%%=*}}"; word="${{word#*=}}"; compset -P '*='; fi
{}  if [[ $kind == list ]]; then
    compset -P '*,'
    compadd -S '' -- ${{=offer}}
    return
  fi
  compadd -- ${{=offer}}
  if [[ $kind == path ]]; then _files; fi
}}
if (( $+functions[compdef] )); then compdef _pare pare; fi
)",
                     shared_part(app));
}

std::string fish_flag(const std::string& condition, const FlagEntry& flag) {
  std::string line = fmt::format("complete -c pare -n {}", quoted(condition));
  for (const std::string& spelling : flag.spellings) {
    line += spelling.starts_with("--") ? " -l " + spelling.substr(2) : " -s " + spelling.substr(1);
  }
  const bool closed = flag.offered.kind == Offer::only || flag.offered.kind == Offer::list;
  if (flag.takes_value) {
    line += closed ? " -x" : " -r";
  }
  if (flag.offered.kind == Offer::list) {
    line += fmt::format(" -a {}", quoted(fmt::format("(__pare_list {})", joined(flag.offered.words))));
  } else if (!flag.offered.words.empty()) {
    line += fmt::format(" -a {}", quoted(joined(flag.offered.words)));
  }
  return line + fmt::format(" -d {}\n", quoted(flag.description));
}

std::string fish_script(const Application& app) {
  std::string script = R"(# fish completion for pare, made by 'pare completion fish'. Now: pare completion fish | source
# For good: pare completion fish > ~/.config/fish/completions/pare.fish
function __pare_list
    set -l head (string replace -r '[^,]*$' '' -- (commandline -ct))
    for word in $argv
        echo $head$word
    end
end
complete -c pare -f
)";
  const std::string none = fmt::format("not __fish_seen_subcommand_from {}", joined(app.names()));
  for (const CommandEntry& command : app.commands) {
    script +=
        fmt::format("complete -c pare -n {} -a {} -d {}\n", quoted(none), command.name, quoted(command.description));
  }
  for (const FlagEntry& flag : app.flags) {
    script += fish_flag("true", flag);
  }
  for (const CommandEntry& command : app.commands) {
    const std::string condition = fmt::format("__fish_seen_subcommand_from {}", command.name);
    if (command.takes_path) {
      script += fmt::format("complete -c pare -n {} -F\n", quoted(condition));
    }
    if (!command.positional.words.empty()) {
      script +=
          fmt::format("complete -c pare -n {} -a {}\n", quoted(condition), quoted(joined(command.positional.words)));
    }
    for (const FlagEntry& flag : command.flags) {
      script += fish_flag(condition, flag);
    }
  }
  return script;
}

}  // namespace

void add_completion(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("completion", "A script that completes command lines in your shell");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(one_of({"bash", "zsh", "fish"}));
  command->footer("Now, in bash: source <(pare completion bash)\nExample: pare completion fish > pare.fish");
  command->callback([&app, shell, &settings] {
    const Application application = read_application(app);
    const std::string script = *shell == "bash"  ? bash_script(application)
                               : *shell == "zsh" ? zsh_script(application)
                                                 : fish_script(application);
    if (settings.json) {
      print_json({{"shell", *shell}, {"text", script}});
    } else {
      print_text(script);
    }
  });
}

}  // namespace pare
