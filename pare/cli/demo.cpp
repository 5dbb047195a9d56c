// pare demo: the story so far, on generated data, in a folder that is gone afterwards.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr const char* small_architecture = R"({
  "name": "small", "width": 64, "vocab": 256, "context": 128,
  "blocks": [{
    "repeat": 4,
    "attention": { "heads": 4, "kv_heads": 2, "head_width": 16,
                   "rope": { "theta": 10000, "width": 16 },
                   "norm": { "kind": "rms" } },
    "mlp": { "width": 172, "activation": "silu", "gated": true, "norm": { "kind": "rms" } } }],
  "final_norm": { "kind": "rms" },
  "head": { "tied": true }
}
)";

constexpr const char* what_next = R"(What to try next
  build/pare audit mistral-7b               any preset, any model folder
  build/pare init gpt2 -o /tmp/gpt2         random weights, in the native format
  build/pare run FOLDER --tokens ids.json -o out.safetensors --taps 'residual.*'
                                            a Hugging Face checkpoint, exactly
  build/pare --help                         every command and flag
)";

// A folder of its own, left for good when the demo ends, however it ends.
class Workplace {
 public:
  Workplace() : before_(std::filesystem::current_path()) {
    std::string name = (std::filesystem::temp_directory_path() / "pare-demo-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      fail_io("create", name, errno);
    }
    folder_ = name;
    std::filesystem::current_path(folder_);
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
    std::filesystem::remove_all(folder_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

 private:
  std::filesystem::path before_, folder_;
};

class Story {
 public:
  explicit Story(const Settings& settings) : settings_(settings) {}

  void say(const std::string& text) {
    if (!settings_.json) {
      print_text(text + "\n");
    }
  }

  // Runs a command line as the user would, and shows what it prints; an error is part of the story.
  void run(const std::vector<std::string>& arguments) {
    std::string output;
    int exit_code = 0;
    {
      const CapturedOutput captured;
      try {
        run_command_line(arguments);
      } catch (const InputError& error) {
        output = fmt::format("pare: error: {}\n", error.what());
        exit_code = 1;
      }
      output = captured.text() + output;
    }
    std::string command = "pare";
    for (const std::string& argument : arguments) {
      command += argument.find('*') == std::string::npos ? " " + argument : " '" + argument + "'";
    }
    say(fmt::format("$ {}\n{}{}", command, output, exit_code == 0 ? "" : fmt::format("(exit code {})\n", exit_code)));
    steps_.push_back({{"command", command}, {"exit_code", exit_code}, {"output", output}});
  }

  void finish() {
    if (settings_.json) {
      print_json({{"steps", steps_}});
    }
  }

 private:
  const Settings& settings_;
  nlohmann::ordered_json steps_ = nlohmann::ordered_json::array();
};

std::string random_tokens(uint64_t seed) {
  std::mt19937_64 random(seed);
  nlohmann::json lists = nlohmann::json::array();
  for (size_t length : {16, 16, 64}) {
    std::vector<uint64_t> ids(length);
    for (uint64_t& id : ids) {
      id = random() % 256;
    }
    lists.push_back(ids);
  }
  return lists.dump();
}

void cut_off(const std::filesystem::path& file, uint64_t bytes) {
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - bytes);
}

void demo_command(const Settings& settings) {
  const Workplace workplace;
  Story story(settings);
  const std::string seed = std::to_string(settings.seed);

  story.say(
      "1. What a model costs, from its configuration alone. This one has no skips and no\n"
      "   norms, so its query and output matrices can be merged into their neighbours.\n");
  story.run({"audit", "skipless-mistral-7b"});

  story.say(fmt::format("2. An architecture is one value. small.json, where what is left out has a default:\n\n{}",
                        small_architecture));
  write_text_file("small.json", small_architecture);
  story.run({"init", "small.json", "-o", "model", "--seed", seed});
  story.run({"audit", "model"});

  story.say("3. One executor runs every architecture, and shows any intermediate.\n");
  write_text_file("ids.json", random_tokens(settings.seed));
  story.run({"run", "model", "-o", "out.safetensors", "--tokens", "ids.json", "--taps", "residual.*"});

  story.say(
      "4. A checkpoint is untrusted input. Here is the same model with its last 1000 bytes\n"
      "   missing, and an architecture with two mistakes.\n");
  std::filesystem::copy("model", "broken", std::filesystem::copy_options::recursive);
  cut_off("broken/model.safetensors", 1000);
  story.run({"run", "broken", "-o", "out2.safetensors", "--tokens", "ids.json"});
  std::string wrong = small_architecture;
  wrong.replace(wrong.find("\"kv_heads\": 2"), 13, "\"kv_heads\": 3");
  wrong.replace(wrong.find("\"width\": 16 }"), 13, "\"width\": 15 }");
  write_text_file("wrong.json", wrong);
  story.run({"audit", "wrong.json"});

  story.say(what_next);
  story.finish();
}

}  // namespace

void add_demo(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("demo", "The story so far, offline, in under a minute");
  command->footer("Example: pare demo");
  command->callback([&settings] { demo_command(settings); });
}

}  // namespace pare
