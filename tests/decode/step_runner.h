#pragma once
// Who runs the kernels of a step in tests: their text on a CPU, or a GPU; and memory for what they are given.

#include <ATen/ATen.h>

#include <cstdio>
#include <random>
#include <vector>

#include "pare/decode/device_engine.h"
#include "tests/decode/cuda_on_cpu.h"
#include "tests/model/cuda.h"

// Behind CUDA's words.
#include "pare/cuda/step_launch.cuh"

namespace pare::test {

namespace step = device_step;

// As pare/cuda/step.cu does it, on a GPU with so few multiprocessors that every block has something to do.
class RunnerOnCpu : public StepRunner {
 public:
  void take(const step::StepList& plan) override {
    work_.assign(plan.work, plan.work + plan.count);
    plan_ = plan;
    plan_.work = work_.data();
  }
  Answer run(int64_t id, int64_t length, bool logits) override {
    *plan_.state = {static_cast<int>(id), static_cast<int>(length), 0, 0};
    const auto launch = [this](auto kernel, const step::Shape& shape, const auto& work) {
      std::vector<std::pair<int, int>> blocks;
      for (int x = 0; x < shape.blocks_x; ++x) {
        for (int y = 0; y < shape.blocks_y; ++y) {
          blocks.emplace_back(x, y);
        }
      }
      std::shuffle(blocks.begin(), blocks.end(), random_);
      step::gridDim = {static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y)};
      for (const auto& [x, y] : blocks) {
        step::blockIdx = {static_cast<unsigned>(x), static_cast<unsigned>(y)};
        step::block.run(shape.threads, shape.shared_bytes, random_, [&] { kernel(work); });
      }
    };
    plan_.number == step::Number::bfloat16 ? step::launch_all<step::Brain>(plan_, multiprocessors, launch)
                                           : step::launch_all<float>(plan_, multiprocessors, launch);
    return {.likeliest = plan_.state->token, .most = plan_.state->most, .logits = logits ? plan_.logits : nullptr};
  }

  int multiprocessors = 1;

 private:
  std::vector<step::Piecework> work_;
  step::StepList plan_;
  std::mt19937 random_{3};
};

inline at::Tensor wide(const at::Tensor& x) {
  return x.cpu().to(at::kDouble);
}

// Tensors that kernels are given by their addresses.
struct Memory {
  at::Device device;
  std::vector<at::Tensor> kept = {};
  float* floats(const at::Tensor& x) {  // in whole quads; what a test sees is without their rest
    const at::Tensor whole = at::constant_pad_nd(x.to(at::kFloat).flatten(), {0, (4 - x.numel() % 4) % 4}, NAN);
    return kept.emplace_back(whole.to(device).clone().narrow(0, 0, x.numel()).view(x.sizes()))
        .mutable_data_ptr<float>();
  }
  void* numbers(const at::Tensor& x, at::ScalarType type) {
    return kept.emplace_back(x.to(type).to(device).clone().contiguous()).mutable_data_ptr();
  }
  int* integers(int64_t count) {
    return kept.emplace_back(at::zeros({count}, at::kInt).to(device)).mutable_data_ptr<int>();
  }
  at::Tensor last() const { return wide(kept.back()); }
};

inline step::State* state_in(Memory& memory) {
  return reinterpret_cast<step::State*>(memory.integers(4));
}

// Largest error as a share of what the terms of the sums are together.
inline double off(const at::Tensor& found, const at::Tensor& expected, const at::Tensor& terms) {
  return ((found - expected).abs() / (terms + 1e-30)).max().item<double>();
}

inline void run_one(StepRunner& runner, const step::Piecework& work, at::ScalarType type, step::State* state,
                    int64_t length) {
  runner.take({.work = &work,
               .count = 1,
               .number = type == at::kFloat ? step::Number::float32 : step::Number::bfloat16,
               .state = state});
  runner.run(0, length, false);
}

// Where the program keeps it.
inline std::unique_ptr<StepRunner> runner_of_gpu() {
  if (!has_cuda()) {
    return nullptr;
  }
  std::unique_ptr<StepRunner> runner = device_runner(find_device("cuda"));
  if (!runner) {
    std::puts("skipped kernels of a step: this build has none (docs/design.md)");
  }
  return runner;
}

}  // namespace pare::test
