// One side of the benchmark: holds a model and times what a script of benchmarks/ asks for, line by line, so that both
// sides can take turns in one run.
//
//   driver MODEL DTYPE THREADS DEVICE
//   > forward INPUTS.safetensors        one pass over a batch        < SECONDS
//   > decode INPUTS.safetensors COUNT   prefill, then greedy steps   < SECONDS ID ID ...   (the steps alone are timed)
//   > logits INPUTS.safetensors COUNT OUT   the same, with the logits of each token in a file   < ID ID ...
//   > answers INPUTS.safetensors OUT    logits or hidden states into a file, to compare
//   > read INPUTS.safetensors COUNT     as often, all that a step reads   < SECONDS BYTES   (what the memory can do)
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

#include "pare/bench/bench.h"
#include "pare/bench/plain_read.h"
#include "pare/checkpoint/model_folder.h"
#include "pare/checkpoint/safetensors.h"
#include "pare/decode/decoder.h"
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

// The sequence of the inputs, and then always the most likely token. `seen` gets the logits of each.
template <class Seen>
std::vector<int64_t> decode(Decoder& decoder, const Inputs& inputs, int64_t count, double& seconds, const Seen& seen) {
  const at::Tensor prompt = inputs.ids.cpu().contiguous();
  decoder.reset();
  std::span<const float> logits =
      decoder.prefill({prompt.const_data_ptr<int64_t>(), static_cast<size_t>(prompt.numel())});
  std::vector<int64_t> ids;
  Clock clock(at::kCPU);  // logits are on the CPU, so a step has waited for its device
  while (true) {
    seen(logits);
    ids.push_back(std::ranges::max_element(logits) - logits.begin());
    if (std::ssize(ids) == count) {
      break;
    }
    logits = decoder.step(ids.back());
  }
  seconds = clock.seconds();
  return ids;
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

void write_answers(const at::Tensor& found, const std::string& path) {
  const at::Tensor answer = found.to(at::kCPU, at::kFloat).contiguous();
  SafetensorsWriter writer(path, {{"answers", {Dtype::f32, answer.sizes().vec()}}}, {});
  writer.write("answers", {static_cast<const std::byte*>(answer.const_data_ptr()), answer.nbytes()});
  writer.finish();
}

// The model, in the form that is asked for first: the executor's, the decoder's, or both.
class Sides {
 public:
  Sides(const Model& model, at::ScalarType dtype, at::Device device) : model_(model), dtype_(dtype), device_(device) {}
  const Executor& executor() { return executor_ ? *executor_ : executor_.emplace(model_, dtype_, device_); }
  Decoder& decoder() {
    return decoder_ ? *decoder_ : decoder_.emplace(model_, Arithmetic{.dtype = dtype_, .device = device_});
  }
  PlainRead& read() {
    if (!read_) {
      std::vector<std::span<const std::byte>> matrices = decoder().matrices();
      const int64_t bytes = stored_step_bytes(model_.architecture, dtype_of(decoder().dtype()));
      matrices.empty() ? read_.emplace(bytes, device_, at::get_num_threads())
                       : read_.emplace(std::move(matrices), at::get_num_threads());
    }
    return *read_;
  }

 private:
  const Model& model_;
  at::ScalarType dtype_;
  at::Device device_;
  std::optional<Executor> executor_;
  std::optional<Decoder> decoder_;
  std::optional<PlainRead> read_;
};

void serve(Sides& sides, at::Device device) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string verb, path, last, out;
    words >> verb >> path >> last >> out;
    const Inputs inputs = read_inputs(path, device);
    if (verb == "forward") {
      const Executor& model = sides.executor();
      Clock clock(device);
      model.forward(inputs);
      std::cout << fmt::format("{}", clock.seconds()) << std::endl;
    } else if (verb == "decode") {
      double seconds = 0;
      const std::vector<int64_t> ids = decode(sides.decoder(), inputs, std::stol(last), seconds, [](const auto&) {});
      std::cout << fmt::format("{} {}", seconds, fmt::join(ids, " ")) << std::endl;
    } else if (verb == "logits") {
      std::vector<at::Tensor> rows;
      double seconds = 0;
      const std::vector<int64_t> ids = decode(
          sides.decoder(), inputs, std::stol(last), seconds,
          [&](const auto& logits) { rows.push_back(at::tensor(at::ArrayRef<float>(logits.data(), logits.size()))); });
      write_answers(at::stack(rows), out);
      std::cout << fmt::format("{}", fmt::join(ids, " ")) << std::endl;
    } else if (verb == "read") {
      PlainRead& read = sides.read();
      Clock clock(device);
      for (int64_t n = std::stol(last); n > 0; --n) {
        read.read();
      }
      std::cout << fmt::format("{} {}", clock.seconds(), read.bytes()) << std::endl;
    } else if (verb == "profile") {
      std::cout << profile(sides.executor(), inputs, std::stol(last)) << std::flush;
    } else if (verb == "answers") {
      const Outputs outputs = sides.executor().forward(inputs);
      write_answers(outputs.logits.defined() ? outputs.logits : outputs.hidden, last);
      std::cout << "written" << std::endl;
    } else {
      throw InputError("unknown verb '" + verb + "': forward, decode, logits, read, answers or profile");
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
    Sides sides(stored.model, dtype, device);
    std::cout << "ready" << std::endl;
    serve(sides, device);
  } catch (const std::exception& error) {
    std::cerr << "driver: " << error.what() << '\n';
    return 1;
  }
}
