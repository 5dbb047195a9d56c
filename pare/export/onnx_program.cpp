#include "pare/export/onnx_program.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "pare/checkpoint/weights.h"
#include "pare/export/onnx_operators.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"

namespace pare {

constexpr int64_t most_widened = 1 << 25;  // elements of a tensor that is held in what is computed in

OnnxProgram::OnnxProgram(const std::filesystem::path& file) : file_(file) {
  check();
  for (size_t i = 0; i < graph().nodes.size(); ++i) {
    for (const std::string& name : graph().nodes[i].inputs) {
      last_use_[name] = i;
    }
  }
  for (const OnnxValue& output : graph().outputs) {
    last_use_[output.name] = graph().nodes.size();
  }
}

// Everything is there before it is read, and of the type that is promised.
void OnnxProgram::check() {
  Problems problems;
  const auto give = [&](const std::string& name, OnnxType type) {
    problems.add_if(file_.has_tensor(name) || !types_.emplace(name, type).second, "{} is given twice", quote(name));
  };
  const auto type_of = [&](const std::string& name, const std::string& reader) {
    const auto found = types_.find(name);
    problems.add_if(found == types_.end() && !file_.has_tensor(name), "{} reads {}, which nothing before it gives",
                    reader, quote(name));
    return found != types_.end() ? found->second : file_.has_tensor(name) ? file_.type_of(name) : OnnxType::f32;
  };
  for (const OnnxValue& input : graph().inputs) {
    give(input.name, input.type);
  }
  for (const OnnxNode& node : graph().nodes) {
    const std::string reader = fmt::format("node {}", quote(node.name));
    problems.add_if(!knows_operator(node.op), "{} is {}, which pare does not write", reader, quote(node.op));
    problems.add_if(node.outputs.size() != 1, "{} has {} outputs, expected one", reader, node.outputs.size());
    std::vector<OnnxType> types;
    for (const std::string& name : node.inputs) {
      types.push_back(type_of(name, reader));
    }
    for (const std::string& name : node.outputs) {
      give(name, result_type(node, types));
    }
  }
  for (const OnnxValue& output : graph().outputs) {
    const OnnxType found = type_of(output.name, "who asks");
    problems.add_if(found != output.type, "{} is of type {}, and promised as {}", quote(output.name),
                    dtype_name(dtype_of(found)), dtype_name(dtype_of(output.type)));
  }
  problems.throw_if_any(quote(shown(file_.path())));
}

static double largest_number(OnnxType type) {
  return type == OnnxType::f16 ? 65504 : std::numeric_limits<float>::max();
}

double OnnxPeak::share() const {
  return size / largest_number(type);
}

// A mask has the largest number of float32 on purpose, so of that type only what is beyond counts.
static void look_for_peak(OnnxPeak& peak, const std::string& name, OnnxType type, const at::Tensor& values) {
  if ((type != OnnxType::f16 && type != OnnxType::f32) || values.numel() == 0) {
    return;
  }
  const auto [least, most] = at::aminmax(values);
  const OnnxPeak found = {name, type, std::max(-least.item<double>(), most.item<double>())};
  if ((type == OnnxType::f16 || found.share() > 1) && found.share() > peak.share()) {
    peak = found;
  }
}

OnnxRun OnnxProgram::run(std::span<const NamedTensors> requests, at::ScalarType least) const {
  const at::InferenceMode inference;
  const auto ready = [least](const at::Tensor& x) { return x.to(wider_of(x.scalar_type(), least)); };
  NamedTensors stored;  // of the file, while somebody still reads it
  std::vector<NamedTensors> values(requests.size());
  for (size_t r = 0; r < requests.size(); ++r) {
    for (const OnnxValue& input : graph().inputs) {
      const auto found = requests[r].find(input.name);
      refuse_if(found == requests[r].end(), "the graph of {} reads {}, which is not there", quote(shown(file_.path())),
                quote(input.name));
      values[r][input.name] = found->second.to(wider_of(scalar_type(dtype_of(input.type)), least));
    }
  }
  OnnxRun result;
  const std::vector<OnnxNode>& nodes = graph().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    check_interrupt();
    const OnnxNode& node = nodes[i];
    for (const std::string& name : node.inputs) {
      if (file_.has_tensor(name) && !stored.contains(name)) {
        const PromptlyFreed promptly;
        const at::Tensor loaded = file_.load(name);
        stored[name] = loaded.numel() > most_widened ? loaded : ready(loaded);
      }
    }
    for (NamedTensors& known : values) {
      std::vector<at::Tensor> inputs;
      for (const std::string& name : node.inputs) {
        const auto own = known.find(name);
        const at::Tensor& x = own != known.end() ? own->second : stored.at(name);
        inputs.push_back(takes_as_stored(node.op) ? x : ready(x));
      }
      const std::string& name = node.outputs.front();
      const at::Tensor given = run_operator(node, inputs, least);
      look_for_peak(result.peak, name, types_.at(name), given);
      known[name] = node.op == "Transpose" ? given : ready(given);  // which a product reads
    }
    for (const std::string& name : node.inputs) {
      if (last_use_.at(name) == i) {
        stored.erase(name);
        for (NamedTensors& known : values) {
          known.erase(name);
        }
      }
    }
  }
  for (NamedTensors& known : values) {
    NamedTensors& answer = result.answers.emplace_back();
    for (const OnnxValue& output : graph().outputs) {
      const auto found = known.find(output.name);
      answer[output.name] = found != known.end() ? found->second : ready(file_.load(output.name));
    }
  }
  return result;
}

}  // namespace pare
