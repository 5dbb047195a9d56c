#pragma once
// Where a model runs. The CUDA library of libtorch is loaded only when it is asked for.

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <string>

namespace pare {

// "cpu" or "cuda". InputError when this libtorch was built without CUDA, or the machine has no such device.
at::Device find_device(const std::string& name);

// Of a GPU or of this machine: libtorch has an error of its own for the one, but not for the other.
bool is_out_of_memory(const c10::Error& error);

// The library of pare/cuda, for dlsym: null before a CUDA device was found, and in a build without it.
void* cuda_part();

}  // namespace pare
