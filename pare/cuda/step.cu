// Runs a step of decoding: its kernels, captured once as a graph and handed over whole, on the default stream. No
// libtorch here, but the CUDA runtime that it has loaded. pare/decode/device_engine.cpp calls it by these names.

#include <cuda_runtime.h>

#define PARE_SHARED_MEMORY(type, name) extern __shared__ __align__(16) type name[]

namespace pare::device_step {

// What this thread does next comes after all that the kernel before has written. Where kernels cannot overlap, it did.
__device__ inline void after_the_one_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_the_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void prefetch(const void* line) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
}
// Of a matrix: nobody writes it, and nobody reads it again in this step.
__device__ inline uint4 read_once(const uint4* from) {
  uint4 w;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(w.x), "=r"(w.y), "=r"(w.z), "=r"(w.w)
      : "l"(from));
  return w;
}

}  // namespace pare::device_step

#include "pare/cuda/step_launch.cuh"

namespace {

using namespace pare::device_step;

constexpr int most_shared_bytes = 96 * 1024;  // all GPUs that this is compiled for have so much

struct Failed {
  cudaError_t error;
};
void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw Failed{error};
  }
}

struct Step {
  int device = 0;
  StepList plan;
  cudaGraphExec_t graph = nullptr;
  State* answer = nullptr;  // pinned
  float* logits = nullptr;  // pinned
};

// One kernel after another on a stream, each of which may begin while the one before ends.
struct Launch {
  cudaStream_t stream;
  bool overlapping;
  template <class Work>
  void operator()(void (*kernel)(Work), const Shape& shape, const Work& work) const {
    if (shape.shared_bytes > 48 * 1024) {  // always as much, since the next one would set it for those before
      check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes));
    }
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y));
    config.blockDim = dim3(static_cast<unsigned>(shape.threads));
    config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = overlapping ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, work));
  }
};

void record(Step& step) {
  int multiprocessors = 0, major = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, step.device));
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, step.device));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  try {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    const Launch launch = {stream, major >= 9};
    try {
      step.plan.number == Number::bfloat16 ? launch_all<Brain>(step.plan, multiprocessors, launch)
                                           : launch_all<float>(step.plan, multiprocessors, launch);
    } catch (const Failed&) {
      cudaStreamEndCapture(stream, &graph);
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&step.graph, graph, 0));
  } catch (const Failed&) {
    graph ? cudaGraphDestroy(graph) : cudaSuccess;
    cudaStreamDestroy(stream);
    throw;
  }
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

void release(Step* step) {
  cudaSetDevice(step->device);
  step->graph ? cudaGraphExecDestroy(step->graph) : cudaSuccess;
  step->answer ? cudaFreeHost(step->answer) : cudaSuccess;
  step->logits ? cudaFreeHost(step->logits) : cudaSuccess;
  delete step;
}

template <class F>
const char* guarded(const F& f) {
  try {
    f();
    return nullptr;
  } catch (const Failed& failed) {
    cudaGetLastError();
    return cudaGetErrorString(failed.error);
  }
}

}  // namespace

extern "C" {

// What it was asked for, or null and why. The plan is copied into a graph: only what it points to on the device stays.
void* pare_step_make(const StepList* plan, int device, const char** why) {
  Step* step = new Step{.device = device, .plan = *plan};
  *why = guarded([&] {
    check(cudaSetDevice(device));
    check(cudaMallocHost(&step->answer, sizeof *step->answer));
    check(cudaMallocHost(&step->logits, sizeof(float) * static_cast<size_t>(plan->vocab + 1)));
    record(*step);
  });
  if (*why) {
    release(step);
    return nullptr;
  }
  return step;
}

// Reads the token after `length` others; null, or what went wrong. `logits`: where the caller finds them, on the host;
// null if only the most likely token is asked for.
const char* pare_step_run(void* handle, int token, int length, const float** logits, int* likeliest, float* most) {
  Step& step = *static_cast<Step*>(handle);
  return guarded([&] {
    check(cudaSetDevice(step.device));
    *step.answer = {token, length, 0, 0};
    check(cudaMemcpyAsync(step.plan.state, step.answer, sizeof(State), cudaMemcpyHostToDevice, nullptr));
    check(cudaGraphLaunch(step.graph, nullptr));
    check(cudaMemcpyAsync(step.answer, step.plan.state, sizeof(State), cudaMemcpyDeviceToHost, nullptr));
    if (logits) {
      check(cudaMemcpyAsync(step.logits, step.plan.logits, sizeof(float) * static_cast<size_t>(step.plan.vocab),
                            cudaMemcpyDeviceToHost, nullptr));
      *logits = step.logits;
    }
    check(cudaStreamSynchronize(nullptr));
    *likeliest = step.answer->token;
    *most = step.answer->most;
  });
}

void pare_step_free(void* handle) {
  release(static_cast<Step*>(handle));
}

}  // extern "C"
