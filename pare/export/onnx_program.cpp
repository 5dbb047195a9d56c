#include "pare/export/onnx_program.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "pare/checkpoint/weights.h"
#include "pare/export/onnx_operators.h"
#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/interrupt.h"
#include "pare/support/memory.h"
#include "pare/support/names.h"

namespace pare {

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

void OnnxProgram::check() const {
  Problems problems;
  std::set<std::string> there;
  for (const OnnxValue& input : graph().inputs) {
    there.insert(input.name);
  }
  const auto must_be_there = [&](const std::string& name, const std::string& reader) {
    problems.add_if(!there.contains(name) && !file_.has_tensor(name), "{} reads {}, which nothing before it gives",
                    escaped(reader), quote(name));
  };
  for (const OnnxNode& node : graph().nodes) {
    problems.add_if(!knows_operator(node.op), "node {} is {}, which pare does not write", quote(node.name),
                    quote(node.op));
    problems.add_if(node.outputs.size() != 1, "node {} has {} outputs, expected one", quote(node.name),
                    node.outputs.size());
    for (const std::string& name : node.inputs) {
      must_be_there(name, node.name);
    }
    for (const std::string& name : node.outputs) {
      problems.add_if(!there.insert(name).second || file_.has_tensor(name), "{} is given twice", quote(name));
    }
  }
  for (const OnnxValue& output : graph().outputs) {
    must_be_there(output.name, "who asks");
  }
  problems.throw_if_any(quote(shown(file_.path())));
}

std::vector<NamedTensors> OnnxProgram::run(std::span<const NamedTensors> requests, at::ScalarType least) const {
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
  const std::vector<OnnxNode>& nodes = graph().nodes;
  for (size_t i = 0; i < nodes.size(); ++i) {
    check_interrupt();
    const OnnxNode& node = nodes[i];
    for (const std::string& name : node.inputs) {
      if (file_.has_tensor(name) && !stored.contains(name)) {
        const PromptlyFreed promptly;
        stored[name] = ready(file_.load(name));
      }
    }
    for (NamedTensors& known : values) {
      std::vector<at::Tensor> inputs;
      for (const std::string& name : node.inputs) {
        const auto own = known.find(name);
        inputs.push_back(own != known.end() ? own->second : stored.at(name));
      }
      known[node.outputs.front()] = run_operator(node, inputs, least);
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
  std::vector<NamedTensors> answers;
  for (NamedTensors& known : values) {
    NamedTensors& answer = answers.emplace_back();
    for (const OnnxValue& output : graph().outputs) {
      const auto found = known.find(output.name);
      answer[output.name] = found != known.end() ? found->second : ready(file_.load(output.name));
    }
  }
  return answers;
}

}  // namespace pare
