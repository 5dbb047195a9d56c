#pragma once
// Work for a device, recorded once and handed over whole each time. A step of a small model is a thousand short pieces
// of work, and a CPU that hands them over one by one is slower than the GPU that does them.

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace pare {

class DeviceGraph {
 public:
  // Only on CUDA, and only where this build has the library that does it (docs/training.md).
  static bool works_on(at::Device device);

  // Records what `work` asks of the device; nothing is done yet. It must not wait for the device, and each time the
  // same memory is read and written.
  DeviceGraph(at::Device device, const std::function<void()>& work);
  ~DeviceGraph();
  DeviceGraph(DeviceGraph&& other) noexcept;
  DeviceGraph& operator=(DeviceGraph&& other) noexcept;

  void replay();

 private:
  void* graph_ = nullptr;
};

// Work that is done again and again, the same each time: piece by piece at first, then, where the device can, recorded.
class RepeatedWork {
 public:
  RepeatedWork(at::Device device, std::function<void()> work) : device_(device), work_(std::move(work)) {}
  void run();

 private:
  at::Device device_;
  std::function<void()> work_;
  int64_t times_ = 0;
  std::optional<DeviceGraph> recorded_;
};

}  // namespace pare
