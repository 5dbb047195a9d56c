// pare run: logits and any intermediate of a model, for given inputs, into a safetensors file.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/replaceable.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/cli/commands.h"
#include "pare/cli/output.h"
#include "pare/cli/ranks.h"
#include "pare/cli/run_inputs.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/model/executor.h"
#include "pare/ranks/shares.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/mapped.h"
#include "pare/support/names.h"
#include "pare/support/numbers.h"
#include "pare/support/output_place.h"
#include "pare/support/progress.h"
#include "pare/support/table.h"
#include "pare/verify/metrics.h"

namespace pare {

namespace {

struct RunOptions {
  std::string model, adapter, out, tokens, inputs, dtype = "float64";
  TextFlags text;
  std::vector<std::string> taps;
  bool force = false;
};

using Results = std::map<std::string, at::Tensor>;  // name.SEQUENCE, on the CPU

// Next-token prediction, over every token that has a predecessor.
struct Prediction {
  int64_t tokens = 0, right = 0;
  double nats = 0;
};

// Which dimensions of one sequence's part of a tensor run over its tokens.
std::vector<int64_t> token_dimensions(const std::string& name, const Outputs& outputs) {
  if (name == "pooled" || name == "sequence_logits" || (name == "logits" && outputs.logits.dim() == 2)) {
    return {};
  }
  if (name.ends_with("attention.scores") || name.ends_with("attention.probabilities")) {
    return {1, 2};
  }
  return {0};
}

// Sequence `row` of a batch, without its padding.
at::Tensor without_padding(const at::Tensor& batch, int64_t row, const at::Tensor& mask,
                           const std::vector<int64_t>& dimensions) {
  at::Tensor result = batch[row];
  if (mask.defined()) {
    const at::Tensor places = at::nonzero(mask[row]).flatten().to(result.device());
    for (int64_t dimension : dimensions) {
      result = result.index_select(dimension, places);
    }
  }
  return result.to(at::kCPU).contiguous();
}

Prediction prediction_of(const at::Tensor& logits, const at::Tensor& ids) {
  const int64_t count = ids.size(0) - 1;
  if (count < 1) {
    return {};
  }
  const at::Tensor next = ids.narrow(0, 1, count);
  const at::Tensor scores = logits.narrow(0, 0, count).to(at::kDouble);
  return {.tokens = count,
          .right = scores.argmax(1).eq(next).sum().item<int64_t>(),
          .nats = -at::log_softmax(scores, 1).gather(1, next.unsqueeze(1)).sum().item<double>()};
}

std::vector<Batch> read_batches(const RunOptions& options, const ModelFolder& stored) {
  const Architecture& architecture = stored.model.architecture;
  refuse_if(!options.tokens.empty() + !options.inputs.empty() + !options.text.text.empty() != 1,
            "run needs one of --tokens, --inputs and --text: what should the model read?");
  check_text_flags(options.text);
  if (!options.text.text.empty()) {
    return read_text(options.text, stored.path, architecture);
  }
  return options.tokens.empty() ? read_input_tensors(options.inputs, architecture)
                                : read_token_lists(options.tokens, architecture);
}

// Every result of one batch, under its name and the number of its sequence.
void collect(const Batch& batch, const Outputs& outputs, const Taps& taps, Results& results) {
  std::map<std::string, at::Tensor> named = taps.recorded();
  if (outputs.logits.defined()) {
    named["logits"] = outputs.logits;
  } else {
    named["hidden"] = outputs.hidden;
  }
  if (outputs.pooled.defined()) {
    named["pooled"] = outputs.pooled;
  }
  if (outputs.sequence_logits.defined()) {
    named["sequence_logits"] = outputs.sequence_logits;
  }
  for (const auto& [name, tensor] : named) {
    const std::vector<int64_t> dimensions = token_dimensions(name, outputs);
    for (size_t row = 0; row < batch.sequences.size(); ++row) {
      results[fmt::format("{}.{}", name, batch.sequences[row])] =
          without_padding(tensor, static_cast<int64_t>(row), batch.inputs.mask, dimensions);
    }
  }
}

// What the others computed, on the first rank, which writes it. All take part, a few megabytes of each at a time.
void bring_together(Results& results, const Communicator& ranks) {
  if (ranks.alone()) {
    return;
  }
  constexpr int64_t piece = 8 << 20;
  nlohmann::json own = nlohmann::json::array();
  int64_t most = 0;
  for (const auto& [name, tensor] : results) {
    own.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  }
  std::vector<std::vector<at::Tensor>> all;  // of each rank, in the order of names
  for (const std::string& list : ranks.all_gather(own.dump())) {
    std::vector<at::Tensor>& theirs = all.emplace_back();
    const bool here = std::ssize(all) == ranks.rank() + 1;
    int64_t bytes = 0;
    for (const nlohmann::json& entry : nlohmann::json::parse(list)) {
      const auto dtype = static_cast<at::ScalarType>(entry[1].get<int>());
      const Shape shape = entry[2].get<Shape>();
      bytes += element_count(shape) * static_cast<int64_t>(c10::elementSize(dtype));
      if (here) {
        theirs.push_back(results.at(entry[0].get<std::string>()));
      } else if (ranks.is_first()) {
        theirs.push_back(results[entry[0].get<std::string>()] = at::empty(shape, dtype));
      }
    }
    most = std::max(most, bytes);
  }
  // Bytes of a list of tensors, one after the other: those from `begin` on, as many as there are.
  const auto exchange = [](const std::vector<at::Tensor>& tensors, int64_t begin, std::span<std::byte> buffer,
                           bool out) {
    int64_t before = 0;
    for (const at::Tensor& tensor : tensors) {
      const int64_t size = static_cast<int64_t>(tensor.nbytes());
      const int64_t from = std::max(begin, before), to = std::min(begin + std::ssize(buffer), before + size);
      if (from < to) {
        std::byte* const inside = static_cast<std::byte*>(tensor.data_ptr()) + (from - before);
        std::byte* const outside = buffer.data() + (from - begin);
        std::memcpy(out ? outside : inside, out ? inside : outside, static_cast<size_t>(to - from));
      }
      before += size;
    }
  };
  for (int64_t begin = 0; begin < most; begin += piece) {
    const int64_t count = std::min(piece, most - begin);
    const at::Tensor part = at::zeros({count}, at::kByte), parts = at::empty({count * ranks.size()}, at::kByte);
    exchange(all[static_cast<size_t>(ranks.rank())], begin,
             std::as_writable_bytes(std::span(part.mutable_data_ptr<uint8_t>(), count)), true);
    ranks.all_gather(parts, part);
    for (int64_t rank = 1; rank < ranks.size() && ranks.is_first(); ++rank) {
      exchange(all[rank], begin,
               std::as_writable_bytes(std::span(parts.mutable_data_ptr<uint8_t>() + rank * count, count)), false);
    }
  }
}

ReplaceCheck may_replace(const RunOptions& options) {
  return options.force ? check_replaceable_tensors : ReplaceCheck();
}

void write_results(const RunOptions& options, const Results& results) {
  std::map<std::string, SafetensorsWriter::Declared> declared;
  uint64_t bytes = 0;
  for (const auto& [name, tensor] : results) {
    declared[name] = {.dtype = dtype_of(tensor.scalar_type()), .shape = tensor.sizes().vec()};
    bytes += tensor.nbytes();
  }
  const ReplaceCheck replace = may_replace(options);
  check_output(options.out, OutputKind::file, replace, bytes);
  AtomicFile output(options.out, replace);
  SafetensorsWriter writer(output.temporary(), declared, {});
  Progress progress("writing", bytes, Progress::Unit::bytes);
  for (const auto& [name, tensor] : results) {
    writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    progress.advance(tensor.nbytes());
  }
  writer.finish();
  print_warnings(output.commit());
}

void check_taps(const RunOptions& options, const Taps& taps) {
  for (const std::string& glob : options.taps) {
    const auto matches = [&glob](const auto& recorded) { return glob_match(glob, recorded.first); };
    refuse_if(std::none_of(taps.recorded().begin(), taps.recorded().end(), matches),
              "--taps: {} matches no intermediate of this model (see 'pare run --help')", quote(glob));
  }
}

void print_summary(const RunOptions& options, const Settings& settings, const Results& results, int64_t sequences,
                   int64_t tokens, const Prediction& prediction) {
  const double predicted = static_cast<double>(prediction.tokens);
  if (settings.json) {
    nlohmann::ordered_json json = {{"output", options.out},          {"tensors", results.size()},
                                   {"sequences", sequences},         {"tokens", tokens},
                                   {"compute_dtype", options.dtype}, {"device", settings.device}};
    if (prediction.tokens > 0) {
      json["nats_per_token"] = prediction.nats / predicted;
      json["top1"] = static_cast<double>(prediction.right) / predicted;
      json["predicted_tokens"] = prediction.tokens;
    }
    print_json(json);
    return;
  }
  Table table({Align::left, Align::right});
  table.row({"sequences", with_commas(sequences)});
  table.row({"tokens", with_commas(tokens)});
  table.row({"computed in", fmt::format("{} on {}", options.dtype, settings.device)});
  if (prediction.tokens > 0) {
    table.row({"nats/token", fmt::format("{:.4f}", prediction.nats / predicted)});
    table.row({"top-1", fmt::format("{:.2f} %", 100.0 * static_cast<double>(prediction.right) / predicted)});
  }
  table.row({"tensors written", with_commas(static_cast<int64_t>(results.size()))});
  print_text(table.text() + fmt::format("wrote {}\n", escaped(options.out)));
}

// Of one sequence: its tokens, and how well they were predicted.
std::vector<double> numbers_of(const Batch& batch, int64_t row, const Results& results, const Architecture& a) {
  if (!batch.inputs.ids.defined()) {
    return {static_cast<double>(patch_positions(a)), 0, 0, 0};
  }
  const at::Tensor ids = without_padding(batch.inputs.ids, row, batch.inputs.mask, {0});
  const Prediction found = a.task == Task::causal_lm
                               ? prediction_of(results.at(fmt::format("logits.{}", batch.sequences[row])), ids)
                               : Prediction();
  return {static_cast<double>(ids.size(0)), static_cast<double>(found.tokens), static_cast<double>(found.right),
          found.nats};
}

// Which of the batches are this rank's.
std::span<const Batch> own_batches(const std::vector<Batch>& batches, const Communicator& ranks) {
  const std::vector<double> costs = mapped(batches, [](const Batch& batch) {
    const at::Tensor& read = batch.inputs.ids.defined() ? batch.inputs.ids : batch.inputs.pixels;
    return static_cast<double>(read.numel());
  });
  const Share own = share_of(costs, ranks);
  return std::span(batches).subspan(own.first, own.size());
}

std::exception_ptr run_command(const RunOptions& options, const Settings& settings, const Communicator& ranks) {
  if (ranks.is_first()) {  // which writes
    for (const std::string& input :
         {options.model, options.adapter, options.tokens, options.inputs, options.text.text}) {
      check_input_stays(input, options.out);
    }
    check_output(options.out, OutputKind::file, may_replace(options), 0);
  }
  const ModelFolder stored = open_and_warn(options.model, settings, options.adapter);
  const std::vector<Batch> batches = read_batches(options, stored);
  const at::ScalarType dtype = scalar_type(float_dtype_from_word(options.dtype).value());
  const at::Device device = chosen_device(settings);
  const at::InferenceMode inference;
  const Executor model(stored.model, dtype, device);
  Results results;
  std::vector<double> numbers;  // four of each sequence
  const std::span<const Batch> own = own_batches(batches, ranks);
  Progress progress("running", own.size());
  for (const Batch& batch : own) {
    Taps taps;
    for (const std::string& glob : options.taps) {
      taps.record(glob);
    }
    const Outputs outputs = model.forward(moved(batch.inputs, device), nullptr, &taps);
    check_taps(options, taps);
    collect(batch, outputs, taps, results);
    for (int64_t row = 0; row < std::ssize(batch.sequences); ++row) {
      const std::vector<double> of_one = numbers_of(batch, row, results, stored.model.architecture);
      numbers.insert(numbers.end(), of_one.begin(), of_one.end());
    }
    progress.advance();
  }
  const at::Tensor all = gathered_rows(at::tensor(numbers, at::kDouble).view({-1, 4}), ranks);
  bring_together(results, ranks);
  if (!ranks.is_first()) {
    return nullptr;
  }
  Prediction prediction;
  int64_t tokens = 0;
  for (int64_t sequence = 0; sequence < all.size(0); ++sequence) {
    const double* const of_one = all[sequence].const_data_ptr<double>();
    tokens += static_cast<int64_t>(of_one[0]);
    prediction.tokens += static_cast<int64_t>(of_one[1]);
    prediction.right += static_cast<int64_t>(of_one[2]);
    prediction.nats += of_one[3];
  }
  write_results(options, results);
  const double nats = prediction.tokens > 0 ? prediction.nats / static_cast<double>(prediction.tokens) : 0;
  if (const std::optional<std::string> warning =
          warning_of_guessing("the model", nats, stored.model.architecture.vocab)) {
    print_warnings({*warning});
  }
  print_summary(options, settings, results, all.size(0), tokens, prediction);
  return nullptr;
}

}  // namespace

void add_run(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("run", "Compute logits and intermediates for inputs");
  auto options = std::make_shared<RunOptions>();
  command->add_option("MODEL", options->model, "a model folder, or a GGUF file")->required();
  add_adapter_flag(*command, options->adapter);
  command->add_option("-o,--output", options->out, "the safetensors file to write")->required()->type_name("FILE");
  command->add_option("--tokens", options->tokens, "a JSON list of lists of token ids")->type_name("FILE");
  command->add_option("--inputs", options->inputs, "safetensors with input_ids, attention_mask, ...")
      ->type_name("FILE");
  add_text_flags(*command, options->text);
  command->add_option("--taps", options->taps, "intermediates to write too, such as 'residual.*'")
      ->delimiter(',')
      ->type_name("GLOB,...");
  command->add_option("--dtype", options->dtype, "to compute in: float64, float32, bfloat16, float16")
      ->transform(dtype_or())
      ->type_name("NAME")
      ->capture_default_str();
  command->add_flag("--force", options->force, "overwrite an existing output file");
  command->footer(R"(Taps: residual.L, residual.L.mid, final, pooled, logits, sequence_logits,
  blocks.L.attention.{input,query,key,value,scores,probabilities,heads,gate},
  blocks.L.attention.{shape,output},
  blocks.L.mlp.{input,up,gate,hidden,probabilities,output}; L counts layers.
Example: pare run model -o out.safetensors --tokens ids.json --taps 'residual.*')");
  command->callback([options, &settings] {
    as_one(settings, [&](const Communicator& ranks) { return run_command(*options, settings, ranks); });
  });
}

}  // namespace pare
