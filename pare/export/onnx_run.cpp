#include "pare/export/onnx.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "pare/arch/head.h"
#include "pare/export/onnx_program.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// What two steps may differ by from one, of the largest number in a row: far above what rounding float64 makes, far
// below what a wrong position or a token too many does.
constexpr double cache_tolerance = 1e-6;

at::Tensor mask_of(const Inputs& inputs) {
  return inputs.mask.defined() ? inputs.mask : at::ones_like(inputs.ids, at::kBool);
}

// The tokens from `begin` to `end` of a batch; the graph's past is of those before them.
NamedTensors request_of(const OnnxGraph& graph, const Inputs& inputs, int64_t begin, int64_t end) {
  NamedTensors request;
  if (inputs.pixels.defined()) {
    request["pixel_values"] = inputs.pixels;
    return request;
  }
  const auto part = [=](const at::Tensor& x) { return x.slice(1, begin, end); };
  request["input_ids"] = part(inputs.ids);
  request["attention_mask"] = mask_of(inputs).slice(1, 0, end);
  request["token_type_ids"] = part(inputs.types.defined() ? inputs.types : at::zeros_like(inputs.ids));
  for (const OnnxValue& input : graph.inputs) {
    if (begin == 0 && input.name.starts_with("past_key_values.")) {
      std::vector<int64_t> shape;
      for (const std::variant<int64_t, std::string>& size : input.shape) {
        shape.push_back(std::holds_alternative<int64_t>(size) ? std::get<int64_t>(size) : 0);
      }
      refuse_if(shape.empty(), "{} has no axes", quote(input.name));
      shape.front() = inputs.ids.size(0);
      request[input.name] = at::zeros(shape, at::kFloat);
    }
  }
  return request;
}

at::Tensor answer_named(const NamedTensors& answer, const std::string& name) {
  const auto found = answer.find(name);
  return found == answer.end() ? at::Tensor() : found->second;
}

const char* answer_name(const Architecture& a) {
  return a.task == Task::encoder ? "last_hidden_state" : "logits";
}

at::Tensor rows_named(const Architecture& a, const NamedTensors& answer, const Inputs& inputs) {
  const at::Tensor all = answer_named(answer, answer_name(a));
  refuse_if(!all.defined(), "the graph gives no {}", answer_name(a));
  return rows_of({.hidden = all}, inputs);
}

bool has_past(const OnnxGraph& graph) {
  return std::ranges::any_of(graph.inputs,
                             [](const OnnxValue& input) { return input.name.starts_with("past_key_values."); });
}

// Where a batch is cut in two; 0: not at all. Every other one before its last token, as those who generate do.
int64_t cut_of(const Architecture& a, const Inputs& inputs, size_t number) {
  const int64_t tokens = inputs.ids.size(1), cut = number % 2 == 0 ? tokens - 1 : tokens / 2;
  const at::Tensor counted = mask_of(inputs).to(at::kLong).cumsum(1).amax(0);  // the longest text so far
  const auto angles_change = [&](const Block& block) {
    const std::optional<Rope>& rope = block.attention.rope;
    return rope && depends_on_length(*rope) &&
           rope_frequencies(*rope, counted[cut - 1].item<int64_t>()) !=
               rope_frequencies(*rope, counted[tokens - 1].item<int64_t>());
  };
  return cut == 0 || std::ranges::any_of(a.blocks, angles_change) ? 0 : cut;
}

// How far answers to the same tokens are apart at most, of the largest number in a row; infinite where one is no
// number. A few rows at a time: a vocabulary is long.
double gap_of(const at::Tensor& found, const at::Tensor& wanted, const at::Tensor& mask) {
  constexpr int64_t piece_elements = 1 << 22;
  const int64_t step = std::max<int64_t>(1, piece_elements / std::max<int64_t>(1, wanted.size(2) * wanted.size(0)));
  double worst = 0;
  for (int64_t token = 0; token < wanted.size(1); token += step) {
    const at::Tensor expected = wanted.slice(1, token, token + step);
    const at::Tensor apart = (found.slice(1, token, token + step) - expected).abs_().amax(2);
    const at::Tensor gap = apart / expected.abs().amax(2).clamp_min(1e-30);
    const at::Tensor hidden = mask.slice(1, token, token + step).logical_not();
    const double most = gap.masked_fill(hidden, 0).max().item<double>();
    worst = std::isnan(most) ? std::numeric_limits<double>::infinity() : std::max(worst, most);
  }
  return worst;
}

