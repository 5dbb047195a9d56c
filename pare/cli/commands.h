#pragma once
// The commands: one file each. A command parses its own flags, calls the library and prints a result.

#include <cstdint>
#include <string>
#include <vector>

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace pare {

// The flags that every command takes.
struct Settings {
  std::string device = "cpu";
  int threads = 0;  // 0: as many as the machine has cores
  uint64_t seed = 0;
  bool seed_given = false;  // by --seed
  bool json = false;
  bool quiet = false;
  std::string command;               // as it was given, for reports
  bool ignore_unknown_keys = false;  // of a model's config.json
};

// Parses and runs one command line (without the program's name). Errors are thrown, for main.cpp to print.
void run_command_line(const std::vector<std::string>& arguments);

// Whether a flag without value is among the arguments, also of a command line that cannot be parsed.
bool has_flag(const std::vector<std::string>& arguments, const std::string& flag);

// Checks of a value, which also tell `pare completion` what to offer for it.
CLI::Validator one_of(const std::vector<std::string>& words);     // one of these
CLI::Validator suggested(const std::vector<std::string>& words);  // anything: one of these, or a path
CLI::Validator list_of(const std::vector<std::string>& words);    // anything: these, comma-separated
// A type of floats, or one of the other words. Short names (bf16, half, ...) become the long ones: for transform().
CLI::Validator dtype_or(const std::vector<std::string>& others = {});

// A whole number from `least` to `most`, said so where it is not.
CLI::Validator whole_number(uint64_t least, uint64_t most);

// A number from `least` to `most`, without the first where it is left out.
CLI::Validator number_between(double least, double most, bool with_least);

// What a validator above offers, read back from the application.
enum class Offer { nothing, only, or_path, list };
struct Offered {
  Offer kind = Offer::nothing;
  std::vector<std::string> words;
};
Offered offered_by(const std::string& validator_name);

std::vector<std::string> pass_names();

// Each adds its command to the application. `settings` is filled when the command runs, and outlives it.
void add_audit(CLI::App& app, const Settings& settings);
void add_init(CLI::App& app, const Settings& settings);
void add_run(CLI::App& app, const Settings& settings);
void add_generate(CLI::App& app, const Settings& settings);
void add_bench(CLI::App& app, const Settings& settings);
void add_verify(CLI::App& app, const Settings& settings);
void add_probe(CLI::App& app, const Settings& settings);
void add_train(CLI::App& app, const Settings& settings);
void add_compare(CLI::App& app, const Settings& settings);
void add_passes(CLI::App& app, const Settings& settings);
void add_families(CLI::App& app, const Settings& settings);
void add_presets(CLI::App& app, const Settings& settings);
void add_rewrite(CLI::App& app, const Settings& settings);
void add_export(CLI::App& app, const Settings& settings);
void add_reproduce(CLI::App& app, const Settings& settings);
void add_demo(CLI::App& app, const Settings& settings);
void add_help(CLI::App& app, const Settings& settings);
void add_completion(CLI::App& app, const Settings& settings);

}  // namespace pare
