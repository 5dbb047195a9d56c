#include "pare/claims/round.h"

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>

namespace pare {

namespace {

constexpr std::chrono::milliseconds between{100};  // one exchange and the next

}  // namespace

struct Round::State {
  Communicator ranks;
  std::atomic<bool> done = false, interrupted = false;  // of this rank
  std::atomic<bool> stop = false, failed = false;       // of any
  std::atomic<bool> told = false;                       // that one was interrupted
  std::exception_ptr error;                             // once it has failed

  void exchange() {
    try {
      while (true) {
        const int64_t is_done = done ? 1 : 0;  // before the other, which is set first
        const at::Tensor state = at::tensor({is_done, int64_t{interrupted ? 1 : 0}}, at::kLong);
        ranks.all_reduce(state);
        stop = stop || state[1].item<int64_t>() > 0;
        if (state[0].item<int64_t>() == ranks.size()) {
          return;
        }
        std::this_thread::sleep_for(between);
      }
    } catch (...) {
      error = std::current_exception();
      failed = true;
    }
  }
};

Round::Round(const Communicator& ranks) : state_(std::make_shared<State>()) {
  state_->ranks = ranks;
  if (!ranks.alone()) {
    thread_ = std::thread([state = state_] { state->exchange(); });
  }
}

// Without an end something was thrown: the thread may wait for ranks that are gone, and the program ends soon.
Round::~Round() {
  if (thread_.joinable()) {
    thread_.detach();
  }
}

void Round::check() const {
  if (state_->failed) {
    std::rethrow_exception(state_->error);
  }
  if (state_->stop && !state_->told.exchange(true)) {
    throw Interrupted();
  }
}

bool Round::end(bool interrupted) {
  state_->interrupted = interrupted;
  state_->done = true;
  if (!thread_.joinable()) {
    return interrupted;
  }
  thread_.join();
  if (state_->failed) {
    std::rethrow_exception(state_->error);
  }
  return state_->stop;
}

}  // namespace pare
