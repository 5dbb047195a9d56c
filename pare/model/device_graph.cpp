#include "pare/model/device_graph.h"

#include <dlfcn.h>

#include <utility>

#include "pare/model/device.h"
#include "pare/support/error.h"

namespace pare {

namespace {

// The functions of pare/cuda/graph.cpp, where that library is loaded.
struct Recorder {
  void* (*begin)(int device) = nullptr;
  void (*end)(void*) = nullptr;
  void (*replay)(void*) = nullptr;
  void (*free)(void*) = nullptr;
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  PARE_CHECK(function != nullptr, std::string("libpare_cuda has no ") + name);
}

const Recorder& recorder() {
  static const Recorder found = [] {
    Recorder made;
    if (void* library = cuda_part()) {
      find(library, "pare_graph_begin", made.begin);
      find(library, "pare_graph_end", made.end);
      find(library, "pare_graph_replay", made.replay);
      find(library, "pare_graph_free", made.free);
    }
    return made;
  }();
  return found;
}

}  // namespace

bool DeviceGraph::works_on(at::Device device) {
  return device.is_cuda() && recorder().begin != nullptr;
}

DeviceGraph::DeviceGraph(at::Device device, const std::function<void()>& work) {
  PARE_CHECK(works_on(device), "a device that repeats nothing");
  graph_ = recorder().begin(device.index());
  try {
    work();
  } catch (...) {
    try {
      recorder().end(graph_);
    } catch (const std::exception&) {  // what `work` says is the reason
    }
    recorder().free(graph_);
    throw;
  }
  recorder().end(graph_);
}

DeviceGraph::~DeviceGraph() {
  if (graph_) {
    recorder().free(graph_);
  }
}

DeviceGraph::DeviceGraph(DeviceGraph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}

DeviceGraph& DeviceGraph::operator=(DeviceGraph&& other) noexcept {
  std::swap(graph_, other.graph_);
  return *this;
}

void DeviceGraph::replay() {
  recorder().replay(graph_);
}

void RepeatedWork::run() {
  constexpr int64_t before_recording = 2;  // libraries that a piece needs are loaded when it is first done
  if (times_++ < before_recording || !DeviceGraph::works_on(device_)) {
    return work_();
  }
  if (!recorded_) {
    recorded_.emplace(device_, work_);
  }
  recorded_->replay();
}

}  // namespace pare
