// pare demo: the story, on generated data: train, audit, rewrite, verify, sabotage.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/safetensors.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// Two models without norms, which learn to sort: one has skips around its attentions, the other no skip at all, and
// attention that starts as the identity. Both have matrices that they need to train and not to run.
constexpr const char* training = R"({
  "task": "sorting", "data": { "length": 6 },
  "architecture": {
    "width": 32, "vocab": 11, "context": 16, "embedding": { "position": "learned" },
    "blocks": [{
      "repeat": 2,
      "attention": { "heads": 4, "head_width": 8 },
      "mlp": { "width": 128, "activation": "gelu", "skip": false } }] },
  "init": { "recipe": "orthogonal" },
  "steps": 400, "optimiser": { "lr": 3e-3, "warmup": 40 }, "evaluate": { "every": 200 },
  "sweep": { "variants": {
    "attention-skip": {},
    "skipless": {
      "architecture.blocks.*.attention.skip": false,
      "architecture.blocks.*.attention.shaped": true } } }
}
)";

constexpr const char* what_next = R"(What to try next
  pare passes                          every pass, its theorem and what it needs
  pare audit FOLDER                    a Hugging Face checkpoint: what can go, and if not, why
  pare rewrite FOLDER -o OUT --passes auto
  pare audit skipless-mistral-7b       the table of Graef 2024, from the configuration
  pare --help                          every command and flag
)";

// A folder of its own: the one that was named, or one that is gone when the demo ends, however it ends.
class Workplace {
 public:
  explicit Workplace(const std::string& kept) : before_(std::filesystem::current_path()) {
    if (kept.empty()) {
      std::filesystem::current_path(scratch_.emplace("demo").path());
      return;
    }
    const std::filesystem::path folder = output_target(kept);
    check_target(folder, OutputKind::folder, [](const std::filesystem::path& there) {
      throw InputError(
          fmt::format("{} exists already: the demo replaces nothing, name another folder", quote(there.string())));
    });
    std::error_code failed;
    if (!std::filesystem::create_directory(folder, failed)) {
      fail_io("create", folder, failed.value());
    }
    std::filesystem::current_path(folder);
  }
  ~Workplace() {
    std::error_code ignored;
    std::filesystem::current_path(before_, ignored);
  }
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;

 private:
  std::filesystem::path before_;
  std::optional<ScratchFolder> scratch_;
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
      command += " " + shell_word(argument);
    }
    say(fmt::format("$ {}\n{}{}", command, output, exit_code == 0 ? "" : fmt::format("(exit code {})\n", exit_code)));
    steps_.push_back({{"command", command}, {"exit_code", exit_code}, {"output", output}});
  }

  void finish(const std::string& kept_in) {
    if (settings_.json) {
      print_json({{"steps", steps_},
                  {"folder", kept_in.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(kept_in)}});
    }
  }

 private:
  const Settings& settings_;
  nlohmann::ordered_json steps_ = nlohmann::ordered_json::array();
};

// One weight of the model, one per cent larger.
void sabotage(const std::filesystem::path& folder, const std::string& tensor, uint64_t element) {
  const std::filesystem::path path = folder / "model.safetensors";
  const uint64_t place = SafetensorsFile(path).tensors().at(tensor).begin + element * sizeof(float);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  float weight = 0;
  file.seekg(static_cast<std::streamoff>(place)).read(reinterpret_cast<char*>(&weight), sizeof weight);
  weight *= 1.01F;
  file.seekp(static_cast<std::streamoff>(place)).write(reinterpret_cast<const char*>(&weight), sizeof weight);
  if (!file.flush()) {
    fail_io("change", path, errno);
  }
}

void demo_command(const std::string& out, const Settings& settings) {
  const Workplace workplace(out);
  Story story(settings);
  const std::string skipping = "runs/attention-skip/checkpoints/400", skipless = "runs/skipless/checkpoints/400";

  story.say(
      fmt::format("1. Two small models learn to sort: none has a norm, one has a skip around each\n"
                  "   attention, the other no skip at all.\n\n{}",
                  training));
  write_text_file("sorting.json", training);
  story.run({"train", "sorting.json", "-o", "runs", "--quiet"});

  story.say("2. What can the first do without?\n");
  story.run({"audit", skipping});

  story.say(
      "3. One matrix of query, key and value in each layer: the best conditioned goes into the\n   matrices around it. "
      "The rewrite is checked against the original before it is kept.\n");
  story.run({"rewrite", skipping, "-o", "smaller", "--passes", "eliminate_projection"});

  story.say("4. The proof, by a command that knows nothing of how it was removed.\n");
  story.run({"verify", skipping, "smaller", "--report", "report.html"});

  story.say("5. The second can do without its output matrices too: they go into the MLPs.\n");
  story.run({"rewrite", skipless, "-o", "least", "--passes", "merge_skipless"});

  story.say(
      "6. Sabotage: a copy with one weight made one per cent larger. The certificate no longer\n"
      "   fits the files; and without a certificate the functions differ.\n");
  std::filesystem::copy("smaller", "sabotaged", std::filesystem::copy_options::recursive);
  sabotage("sabotaged", "blocks.1.mlp.up.weight", 1234);
  story.run({"verify", skipping, "sabotaged"});
  std::filesystem::remove("sabotaged/certificate.json");
  story.run({"verify", skipping, "sabotaged", "--report", "sabotage.html"});

  if (!out.empty()) {
    story.say(fmt::format("All of it is in {}: open report.html, and sabotage.html beside it.\n", escaped(out)));
  }
  story.say(what_next);
  story.finish(out);
}

}  // namespace

void add_demo(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("demo", "Train, audit, rewrite, verify: a small example");
  const auto out = std::make_shared<std::string>();
  command->add_option("-o,--output", *out, "keep models and reports there [they are deleted]")->type_name("DIR");
  command->footer("Example: pare demo -o demo");
  command->callback([out, &settings] { demo_command(*out, settings); });
}

}  // namespace pare
