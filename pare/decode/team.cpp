#include "pare/decode/team.h"

namespace pare {

namespace {

// Others come within microseconds where every member has a core; where one has not, it gets this one.
constexpr int turns_before_yielding = 4000, turns_before_sleeping = 20'000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int size) : size_(size) {
  try {
    for (int member = 1; member < size; ++member) {
      others_.emplace_back([this, member] { work(member); });
    }
  } catch (...) {  // no more threads: those that are there would be waited for, and they wait
    send_home();
    throw;
  }
}

Team::~Team() {
  send_home();
}

void Team::send_home() {
  over_ = true;
  ++runs_;
  runs_.notify_all();
}

void Team::run(const std::function<void(int)>& part) {
  part_ = &part;
  ++runs_;
  runs_.notify_all();
  part(0);
  meet();
}

void Team::meet() {
  const int meeting = meetings_;
  if (++arrived_ == size_) {
    arrived_ = 0;
    ++meetings_;
    return;
  }
  for (int turn = 0; meetings_ == meeting; ++turn) {
    turn < turns_before_yielding ? pause() : std::this_thread::yield();
  }
}

void Team::work(int member) {
  for (int done = 0;; ++done) {
    for (int turn = 0; runs_ == done && turn < turns_before_sleeping; ++turn) {
      pause();
    }
    runs_.wait(done);
    if (over_) {
      return;
    }
    (*part_)(member);
    meet();
  }
}

}  // namespace pare
