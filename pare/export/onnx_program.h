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

// How near a graph came to the end of its float types, on what it was asked. It is run in a wider type, where nothing
// overflows: whoever computes in its own would have infinities.
struct OnnxPeak {
  std::string value;  // the name of the one that came nearest; "": none was narrow, or too large
  OnnxType type = OnnxType::f32;
  double size = 0;       // its largest number
  double share() const;  // of the largest that its type has
};

struct OnnxRun {
  std::vector<NamedTensors> answers;  // one to each request
  OnnxPeak peak;
};

class OnnxProgram {
 public:
  // InputError where the file is damaged, or asks for what pare does not write.
  explicit OnnxProgram(const std::filesystem::path& file);

  const OnnxGraph& graph() const { return file_.graph(); }

  // All requests go through an operator before the next one runs, so a tensor of the file is read once, and held only
  // from its first reader to its last. Floats narrower than `least` are computed in it.
  OnnxRun run(std::span<const NamedTensors> requests, at::ScalarType least) const;

 private:
  void check();
  OnnxFile file_;
  std::map<std::string, OnnxType> types_;   // of every value
  std::map<std::string, size_t> last_use_;  // the node that reads a value last
};

}  // namespace pare
