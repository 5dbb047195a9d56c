#include "pare/export/export.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "pare/arch/count.h"
#include "pare/checkpoint/modeling_code.h"
#include "pare/checkpoint/replaceable.h"
#include "pare/export/gguf.h"
#include "pare/export/hf_folder.h"
#include "pare/export/onnx.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/json.h"
#include "pare/support/names.h"
#include "pare/support/output_place.h"
#include "pare/support/sha256.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace fs = std::filesystem;

namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

const char* word(ExportFormat format) {
  return format == ExportFormat::hf ? "hf" : format == ExportFormat::gguf ? "gguf" : "onnx";
}

// What lies at the output until it is named, and what its certificate says of it.
struct Written {
  std::map<std::string, std::string> companions;  // SHA-256 by name
  ordered_json candidate;
  UnusedDifference unused;
};

Question question_of(const ExportOptions& options) {
  return options.question.value_or(Question{.kind = "random"});
}

// What pare itself opens again.
void compare_as_model(const ModelFolder& source, const fs::path& folder, const ExportOptions& options,
                      Exported& exported, Written& written) {
  const ModelFolder candidate =
      open_model(folder, source.ignored_keys.empty() ? UnknownKeys::refuse : UnknownKeys::ignore);
  exported.warnings.insert(exported.warnings.end(), candidate.warnings.begin(), candidate.warnings.end());
  exported.verification = verify(source, candidate, question_of(options).inputs,
                                 {.seed = options.seed,
                                  .sequences = options.random,
                                  .budget = options.budget,
                                  .may_quantise = options.q8_0 || is_in_blocks(source),
                                  .device = options.device});
  exported.bytes = stored_bytes(candidate);
  written.candidate = describe_files(candidate);
  written.unused = compare_unused(source.unused, candidate.unused);
}

void write_hf(const ModelFolder& source, const fs::path& folder, const ExportOptions& options, Exported& exported,
              Written& written) {
  const HfFolder made = prepare_hf(source, options.family, options.dtype);
  written.companions = write_prepared(folder, source, made.prepared, exported.companions, options.shard_bytes);
  exported.reader =
      made.prepared.own_code
          ? fmt::format("transformers, with trust_remote_code=True: {} is beside the weights", modeling_name)
          : fmt::format("transformers, as a model of its family {}", made.family);
  exported.notes = made.notes;
}

GgufType gguf_type(const ModelFolder& source, const ExportOptions& options) {
  if (options.q8_0 || (!options.dtype && is_q8_0(source))) {
    return GgufType::q8_0;
  }
  const Dtype dtype = options.dtype.value_or(source.dtype);
  return dtype == Dtype::f16 ? GgufType::f16 : dtype == Dtype::bf16 ? GgufType::bf16 : GgufType::f32;
}

void write_gguf_folder(const ModelFolder& source, const fs::path& folder, const ExportOptions& options,
                       Exported& exported) {
  const GgufType type = gguf_type(source, options);
  exported.notes =
      write_gguf(folder / "model.gguf", source, type, options.tokenizer.empty() ? source.path : options.tokenizer);
  if (!options.dtype && source.dtype == Dtype::f64) {
    exported.notes.emplace_back("llama.cpp has no float64: in float32");
  }
  exported.reader = "llama.cpp";
}

void write_onnx_folder(const ModelFolder& source, const fs::path& folder, const ExportOptions& options,
                       Exported& exported, Written& written) {
  const Dtype dtype = options.dtype.value_or(source.dtype == Dtype::f16 ? Dtype::f16 : Dtype::f32);
  exported.notes = write_onnx(folder, source.model, dtype, std::min(options.shard_bytes, onnx_external_above));
  if (!options.dtype && source.dtype != dtype) {
    exported.notes.push_back(fmt::format("stored in {}, where the source has {}", word(dtype), word(source.dtype)));
  }
  written.companions = copy_companions(source.path, exported.companions, folder);
  exported.reader = "onnxruntime";
}

// No model that pare opens: the graph is run, and its answers are compared.
void compare_as_graph(const ModelFolder& source, const fs::path& folder, const ExportOptions& options,
                      Exported& exported, Written& written) {
  Question question = question_of(options);
  if (question.inputs.empty()) {
    question.inputs = draw_inputs(source.model.architecture, options.random, drawn_seed(source, source, options.seed));
  }
  const GraphAnswers answers = run_onnx(folder / "model.onnx", source.model.architecture, question.inputs);
  exported.notes.insert(exported.notes.end(), answers.notes.begin(), answers.notes.end());
  exported.verification = verify_answers(source, question.inputs, answers.given,
                                         {.dtype = answers.dtype, .seed = options.seed, .device = options.device});
  if (!options.question) {  // what a model says to random tokens is no loss of its own
    exported.verification.given = 0;
    exported.verification.statistics.reset();
    exported.verification.warnings.clear();
  }
  std::map<std::string, std::string> hashes;
  for (const fs::directory_entry& entry : entries_of(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model.onnx")) {
      hashes[name] = sha256_of_file(entry.path());
      exported.bytes += fs::file_size(entry.path());
    }
  }
  written.candidate = {{"path", folder.string()},
                       {"family", "onnx"},
                       {"parameters", count(source.model.architecture).total},
                       {"bytes", exported.bytes},
                       {"dtype", word(answers.dtype)},
                       {"files", hashes},
                       {"ignored_keys", ordered_json::array()},
                       {"unused_tensors", to_json(UnusedTensors{})}};
  written.unused = compare_unused(source.unused, {});
}

