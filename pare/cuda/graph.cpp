// What of pare needs CUDA's own headers: a library apart, loaded when somebody asks for a GPU, after libtorch's.
// pare/model/device_graph.cpp calls it by these names.

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

namespace {

struct Recording {
  at::cuda::CUDAGraph graph;
  std::optional<c10::cuda::CUDAStreamGuard> stream;  // only while it is recorded
};

}  // namespace

extern "C" {

void* pare_graph_begin(int device) {
  c10::cuda::device_synchronize();
  // What was computed before left its memory with the allocator; the recorded step gets memory of its own.
  c10::cuda::CUDACachingAllocator::emptyCache();
  auto recording = std::make_unique<Recording>();
  recording->stream.emplace(c10::cuda::getStreamFromPool(false, static_cast<c10::DeviceIndex>(device)));
  recording->graph.capture_begin();
  return recording.release();
}

void pare_graph_end(void* handle) {
  Recording& recording = *static_cast<Recording*>(handle);
  recording.graph.capture_end();
  recording.stream.reset();
}

void pare_graph_replay(void* handle) {
  static_cast<Recording*>(handle)->graph.replay();
}

void pare_graph_free(void* handle) {
  delete static_cast<Recording*>(handle);
}

}  // extern "C"
