// One side of the benchmark: holds a model and times what benchmarks/executor.py asks for, line by line, so that both
// sides can take turns in one run.
//
//   driver MODEL DTYPE THREADS DEVICE
//   > forward INPUTS.safetensors        one pass over a batch        < SECONDS
//   > decode INPUTS.safetensors COUNT   prefill, then greedy steps   < SECONDS ID ID ...   (the steps alone are timed)
//   > answers INPUTS.safetensors OUT    logits or hidden states into a file, to compare

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>
#include <iostream>
#include <sstream>

#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/model/cache.h"
#include "pare/model/device.h"
#include "pare/model/model.h"
#include "pare/support/error.h"

namespace {

using namespace pare;

Inputs read_inputs(const std::string& path, at::Device device) {
  const Weights stored = weights_of(SafetensorsFile(path));
  Inputs inputs;
  inputs.ids = stored.at("input_ids").load().to(device, at::kLong);
  if (stored.contains("attention_mask")) {
    inputs.mask = stored.at("attention_mask").load().to(device, at::kBool);
  }
  return inputs;
}

class Clock {
 public:
  explicit Clock(at::Device device) : device_(device) { start_ = now(); }
  double seconds() { return std::chrono::duration<double>(now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point now() {
    if (device_.is_cuda()) {
      at::zeros({1}, device_).item<float>();  // waits for everything queued before it
    }
    return std::chrono::steady_clock::now();
  }
  at::Device device_;
  std::chrono::steady_clock::time_point start_;
};

std::string decode(const Model& model, const Inputs& inputs, int64_t count, at::Device device) {
  Cache cache(inputs.ids.size(1) + count);
  Inputs next;
  next.ids = model.forward(inputs, &cache).logits.select(1, -1).argmax(-1, true);
  std::string ids = fmt::format("{}", next.ids.item<int64_t>());
  Clock clock(device);
  for (int64_t i = 1; i < count; ++i) {
    next.ids = model.forward(next, &cache).logits.select(1, -1).argmax(-1, true);
    ids += fmt::format(" {}", next.ids.item<int64_t>());
  }
  return fmt::format("{} {}", clock.seconds(), ids);
}

void write_answers(const Outputs& outputs, const std::string& path) {
  const at::Tensor answer =
      (outputs.logits.defined() ? outputs.logits : outputs.hidden).to(at::kCPU, at::kFloat).contiguous();
  SafetensorsWriter writer(path, {{"answers", {Dtype::f32, answer.sizes().vec()}}}, {});
  writer.write("answers", {static_cast<const std::byte*>(answer.const_data_ptr()), answer.nbytes()});
  writer.finish();
}

void serve(const Model& model, at::Device device) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, path, last;
    words >> verb >> path >> last;
    const Inputs inputs = read_inputs(path, device);
    if (verb == "forward") {
      Clock clock(device);
      model.forward(inputs);
      std::cout << fmt::format("{}", clock.seconds()) << std::endl;
    } else if (verb == "decode") {
      std::cout << decode(model, inputs, std::stol(last), device) << std::endl;
    } else if (verb == "answers") {
      write_answers(model.forward(inputs), last);
      std::cout << "written" << std::endl;
    } else {
      throw InputError("unknown verb '" + verb + "': forward, decode or answers");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: driver MODEL DTYPE THREADS DEVICE\n";
    return 1;
  }
  try {
    at::set_num_threads(std::stoi(argv[3]));
    const at::Device device = find_device(argv[4]);
    const StoredModel stored = open_model(argv[1]);
    const at::InferenceMode inference;
    const at::ScalarType dtype = scalar_type(float_dtype_from_word(argv[2]).value());
    const Model model(stored.architecture, stored.weights, dtype, device);
    std::cout << "ready" << std::endl;
    serve(model, device);
  } catch (const std::exception& error) {
    std::cerr << "driver: " << error.what() << '\n';
    return 1;
  }
}