void check_options(const ModelFolder& source, const ExportOptions& options) {
  const bool hf = options.format == ExportFormat::hf, gguf = options.format == ExportFormat::gguf;
  refuse_if(options.q8_0 && !gguf, "--dtype q8_0: only --to gguf has it; --to {} takes floats", word(options.format));
  refuse_if(!options.family.empty() && !hf, "--family belongs to --to hf, found --to {}", word(options.format));
  const Dtype dtype = options.dtype.value_or(Dtype::f32);
  refuse_if(options.format == ExportFormat::onnx && dtype != Dtype::f32 && dtype != Dtype::f16,
            "--dtype {}: --to onnx writes float32 or float16", word(dtype));
  refuse_if(gguf && options.dtype == Dtype::f64,
            "--dtype float64: llama.cpp has none; float32, float16, bfloat16 or q8_0");
  refuse_if(source.adapter.has_value(), "merge the adapter first: pare rewrite MODEL --adapter FOLDER -o MERGED");
}

[[noreturn]] void refuse_result(const fs::path& output, const Exported& exported) {
  const Verification& v = exported.verification;
  std::vector<ErrorReason> reasons;
  for (const SettingDifference& d : v.differences) {
    reasons.push_back({fmt::format("{} is {}, expected {}", d.setting, d.candidate, d.reference)});
  }
  for (const ComparedTensor& tensor : v.apart) {
    reasons.push_back({fmt::format("{}: {}", tensor.tensor, tensor.reason), {{"where", tensor.tensor}}});
  }
  throw VerificationFailed(
      fmt::format("{} was written, read back and found to be another function (relative error {:.2g}, allowed {:.2g}): "
                  "nothing is kept",
                  quote(shown(output)), v.metrics.max_relative_logit_error, v.allowed),
      std::move(reasons));
}

}  // namespace

Exported export_model(const ModelFolder& given, const fs::path& output, const ExportOptions& options) {
  const ModelFolder source = options.format == ExportFormat::gguf ? gguf_source(given) : given;
  check_options(source, options);
  const ReplaceCheck replace = options.force ? check_replaceable_model : ReplaceCheck();
  check_input_stays(source.path, output);
  check_output(output, OutputKind::folder, replace, 0);
  Exported exported{.source_bytes = stored_bytes(source)};
  if (options.format != ExportFormat::gguf) {  // one file, with the tokenizer in it
    exported.warnings = warnings_of_tokenizer(source);
    exported.companions = find_companions(source, options.follow_links ? OutsideLinks::follow : OutsideLinks::leave);
  }
  for (const fs::path& name : exported.companions.links) {
    check_input_stays(source.path / name, output);
  }
  check_output(output, OutputKind::folder, replace, exported.source_bytes + exported.companions.bytes);

  AtomicFolder folder(output, replace);
  const fs::path& place = folder.temporary();
  const Clock::time_point started = Clock::now();
  Written written;
  if (options.format == ExportFormat::hf) {
    write_hf(source, place, options, exported, written);
  } else if (options.format == ExportFormat::gguf) {
    write_gguf_folder(source, place, options, exported);
  } else {
    write_onnx_folder(source, place, options, exported, written);
  }
  exported.writing_seconds = seconds_since(started);

  const Clock::time_point read_back = Clock::now();
  options.format == ExportFormat::onnx ? compare_as_graph(source, place, options, exported, written)
                                       : compare_as_model(source, place, options, exported, written);
  const Verification& verification = exported.verification;
  exported.warnings.insert(exported.warnings.end(), verification.warnings.begin(), verification.warnings.end());
  exported.verifying_seconds = seconds_since(read_back);
  if (verification.verdict == Verdict::different) {
    refuse_result(output, exported);
  }
  if (!written.unused.only_reference.empty()) {
    exported.warnings.push_back(
        fmt::format("not written, since the model does not use them: {}", some_names(written.unused.only_reference)));
  }
  written.candidate["path"] = output.string();
  ordered_json certificate = certificate_json(describe_files(source), written.candidate, ordered_json::array(),
                                              question_of(options).kind, verification);
  certificate["export"] = {{"format", word(options.format)}, {"reader", exported.reader}, {"notes", exported.notes}};
  certificate["companions"] = written.companions;
  certificate["links"] = exported.companions.followed;
  certificate["unused_tensors"] = to_json(written.unused);
  write_text_file(place / "certificate.json", json_text(certificate));
  exported.certificate = std::move(certificate);
  const std::vector<std::string> left = folder.commit();
  exported.warnings.insert(exported.warnings.end(), left.begin(), left.end());
  return exported;
}

}  // namespace pare
