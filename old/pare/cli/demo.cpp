// pare demo: the story, on generated data, in a folder that is gone afterwards.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/safetensors.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/text.h"

namespace pare {

namespace {

constexpr const char* small_architecture = R"({
  "name": "small", "width": 64, "vocab": 97, "context": 64,
  "embedding": { "position": "learned" },
  "blocks": [{
    "repeat": 4,
    "attention": { "heads": 1, "head_width": 64, "skip": true },
    "mlp": { "width": 256, "activation": "gelu", "skip": false } }],
  "head": { "tied": true }
}
)";

constexpr const char* what_next = R"(What to try next
  build/pare passes                          every pass, its theorem and what it needs
  build/pare audit FOLDER                    a Hugging Face checkpoint: what can go, and if not, why
  build/pare rewrite FOLDER -o OUT --passes auto
  build/pare audit skipless-mistral-7b       the table of Graef 2024, from the configuration
  build/pare --help                          every command and flag
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
      } catch (const VerificationFailed& failure) {
        output = fmt::format("pare: verification failed: {}\n", failure.what());
        exit_code = 3;
      }
      output = captured.text() + output;
    }
    std::string command = "pare";
    for (const std::string& argument : arguments) {
      command += argument.find_first_of("*{") == std::string::npos ? " " + argument : " '" + argument + "'";
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

// One weight of the model, one per cent larger.
void sabotage(const std::filesystem::path& folder, const std::string& tensor, uint64_t element) {
  const std::filesystem::path path = folder / "model.safetensors";
  const uint64_t place = SafetensorsFile(path).tensors().at(tensor).begin + element * sizeof(double);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  double weight = 0;
  file.seekg(static_cast<std::streamoff>(place)).read(reinterpret_cast<char*>(&weight), sizeof weight);
  weight *= 1.01;
  file.seekp(static_cast<std::streamoff>(place)).write(reinterpret_cast<const char*>(&weight), sizeof weight);
  if (!file.flush()) {
    fail_io("change", path, errno);
  }
}

void demo_command(const Settings& settings) {
  const Workplace workplace;
  Story story(settings);
  const std::string seed = std::to_string(settings.seed);

  story.say(fmt::format("1. A small model: a skip around each attention, none around an MLP, no norms.\n\n{}",
                        small_architecture));
  write_text_file("small.json", small_architecture);
  story.run({"init", "small.json", "-o", "model", "--dtype", "float64", "--seed", seed});

  story.say("2. What can it do without?\n");
  story.run({"audit", "model"});

  story.say("3. Its queries. The rewrite is checked against the original before it is kept.\n");
  story.run({"rewrite", "model", "-o", "smaller", "--passes", "eliminate_projection{target=q}"});

  story.say("4. The proof, by a command that knows nothing of how they were removed.\n");
  story.run({"verify", "model", "smaller", "--seed", seed});

  story.say("5. The same in bfloat16: no further off than bfloat16 itself puts the original.\n");
  story.run({"rewrite", "model", "-o", "half", "--passes", "eliminate_projection{target=q}", "--dtype", "bfloat16"});
  story.run({"verify", "model", "half", "--dtype", "bfloat16", "--seed", seed});

  story.say(
      "6. Sabotage: one weight made one per cent larger. The certificate no longer fits the\n"
      "   files; and without a certificate the functions differ.\n");
  sabotage("smaller", "blocks.1.mlp.up.weight", 1234);
  story.run({"verify", "model", "smaller", "--seed", seed});
  std::filesystem::remove("smaller/certificate.json");
  story.run({"verify", "model", "smaller", "--seed", seed});

  story.say(what_next);
  story.finish();
}

}  // namespace

void add_demo(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("demo", "The whole story in a minute, offline");
  command->footer("Example: pare demo");
  command->callback([&settings] { demo_command(settings); });
}

}  // namespace pare
