// pare bench: how fast models run, side by side.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "pare/arch/count.h"
#include "pare/arch/presets.h"
#include "pare/bench/bench.h"
#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/report_file.h"
#include "pare/cli/subject.h"
#include "pare/decode/decoder.h"
#include "pare/model/init.h"
#include "pare/report/pages.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/support/output_place.h"

namespace pare {

namespace {

struct BenchFlags {
  std::vector<std::string> models, dtypes;
  std::optional<int64_t> prompt, tokens, batch;
  int64_t rounds = BenchOptions().rounds;
  bool train = false;
  ReportFlags report;
};

// One of each type that was asked for, named by what sets it apart: the last part of its path, else all of it.
std::vector<BenchSubject> open_subjects(const BenchFlags& flags, const Settings& settings, at::Device device) {
  std::set<std::string> endings;
  for (const std::string& word : flags.models) {
    endings.insert(name_of_path(word));
  }
  const bool short_names = endings.size() == flags.models.size();
  std::vector<BenchSubject> subjects;
  for (const std::string& each : flags.models) {
    const Subject subject = find_subject(each, settings);
    std::vector<Dtype> dtypes;
    for (const std::string& dtype : flags.dtypes) {
      dtypes.push_back(*float_dtype_from_word(dtype));
    }
    if (dtypes.empty()) {
      dtypes.push_back(subject.stored ? usual_dtype(subject.stored->dtype, device) : Dtype::f32);
    }
    for (const Dtype dtype : dtypes) {
      // Speed does not depend on the numbers, so an Architecture alone gets random ones.
      const Model model = subject.stored
                              ? subject.stored->model
                              : Model{subject.architecture,
                                      random_weights(subject.architecture, settings.seed, Dtype::f32, Draw::repeated)};
      subjects.push_back({short_names ? name_of_path(each) : each, model, dtype, !subject.stored});
    }
  }
  std::set<Dtype> used;
  for (const BenchSubject& subject : subjects) {
    used.insert(subject.dtype);
  }
  std::set<std::string> taken;
  for (BenchSubject& subject : subjects) {
    if (used.size() > 1) {
      subject.name += fmt::format(", {}", word(subject.dtype));
    }
    const std::string name = subject.name;
    for (int n = 2; !taken.insert(subject.name).second; ++n) {  // the same twice: how far two that are one differ
      subject.name = fmt::format("{} again{}", name, n > 2 ? fmt::format(" ({})", n) : "");
    }
  }
  return subjects;
}

void bench_command(const BenchFlags& flags, const Settings& settings) {
  check_report_file(flags.report);
  for (const std::string& model : flags.models) {
    if (flags.report.wanted()) {
      check_input_stays(model, flags.report.file);
    }
  }
  refuse_if(flags.batch && !flags.train,
            "--batch is that of a training step, which nobody asked for: give --train too");
  const at::Device device = chosen_device(settings);
  const std::vector<BenchSubject> subjects = open_subjects(flags, settings, device);
  BenchOptions options{.device = device, .rounds = flags.rounds, .train = flags.train, .seed = settings.seed};
  options.prompt = flags.prompt.value_or(options.prompt);
  options.tokens = flags.tokens.value_or(options.tokens);
  options.batch = flags.batch.value_or(options.batch);
  options = fitted_to(options, subjects, flags.prompt.has_value(), flags.tokens.has_value());
  const Bench bench = run_bench(subjects, options);
  if (bench.interrupted) {
    forget_interrupt();
  }
  write_report(flags.report, bench_report(bench, report_origin(settings)));
  if (settings.json) {
    nlohmann::ordered_json document = bench_json(bench);
    if (bench.interrupted) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  } else {
    print_text(bench_text(bench));
  }
  if (bench.interrupted) {
    throw Interrupted();
  }
}

}  // namespace

void add_bench(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("bench", "Measure how fast models run, side by side");
  auto flags = std::make_shared<BenchFlags>();
  const BenchOptions usual;
  command->add_option("MODEL", flags->models, "model folders; presets and JSON get random weights")
      ->required()
      ->check(suggested(preset_names()));
  command->add_option("--dtype", flags->dtypes, "of weights; several: each model in each [as generate]")
      ->delimiter(',')
      ->transform(dtype_or())
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false)  // what follows is a model
      ->type_name("NAME,...");
  command->add_option("--prompt", flags->prompt, fmt::format("tokens read at once [{}, or what fits]", usual.prompt))
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("N");
  command
      ->add_option("--tokens", flags->tokens, fmt::format("tokens decoded after them [{}, or what fits]", usual.tokens))
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("N");
  command->add_flag("--train", flags->train, "time training steps too: about five times the memory");
  command->add_option("--batch", flags->batch, fmt::format("sequences of a training step [{}]", usual.batch))
      ->check(whole_number(1, 1'000'000'000))
      ->type_name("N");
  command->add_option("--rounds", flags->rounds, "rounds that count, after one that does not")
      ->check(whole_number(1, 1'000'000))
      ->type_name("N")
      ->capture_default_str();
  add_report_flags(*command, flags->report);
  command->footer(R"(Models take turns in each round, so that what the machine does meanwhile happens
to all of them. Ctrl-C ends it with the rounds that are done.
Example: pare bench original rewritten --dtype float32,bfloat16)");
  command->callback([flags, &settings] { bench_command(*flags, settings); });
}

}  // namespace pare