// The second half of every batch that is cut, after a first half that only its cache tells of.
void check_past(const Architecture& a, const OnnxProgram& program, std::span<const Inputs> inputs,
                const std::vector<size_t>& cut_inputs, const std::vector<int64_t>& cuts,
                std::span<const NamedTensors> whole, std::span<NamedTensors> first, OnnxPeak& peak) {
  std::vector<NamedTensors> requests;
  for (size_t i = 0; i < cut_inputs.size(); ++i) {
    const Inputs& batch = inputs[cut_inputs[i]];
    requests.push_back(request_of(program.graph(), batch, cuts[i], batch.ids.size(1)));
    for (auto& [name, tensor] : first[i]) {
      if (name.starts_with("present.")) {
        requests.back()["past_key_values." + name.substr(8)] = std::move(tensor);
      }
    }
  }
  const OnnxRun run = program.run(requests, at::kDouble);
  const std::vector<NamedTensors>& second = run.answers;
  if (run.peak.share() > peak.share()) {
    peak = run.peak;
  }
  const std::string name = answer_name(a);
  for (size_t i = 0; i < cut_inputs.size(); ++i) {
    const Inputs& batch = inputs[cut_inputs[i]];
    const at::Tensor wanted = whole[cut_inputs[i]].at(name), mask = mask_of(batch);
    const double worst = std::max(gap_of(first[i].at(name), wanted.slice(1, 0, cuts[i]), mask.slice(1, 0, cuts[i])),
                                  gap_of(second[i].at(name), wanted.slice(1, cuts[i]), mask.slice(1, cuts[i])));
    if (worst > cache_tolerance) {
      throw VerificationFailed(
          fmt::format("the graph says something else where it remembers {} of {} tokens than where it is given all: "
                      "{} is {:.2g} of a row apart, allowed {:.0g}",
                      cuts[i], batch.ids.size(1), name, worst, cache_tolerance));
    }
  }
}

}  // namespace

GraphAnswers run_onnx(const std::filesystem::path& file, const Architecture& a, std::span<const Inputs> inputs) {
  const OnnxProgram program(file);
  const bool past = has_past(program.graph());
  std::vector<NamedTensors> requests;
  std::vector<size_t> cut_inputs;
  std::vector<int64_t> cuts;
  for (const Inputs& batch : inputs) {
    refuse_if(batch.positions.defined(), "a graph counts positions itself: leave out position_ids");
    requests.push_back(request_of(program.graph(), batch, 0, batch.ids.defined() ? batch.ids.size(1) : 0));
  }
  for (size_t i = 0; past && i < inputs.size(); ++i) {
    if (const int64_t cut = cut_of(a, inputs[i], i); cut > 0) {
      cut_inputs.push_back(i);
      cuts.push_back(cut);
      requests.push_back(request_of(program.graph(), inputs[i], 0, cut));
    }
  }
  OnnxRun run = program.run(requests, at::kDouble);
  std::vector<NamedTensors>& answers = run.answers;
  if (!cuts.empty()) {
    const std::span<NamedTensors> all(answers);
    check_past(a, program, inputs, cut_inputs, cuts, all.first(inputs.size()), all.subspan(inputs.size()), run.peak);
  }
  answers.resize(inputs.size());  // all that a vocabulary says to every token is much: only once from here on
  GraphAnswers result;
  std::vector<at::Tensor> rows, pooled;
  for (size_t i = 0; i < inputs.size(); ++i) {
    rows.push_back(rows_named(a, answers[i], inputs[i]));
    for (const char* name : {"pooled", "sequence_logits"}) {
      if (const at::Tensor found = answer_named(answers[i], name); found.defined()) {
        pooled.push_back(found);
      }
    }
    answers[i].clear();
  }
  const OnnxPeak& peak = run.peak;
  refuse_if(peak.share() > 1, "the graph computes with numbers up to {:.4g} ({}), beyond what {} can hold{}", peak.size,
            quote(peak.value), word(dtype_of(peak.type)), peak.type == OnnxType::f16 ? ": export it in float32" : "");
  if (peak.type == OnnxType::f16) {
    result.notes.push_back(fmt::format("float16 ends at 65504: the largest number here was {:.3g}, {} of the graph",
                                       peak.size, quote(peak.value)));
  }
  result.given.rows = rows.size() == 1 ? rows.front() : at::cat(rows);
  if (!pooled.empty()) {
    result.given.pooled = at::cat(pooled);
  }
  for (const OnnxValue& output : program.graph().outputs) {
    result.dtype = dtype_of(output.type);
  }
  return result;
}

}  // namespace pare
