// pare probe: ranks, norms and heads of a model on given sequences, and which of the four collapses they show.

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "pare/cli/commands.h"
#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/cli/ranks.h"
#include "pare/cli/report_file.h"
#include "pare/cli/run_inputs.h"
#include "pare/cli/subject.h"
#include "pare/cli/text_inputs.h"
#include "pare/probes/probe_batches.h"
#include "pare/probes/probe_results.h"
#include "pare/report/pages.h"
#include "pare/support/error.h"
#include "pare/support/interrupt.h"
#include "pare/support/names.h"
#include "pare/verify/certificate.h"

namespace pare {

namespace {

constexpr int64_t usual_sequences = 16, usual_length = 48;

struct ProbeFlags {
  std::string model, adapter, tokens, inputs, dtype = "float64", without;
  int64_t random = 0, length = 0;  // 0: not given
  double threshold = 1e-3, zero_gains = 0, gauge = -1;
  bool permute_heads = false, heads = false;
  TextFlags text;
  ReportFlags report;
};

struct ProbeInputs {
  std::string kind;  // tokens, tensors, text, random
  std::vector<Inputs> batches;
};

Inputs random_sequences(const Architecture& a, int64_t count, int64_t length, uint64_t seed) {
  const at::Generator random = at::detail::createCPUGenerator(seed);
  Inputs inputs;
  if (a.embedding.patch) {
    const Patch& patch = *a.embedding.patch;
    inputs.pixels = at::randn({count, patch.channels, patch.image, patch.image}, random, at::kDouble);
  } else {
    inputs.ids = at::randint(a.vocab, {count, length}, random, at::kLong);
  }
  return inputs;
}

int64_t random_length(const ProbeFlags& flags, const Architecture& a) {
  if (flags.length == 0) {
    return std::min(a.context, usual_length);
  }
  refuse_if(a.embedding.patch.has_value(),
            "--length: this model reads images, which all have the same number of patches");
  refuse_if(flags.length > a.context, "--length: {} tokens, but the model was made for a context of {}", flags.length,
            a.context);
  return flags.length;
}

// One by one, as the file has them.
std::vector<Inputs> in_order(const std::vector<Batch>& batches) {
  std::map<int64_t, Inputs> by_number;
  for (const Batch& batch : batches) {
    for (size_t row = 0; row < batch.sequences.size(); ++row) {
      by_number[batch.sequences[row]] = rows_of(batch.inputs, static_cast<int64_t>(row), 1);
    }
  }
  std::vector<Inputs> sequences;
  for (auto& [number, sequence] : by_number) {
    sequences.push_back(std::move(sequence));
  }
  return sequences;
}

ProbeInputs read_sequences(const ProbeFlags& flags, const ModelFolder& stored, uint64_t seed) {
  const Architecture& a = stored.model.architecture;
  const int given = (flags.tokens.empty() ? 0 : 1) + (flags.inputs.empty() ? 0 : 1) +
                    (flags.text.text.empty() ? 0 : 1) + (flags.random > 0 ? 1 : 0);
  refuse_if(given > 1, "one of --tokens, --inputs, --text and --random, not several: what should the model read?");
  check_text_flags(flags.text);
  refuse_if(flags.length > 0 && (!flags.tokens.empty() || !flags.inputs.empty()),
            "--length is that of --random sequences, and of what --text is cut into: those of a file have their own");
  ProbeInputs read;
  if (given == 0 || flags.random > 0) {
    const int64_t count = flags.random > 0 ? flags.random : usual_sequences;
    return {"random", {random_sequences(a, count, random_length(flags, a), seed)}};
  }
  // What a text leaves over is no sequence like the others: its few tokens would be in every mean and spread.
  const TextCut cut = {.length = flags.length > 0 ? random_length(flags, a) : 0, .equal_only = true};
  read.kind = !flags.tokens.empty() ? "tokens" : !flags.inputs.empty() ? "tensors" : "text";
  read.batches = in_order(!flags.tokens.empty()   ? read_token_lists(flags.tokens, a)
                          : !flags.inputs.empty() ? read_input_tensors(flags.inputs, a)
                                                  : read_text(flags.text, stored.path, a, cut));
  return read;
}

ProbeOptions probe_options(const ProbeFlags& flags, const Settings& settings) {
  ProbeOptions options;
  options.threshold = flags.threshold;
  options.arithmetic = {scalar_type(*float_dtype_from_word(flags.dtype)), chosen_device(settings)};
  Interventions& changed = options.interventions;
  changed.without_attention_residual = flags.without == "attention-residual" || flags.without == "residuals";
  changed.without_mlp_residual = flags.without == "mlp-residual" || flags.without == "residuals";
  changed.zero_gains = flags.zero_gains;
  changed.permute_heads = flags.permute_heads;
  changed.seed = settings.seed;
  if (flags.gauge >= 0) {
    changed.gauge = flags.gauge;
  }
  return options;
}

std::exception_ptr probe_command(const ProbeFlags& flags, const Settings& settings, const Communicator& ranks) {
  const bool reports = flags.report.wanted() && ranks.is_first();
  if (reports) {
    check_report_file(flags.report);
  }
  const ModelFolder stored = open_and_warn(flags.model, settings, flags.adapter);
  const Architecture& a = stored.model.architecture;
  const ProbeOptions options = probe_options(flags, settings);
  check_interventions(options.interventions, a);
  const ProbeInputs inputs = read_sequences(flags, stored, settings.seed);
  const std::vector<Inputs> batches = probe_batches(inputs.batches, a);
  int64_t sequences = 0;
  for (const Inputs& batch : batches) {
    sequences += batch_size(batch);
  }
  // Before anything is measured, since an interrupt ends hashing too, and what was measured is to be kept.
  nlohmann::ordered_json described;
  if (reports) {
    described = describe_files(stored);
  }
  Probe probe(stored.model, options);
  try {
    measure_all(probe, batches, "probing", ranks);
  } catch (const Interrupted&) {  // with what was measured until then
    forget_interrupt();
  }
  probe.share(ranks);
  ProbeResults results = probe.results();
  if (results.sequences == 0) {
    throw Interrupted("interrupted before the first sequence was finished: nothing was measured");
  }
  results.asked_sequences = sequences;
  results.partial = results.sequences < sequences;
  print_warnings(results.warnings);
  if (reports) {
    if (!results.partial) {
      describe_files(stored);  // an InputError where somebody wrote to a file meanwhile
    }
    write_report(flags.report, probe_report(flags.model, results, described, inputs.kind, report_origin(settings)));
  }
  if (settings.json) {
    nlohmann::ordered_json document = {{"model", flags.model}, {"inputs", inputs.kind}, {"seed", settings.seed}};
    document.update(to_json(results));
    if (results.partial) {
      document.update(error_document(describe(std::make_exception_ptr(Interrupted()))));
    }
    print_json(document);
  } else {
    print_text(flags.model + "\n" + text_of(results, flags.heads ? HeadRows::heads : HeadRows::layers));
  }
  return results.partial ? std::make_exception_ptr(Interrupted()) : nullptr;
}

}  // namespace

void add_probe(CLI::App& app, const Settings& settings) {
  CLI::App* command = app.add_subcommand("probe", "Measure ranks and heads: where does it collapse?");
  auto flags = std::make_shared<ProbeFlags>();
  command->add_option("MODEL", flags->model, "a model folder, or a GGUF file")->required();
  add_adapter_flag(*command, flags->adapter);
  command->add_option("--tokens", flags->tokens, "inputs: a JSON list of lists of token ids")->type_name("FILE");
  command->add_option("--inputs", flags->inputs, "or: safetensors with input_ids, pixel_values, ...")
      ->type_name("FILE");
  add_text_flags(*command, flags->text);
  command->add_option("--random", flags->random, fmt::format("or: N random sequences [{}]", usual_sequences))
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
  command
      ->add_option("--length", flags->length,
                   fmt::format("tokens of a random sequence [{}], or of one of the text", usual_length))
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
  command->add_option("--threshold", flags->threshold, "rank counts singular values above T times the first")
      ->check(number_between(0, 1, false))
      ->type_name("T")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "to compute in: float64, float32, bfloat16, float16")
      ->transform(dtype_or())
      ->type_name("NAME")
      ->capture_default_str();
  command->add_option("--without", flags->without, "attention-residual, mlp-residual or residuals")
      ->check(one_of({"attention-residual", "mlp-residual", "residuals"}))
      ->type_name("NAME");
  command->add_option("--zero-gains", flags->zero_gains, "zero this share of the gains of every norm")
      ->check(number_between(0, 1, false))
      ->type_name("SHARE");
  command->add_option("--gauge", flags->gauge, "heads in another basis, of condition number exp(S)")
      ->check(number_between(0, 60, true))
      ->type_name("S");
  command->add_flag("--permute-heads", flags->permute_heads, "heads in another order");
  command->add_flag("--heads", flags->heads, "a row for each head");
  add_report_flags(*command, flags->report, "-o,--report");
  command->footer(R"(Ctrl-C keeps what was measured: it is shown, marked as partial.
docs/probes.md defines every number.
Example: pare probe model --random 64 --without residuals)");
  command->callback([flags, &settings] {
    as_one(settings, [&](const Communicator& ranks) { return probe_command(*flags, settings, ranks); });
  });
}

}  // namespace pare
