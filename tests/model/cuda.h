#pragma once
// Whether there is a GPU, and a watch over who waits for it.

#include <dlfcn.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "pare/model/device.h"

namespace pare::test {

inline bool has_cuda() {
  try {
    find_device("cuda");
    return true;
  } catch (const std::runtime_error& none) {
    std::puts((std::string("skipped CUDA: ") + none.what()).c_str());
    return false;
  }
}

// c10::cuda::warning_state(), by the name of its one static variable: its header needs a CUDA toolkit. An enum that is
// 0, 1 for a warning or 2 for an error wherever libtorch makes the host wait for the GPU.
inline int* wait_mode() {
  return static_cast<int*>(dlsym(RTLD_DEFAULT, "_ZZN3c104cuda13warning_stateEvE14warning_state_"));
}

class NoWaiting {
 public:
  NoWaiting() { *wait_mode() = 2; }
  ~NoWaiting() { *wait_mode() = 0; }
};

}  // namespace pare::test
