#pragma once
// A model as an ONNX graph: written, and read back and run by pare itself, so that what was written is what is checked.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "pare/checkpoint/dtype.h"
#include "pare/checkpoint/model.h"
#include "pare/model/inputs.h"
#include "pare/verify/answers.h"

namespace pare {

// Bytes of weights that still lie in model.onnx. Half of what protocol buffers can hold: a session of onnxruntime takes
// up to twice the weights that it reads from there, and once those beside it.
constexpr uint64_t onnx_external_above = 1'000'000'000;

// Writes model.onnx, and model.onnx.data beside it where weights have more than `external_above` bytes, into a folder
// that exists; float32 or float16. Hands back notes: where the graph computes more, or says less, than pare does.
// Refused, with every reason, where ONNX cannot say the model.
std::vector<std::string> write_onnx(const std::filesystem::path& folder, const Model& model, Dtype dtype,
                                    uint64_t external_above = onnx_external_above);

struct GraphAnswers {
  GivenAnswers given;
  Dtype dtype = Dtype::f32;        // that the graph computes in
  std::vector<std::string> notes;  // how near it came to the end of float16
};

// What the graph of a file says to these inputs, computed in float64 from the file alone; the Architecture only tells
// what they are. A graph that has a past is asked a second time, in two steps of which the second knows the first by
// its cache: VerificationFailed where the two differ. InputError where a number is too large for the type that the
// graph has for it: it would be an infinity elsewhere. One step is left out where it changes the angles of the other
// (dynamic and long RoPE), which no cache can make up for.
GraphAnswers run_onnx(const std::filesystem::path& file, const Architecture& architecture,
                      std::span<const Inputs> inputs);

}  // namespace pare
