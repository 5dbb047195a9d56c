#pragma once
// Where a model runs. The CUDA library of libtorch is loaded only when it is asked for.

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <c10/util/Exception.h>
#include <optional>

#include <filesystem>
#include <string>
#include <vector>

namespace pare {

// Where and in which arithmetic a model runs.
struct Arithmetic {
  at::ScalarType dtype = at::kDouble;
  at::Device device = at::kCPU;
  std::optional<at::ScalarType> matrices = {};  // kept in this type, and widened where they are multiplied with
};

// "cpu" or "cuda". InputError when this libtorch was built without CUDA, or the machine has no such device. The first
// call chooses among several GPUs: the one of that number, counted round, is the process's from then on.
at::Device find_device(const std::string& name, int number = 0);
// What was found with the last one that is worth a line and ends nothing: handed out once.
std::vector<std::string> take_device_warnings();

// Of a GPU or of this machine: libtorch has an error of its own for the one, but not for the other.
bool is_out_of_memory(const c10::Error& error);

// The library of pare/cuda, for dlsym: null before a CUDA device was found, and in a build without it.
void* cuda_part();
struct CudaPart {
  void* library = nullptr;  // null where there is none, or it cannot be loaded
  std::string why;          // why it cannot; empty where there is none, since nothing but speed depends on it
};
// Loads it from beside a program in `folder`, or from where an installed one keeps it.
CudaPart load_cuda_part(const std::filesystem::path& folder);

}  // namespace pare
