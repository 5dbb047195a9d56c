#pragma once
// Threads of a block of a GPU as fibers: each goes on until it waits for others, in an order that is drawn anew.

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <stdexcept>
#include <vector>

namespace pare::test {

// AddressSanitizer takes fibers for one thread that loses its stack.
inline bool fibers_work() {
#ifdef __SANITIZE_ADDRESS__
  std::puts("skipped kernels on a CPU: AddressSanitizer cannot follow fibers");
  return false;
#else
  return true;
#endif
}

// The threads of one block.
class FiberBlock {
 public:
  // `shown` is told which thread goes on.
  explicit FiberBlock(void (*shown)(int thread)) : shown_(shown) {}
  void* shared() { return memory_.data(); }

  void run(int threads, int shared_bytes, std::mt19937& random, const std::function<void()>& work) {
    memory_.assign(static_cast<size_t>(shared_bytes + 15) / 16, Line{});
    for (Line& line : memory_) {  // what nobody wrote is no number
      std::fill(std::begin(line.numbers), std::end(line.numbers), std::nanf(""));
    }
    while (std::ssize(fibers_) < threads) {
      fibers_.push_back(std::make_unique<Fiber>());
    }
    work_ = &work;
    threads_ = threads;
    std::vector<int> order(static_cast<size_t>(threads));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (int n = 0; n < threads; ++n) {
      Fiber& fiber = *fibers_[n];
      getcontext(&fiber.start);
      fiber.start.uc_stack.ss_sp = fiber.stack.data();
      fiber.start.uc_stack.ss_size = fiber.stack.size();
      fiber.start.uc_link = nullptr;
      makecontext(&fiber.start, reinterpret_cast<void (*)()>(&FiberBlock::begin), 0);
      fiber.state = State::fresh;
      fiber.shuffles = 0;
    }
    running_ = this;
    for (int warp = some_warp(random); warp >= 0; warp = some_warp(random)) {
      for (const int n : order) {
        if (n / 32 == warp) {
          go_on(n);
        }
      }
      if (all(32 * warp, 32 * warp + 32, State::at_warp)) {
        let_go(32 * warp, 32 * warp + 32);
      }
    }
  }

  void wait_for_block() { wait(State::at_block); }
  void wait_for_warp() { wait(State::at_warp); }
  uint32_t exchange(uint32_t bits, int distance) {
    Fiber& mine = *fibers_[now_];
    const int turn = mine.shuffles++ % 2, from = now_ ^ distance;
    mine.given[turn] = bits;
    wait_for_warp();
    return fibers_[from]->given[turn];
  }

 private:
  enum class State { fresh, ready, at_block, at_warp, done };
  struct alignas(16) Line {
    float numbers[4];
  };
  struct Fiber {
    std::vector<char> stack = std::vector<char>(1 << 16);
    ucontext_t start;
    jmp_buf place;
    State state = State::fresh;
    uint32_t given[2] = {};
    int shuffles = 0;
  };

  static void begin() {
    FiberBlock& block = *running_;
    (*block.work_)();
    block.fibers_[block.now_]->state = State::done;
    _longjmp(block.home_, 1);
  }

  void go_on(int n) {
    Fiber& fiber = *fibers_[n];
    if (fiber.state != State::fresh && fiber.state != State::ready) {
      return;
    }
    now_ = n;
    shown_(n);
    if (_setjmp(home_) == 0) {
      if (fiber.state == State::fresh) {
        setcontext(&fiber.start);
      }
      _longjmp(fiber.place, 1);
    }
  }

  void wait(State how) {
    Fiber& fiber = *fibers_[now_];
    fiber.state = how;
    if (_setjmp(fiber.place) == 0) {
      _longjmp(home_, 1);
    }
  }

  bool all(int first, int last, State state) const {
    return std::all_of(fibers_.begin() + first, fibers_.begin() + last,
                       [state](const auto& one) { return one->state == state; });
  }
  void let_go(int first, int last) {
    for (int n = first; n < last; ++n) {
      fibers_[n]->state = State::ready;
    }
  }

  // One of those that can go on, which may so get far ahead of the others; -1: all are done.
  int some_warp(std::mt19937& random) {
    if (all(0, threads_, State::at_block)) {
      let_go(0, threads_);
    }
    std::vector<int> able;
    for (int n = 0; n < threads_; ++n) {
      const bool goes_on = fibers_[n]->state == State::fresh || fibers_[n]->state == State::ready;
      if (goes_on && (able.empty() || able.back() != n / 32)) {
        able.push_back(n / 32);
      }
    }
    if (!able.empty()) {
      return able[random() % able.size()];
    }
    if (!all(0, threads_, State::done)) {
      throw std::logic_error("threads of a block wait for one another forever");
    }
    return -1;
  }

  inline static FiberBlock* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Line> memory_;
  const std::function<void()>* work_ = nullptr;
  void (*shown_)(int);
  jmp_buf home_;
  int threads_ = 0, now_ = 0;
};

}  // namespace pare::test
