// Exchange between GPUs: libtorch's process group over NCCL, which needs CUDA's own headers and NCCL's.
// pare/ranks/communicator_c10d.cpp calls it by these names.

#include <ATen/cuda/CUDAContext.h>

#include <cstdio>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

extern "C" {

// No two GPUs have the same, whatever number a process knows one by.
const char* pare_gpu_name(int device) {
  static std::string name;
  name.clear();
  for (const char byte : at::cuda::getDeviceProperties(static_cast<c10::DeviceIndex>(device))->uuid.bytes) {
    char text[3];
    std::snprintf(text, sizeof text, "%02x", static_cast<unsigned char>(byte));
    name += text;
  }
  return name.c_str();
}

// The caller owns what it is given, as c10::intrusive_ptr::reclaim takes it.
c10d::Backend* pare_nccl_group(const c10::intrusive_ptr<c10d::Store>* store, int rank, int size, int64_t patience_ms) {
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(patience_ms);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(*store, rank, size, options).release();
}

}  // extern "C"
