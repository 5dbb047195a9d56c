// pare export: a model for transformers, llama.cpp or onnxruntime, verified before it has a name.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/question.h"
#include "pare/cli/subject.h"
#include "pare/export/export.h"
#include "pare/support/log.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/table.h"

namespace pare {

namespace {

constexpr const char* blocks_word = "q8_0";

struct ExportFlags {
  std::string model, out, to, dtype = "keep", family;
  QuestionFlags question;
  bool follow_links = false, force = false;
  uint64_t shard_bytes = ExportOptions{}.shard_bytes;
};

ExportOptions options_of(const ExportFlags& flags, const Settings& settings, const ModelFolder& source) {
  ExportOptions options;
  options.format = flags.to == "hf" ? ExportFormat::hf : flags.to == "gguf" ? ExportFormat::gguf : ExportFormat::onnx;
  options.q8_0 = flags.dtype == blocks_word;
  options.dtype = float_dtype_from_word(flags.dtype);
  options.family = flags.family;
  QuestionFlags question = flags.question;
  if (options.format == ExportFormat::gguf) {  // of --text, and written into the file
    options.tokenizer = question.text.tokenizer;
    question.text.tokenizer = question.text.text.empty() ? "" : question.text.tokenizer;
  }
  options.follow_links = flags.follow_links;
  options.force = flags.force;
  options.question = read_question_file(question, source);
  options.random = flags.question.random > 0 ? flags.question.random : options.random;
  options.budget = flags.question.budget;
  options.seed = settings.seed;
  options.device = chosen_device(settings);
  options.shard_bytes = flags.shard_bytes;
  return options;
}

void print_result(const std::string& out, const Exported& exported) {
  const Verification& v = exported.verification;
  const double change = 100 * (static_cast<double>(exported.bytes) / static_cast<double>(exported.source_bytes) - 1);
  std::string text = fmt::format("wrote {}: {} bytes of weights, {} in the original ({:+.2f} %), in {}\n", escaped(out),
                                 with_commas(static_cast<int64_t>(exported.bytes)),
                                 with_commas(static_cast<int64_t>(exported.source_bytes)), change,
                                 human_time(exported.writing_seconds));
  text += fmt::format("read by {}\n", exported.reader);
  for (const std::string& note : exported.notes) {
    text += fmt::format("  {}\n", note);
  }
  text += fmt::format("read back and compared in {}: {}{}\n", human_time(exported.verifying_seconds), word(v.verdict),
                      v.tokens > 0 && !v.quantisation
                          ? fmt::format(", relative error {:.2g} on {} tokens", v.metrics.max_relative_logit_error,
                                        with_commas(v.tokens))
                          : "");
  print_text(fitted(text));
}

void export_command(const ExportFlags& flags, const Settings& settings) {
  const ModelFolder source = open_and_warn(flags.model, settings);
  const Exported exported = export_model(source, flags.out, options_of(flags, settings, source));
  print_warnings(exported.warnings);
  print_warnings(left_behind_lines(exported.companions));
  if (settings.json) {
    print_json(exported.certificate);
  } else {
    print_result(flags.out, exported);
  }
}

}  // namespace

void add_export(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("export", "Take a model to transformers, llama.cpp, onnxruntime");
  auto flags = std::make_shared<ExportFlags>();
  command->add_option("MODEL", flags->model, "a model folder, or a GGUF file; it is never changed")->required();
  command->add_option("-o,--output", flags->out, "the folder to write")->required()->type_name("FOLDER");
  command->add_option("--to", flags->to, "hf (transformers), gguf (llama.cpp) or onnx (onnxruntime)")
      ->required()
      ->check(one_of({"hf", "gguf", "onnx"}))
      ->type_name("FORMAT");
  command->add_option("--dtype", flags->dtype, "keep, float32, bfloat16, float16, float64; q8_0 of gguf")
      ->transform(dtype_or({"keep", blocks_word}))
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--family", flags->family, "of transformers [hf: the first that can say it], or pare")
      ->type_name("NAME");
  add_question_flags(*command, flags->question, ExportOptions{}.random);
  command->add_flag("--follow-links", flags->follow_links, "copy what links out of the model folder point to");
  command->add_flag("--force", flags->force, "overwrite a folder that holds nothing but a model");
  command->add_option("--shard-size", flags->shard_bytes, "largest file of hf, or graph of onnx, such as 500MB")
      ->transform(CLI::AsSizeValue(true).description(""))
      ->check(whole_number(1, uint64_t{1} << 62))
      ->type_name("BYTES")
      ->capture_default_str();
  command->footer(R"(What is written is read back and compared with the model before it has its name;
certificate.json lies beside it. Exit code 2 when the format cannot say the
model, 3 when what was written is not the same function: then nothing is kept.
Example: pare export smaller -o for-transformers --to hf
         pare export model -o for-llama --to gguf --dtype q8_0)");
  command->callback([flags, &settings] { export_command(*flags, settings); });
}

}  // namespace pare
