#include "pare/model/device.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <utility>

#include "pare/support/error.h"
#include "pare/support/files.h"
#include "pare/support/names.h"

namespace pare {

namespace {

// It stands beside the CPU library that we are linked with.
std::filesystem::path cuda_library() {
  Dl_info info = {};
  const void* inside = reinterpret_cast<const void*>(static_cast<at::Context& (*)()>(&at::globalContext));
  PARE_CHECK(dladdr(inside, &info) != 0 && info.dli_fname != nullptr, "libtorch is a shared library");
  return std::filesystem::path(info.dli_fname).parent_path() / "libtorch_cuda.so";
}

void* loaded_part = nullptr;

std::vector<std::string> warnings;

void load_cuda() {
  const std::filesystem::path library = cuda_library();
  refuse_if(!std::filesystem::exists(library), "--device cuda: the libtorch in {} was built without CUDA",
            library.parent_path().string());
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw IoError(
        fmt::format("--device cuda: cannot load {}: {} (a torch with all that it depends on brings it: make test)",
                    library.string(), dlerror()));
  }
}

}  // namespace

at::Device find_device(const std::string& name, int number) {
  if (name == "cpu") {
    return at::kCPU;
  }
  PARE_CHECK(name == "cuda", "the command line knows two devices");
  load_cuda();
  refuse_if(at::getNumGPUs() == 0, "--device cuda: this machine has no CUDA device that libtorch can use");
  static at::Device chosen(at::kCPU);
  if (chosen.is_cpu()) {
    chosen = at::Device(at::kCUDA, static_cast<at::DeviceIndex>(number % at::getNumGPUs()));
    c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(chosen);
    std::error_code unknown;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", unknown);
    CudaPart part = load_cuda_part(program.parent_path());
    loaded_part = part.library;
    if (!part.why.empty()) {
      warnings.push_back(part.why);
    }
  }
  return chosen;
}

CudaPart load_cuda_part(const std::filesystem::path& folder) {
  CudaPart part;
  for (const char* place : {"libpare_cuda.so", "../lib/libpare_cuda.so"}) {
    const std::filesystem::path file = folder / place;
    if (!path_exists(file)) {
      continue;
    }
    part.library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (part.library) {
      return {part.library, ""};
    }
    part.why = fmt::format("{} cannot be loaded, so steps of training run piece by piece, more slowly: {}",
                           quote(file.string()), dlerror());
  }
  return part;
}

std::vector<std::string> take_device_warnings() {
  return std::exchange(warnings, {});
}

bool is_out_of_memory(const c10::Error& error) {
  const std::string_view text = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("DefaultCPUAllocator: ") != std::string_view::npos;
}

void* cuda_part() {
  return loaded_part;
}

}  // namespace pare
