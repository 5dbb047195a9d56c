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
  bool json = false;
  bool quiet = false;
};

// Parses and runs one command line (without the program's name). Errors are thrown, for main.cpp to print.
void run_command_line(const std::vector<std::string>& arguments);

// A check that a flag's value is one of these.
CLI::Validator one_of(const std::vector<std::string>& words);

// Each adds its command to the application. `settings` is filled when the command runs, and outlives it.
void add_audit(CLI::App& app, const Settings& settings);
void add_init(CLI::App& app, const Settings& settings);
void add_run(CLI::App& app, const Settings& settings);
void add_verify(CLI::App& app, const Settings& settings);
void add_passes(CLI::App& app, const Settings& settings);
void add_rewrite(CLI::App& app, const Settings& settings);
void add_demo(CLI::App& app, const Settings& settings);

}  // namespace pare
