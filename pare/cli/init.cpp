// pare init: a randomly initialised model in the native format.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/arch/count.h"
#include "pare/arch/presets.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/replaceable.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/subject.h"
#include "pare/model/init.h"
#include "pare/support/error.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/output_place.h"

namespace pare {

namespace {

struct InitOptions {
  std::string what, out, dtype = "float32";
  bool generic = false, force = false, yes = false;
  uint64_t shard_bytes = 5'000'000'000;
};

constexpr uint64_t much = 10'000'000'000;

// So much is more often a mistake than a wish.
void check_size(const InitOptions& options, int64_t parameters, Dtype dtype, uint64_t bytes) {
  if (bytes <= much || options.yes) {
    return;
  }
  const uint64_t halves = static_cast<uint64_t>(parameters) * 2;
  throw InputError(fmt::format("{} takes {} in {}: --yes writes it all the same; {}a preset such as gpt2 is smaller",
                               quote(options.what), human_bytes(bytes), word(dtype),
                               halves < bytes ? fmt::format("--dtype bfloat16 takes {}, ", human_bytes(halves)) : ""));
}

void init_command(const InitOptions& options, const Settings& settings) {
  const Architecture architecture = find_architecture(options.what);
  const Dtype dtype = float_dtype_from_word(options.dtype).value();
  const int64_t parameters = count(architecture).total;
  const uint64_t bytes = static_cast<uint64_t>(bytes_of(parameters, dtype));
  check_size(options, parameters, dtype, bytes);
  check_input_stays(options.what, options.out);
  check_output(options.out, OutputKind::folder, options.force ? check_replaceable_model : ReplaceCheck(), bytes);
  const Weights weights =
      random_weights(architecture, settings.seed, dtype, options.generic ? Draw::generic : Draw::plain);
  print_warnings(write_native_model(options.out, {architecture, weights}, options.force, options.shard_bytes));
  if (settings.json) {
    print_json({{"path", options.out},
                {"parameters", parameters},
                {"bytes", bytes},
                {"dtype", options.dtype},
                {"seed", settings.seed},
                {"generic", options.generic}});
    return;
  }
  print_text(fmt::format("wrote {}: {} parameters, {} in {}, seed {}\n", escaped(options.out), with_commas(parameters),
                         human_bytes(bytes), options.dtype, settings.seed));
}

}  // namespace

void add_init(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("init", "Create a randomly initialised model");
  auto options = std::make_shared<InitOptions>();
  command->add_option("ARCHITECTURE", options->what, "a preset, or an Architecture as JSON")
      ->required()
      ->check(suggested(preset_names()));
  command->add_option("-o,--output", options->out, "the folder to write")->required()->type_name("FOLDER");
  command->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")
      ->transform(dtype_or())
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--generic", options->generic, "random gains and biases, too (for tests)");
  command->add_flag("--force", options->force, "overwrite a model folder that holds nothing else");
  command->add_flag("--yes", options->yes, "allow more than 10 GB");
  command->add_option("--shard-size", options->shard_bytes, "largest size of one file, such as 500MB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->check(whole_number(1, uint64_t{1} << 62))
      ->type_name("BYTES")
      ->capture_default_str();
  command->footer("Example: pare init gpt2 -o /tmp/gpt2-random --seed 1");
  command->callback([options, &settings] { init_command(*options, settings); });
}

}  // namespace pare
