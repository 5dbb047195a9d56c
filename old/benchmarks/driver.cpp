// One side of the benchmark: holds a model and times what benchmarks/executor.py asks for, line by line, so that both
// sides can take turns in one run.
//
//   driver MODEL DTYPE THREADS DEVICE
//   > forward INPUTS.safetensors        one pass over a batch        < SECONDS
//   > decode INPUTS.safetensors COUNT   prefill, then greedy steps   < SECONDS ID ID ...   (the steps alone are timed)
//   > answers INPUTS.safetensors OUT    logits or hidden states into a file, to compare
//   > read INPUTS.safetensors BYTES     a plain sum over as many     < SECONDS              (what the memory can do)
//   > profile INPUTS.safetensors COUNT  decoding, as a table: operator, calls, microseconds and allocations of a step

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <sstream>

#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/model/cache.h"
#include "pare/model/device.h"
#include "pare/model/executor.h"
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

std::string decode(const Executor& model, const Inputs& inputs, int64_t count, at::Device device) {
  Cache cache(inputs.ids.size(1) + count);
  Inputs next;
  next.ids = model.forward(inputs, &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
  std::string ids = fmt::format("{}", next.ids.item<int64_t>());
  Clock clock(device);
  for (int64_t i = 1; i < count; ++i) {
    next.ids = model.forward(next, &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
    ids += fmt::format(" {}", next.ids.item<int64_t>());
  }
  return fmt::format("{} {}", clock.seconds(), ids);
}

// What libtorch is asked to do, by operator: the time is each operator's own, without those that it calls.
class Profile : public c10::MemoryReportingInfoBase {
 public:
  struct Row {
    int64_t calls = 0, allocations = 0;
    double seconds = 0;
  };

  void enter(const char* name) { open_.push_back({name, std::chrono::steady_clock::now(), 0}); }
  void leave() {
    const Open done = open_.back();
    open_.pop_back();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - done.start).count();
    Row& row = rows_[done.name];
    row.calls += 1;
    row.seconds += seconds - done.inner;
    if (!open_.empty()) {
      open_.back().inner += seconds;
    }
  }
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    if (size > 0) {
      rows_[open_.empty() ? "(none)" : open_.back().name].allocations += 1;
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::string table(int64_t steps) const {
    std::vector<std::pair<std::string, Row>> rows(rows_.begin(), rows_.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    const double count = static_cast<double>(steps);
    std::string text = fmt::format("{:36} {:>8} {:>10} {:>12}\n", "operator", "calls", "us", "allocations");
    Row all;
    const auto line = [&](const std::string& name, const Row& row) {
      text += fmt::format("{:36} {:8.1f} {:10.1f} {:12.1f}\n", name, static_cast<double>(row.calls) / count,
                          1e6 * row.seconds / count, static_cast<double>(row.allocations) / count);
    };
    for (const auto& [name, row] : rows) {
      line(name, row);
      all.calls += row.calls;
      all.seconds += row.seconds;
      all.allocations += row.allocations;
    }
    line("all", all);
    return text;
  }

 private:
  struct Open {
    const char* name;
    std::chrono::steady_clock::time_point start;
    double inner;
  };
  std::vector<Open> open_;
  std::map<std::string, Row> rows_;
};

std::string profile(const Executor& model, const Inputs& inputs, int64_t count) {
  static Profile* current = nullptr;  // callbacks are plain functions
  Cache cache(inputs.ids.size(1) + count);
  Inputs next;
  next.ids = model.forward(inputs, &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
  const auto kept = std::make_shared<Profile>();
  current = kept.get();
  const c10::DebugInfoGuard allocations(c10::DebugInfoKind::PROFILER_STATE, kept);
  const at::CallbackHandle handle =
      at::addThreadLocalCallback(at::RecordFunctionCallback(
                                     [](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
                                       current->enter(f.name());
                                       return nullptr;
                                     },
                                     [](const at::RecordFunction&, at::ObserverContext*) { current->leave(); })
                                     .scopes({at::RecordScope::FUNCTION}));
  for (int64_t i = 1; i < count; ++i) {
    next.ids = model.forward(next, &cache, nullptr, Logits::last).logits.select(1, -1).argmax(-1, true);
  }
  at::removeCallback(handle);
  return kept->table(count - 1);
}

void write_answers(const Outputs& outputs, const std::string& path) {
  const at::Tensor answer =
      (outputs.logits.defined() ? outputs.logits : outputs.hidden).to(at::kCPU, at::kFloat).contiguous();
  SafetensorsWriter writer(path, {{"answers", {Dtype::f32, answer.sizes().vec()}}}, {});
  writer.write("answers", {static_cast<const std::byte*>(answer.const_data_ptr()), answer.nbytes()});
  writer.finish();
}

void serve(const Executor& model, at::Device device) {
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
    } else if (verb == "read") {
      const at::Tensor bytes = at::ones({std::stol(last) / 4}, at::TensorOptions(at::kFloat).device(device));
      Clock clock(device);
      bytes.sum().item<float>();
      std::cout << fmt::format("{}", clock.seconds()) << std::endl;
    } else if (verb == "profile") {
      std::cout << profile(model, inputs, std::stol(last)) << std::flush;
    } else if (verb == "answers") {
      write_answers(model.forward(inputs), last);
      std::cout << "written" << std::endl;
    } else {
      throw InputError("unknown verb '" + verb + "': forward, decode, read, answers or profile");
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
    const ModelFolder stored = open_model(argv[1]);
    const at::InferenceMode inference;
    const at::ScalarType dtype = scalar_type(float_dtype_from_word(argv[2]).value());
    const Executor model(stored.model, dtype, device);
    std::cout << "ready" << std::endl;
    serve(model, device);
  } catch (const std::exception& error) {
    std::cerr << "driver: " << error.what() << '\n';
    return 1;
  }
}
