#pragma once
// A graph of a file, run: nothing but the file says what is computed.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "pare/export/onnx_file.h"

namespace pare {

using NamedTensors = std::map<std::string, at::Tensor>;

class OnnxProgram {
 public:
  // InputError where the file is damaged, or asks for what pare does not write.
  explicit OnnxProgram(const std::filesystem::path& file);

  const OnnxGraph& graph() const { return file_.graph(); }

  // One answer to each of the requests. All of them go through an operator before the next one runs, so a tensor of the
  // file is read once, and held only from its first reader to its last. Floats narrower than `least` are computed in
  // it.
  std::vector<NamedTensors> run(std::span<const NamedTensors> requests, at::ScalarType least) const;

 private:
  void check() const;
  OnnxFile file_;
  std::map<std::string, size_t> last_use_;  // the node that reads a value last
};

}  // namespace pare
