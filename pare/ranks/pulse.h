#pragma once
// Who of several ranks is still there. Each writes a sign of life to the store that all share, every second, from a
// thread of its own; rank 0 reads those of all, and the others that of rank 0. What a collective cannot tell, since it
// only waits, is told here: which rank it waits for, and on which host.

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace pare {

// A store as the pulse needs it: text by key. Whatever is wrong with it is thrown.
struct PulseStore {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::optional<std::string>(const std::string& key)> get;  // nothing where nobody has set it
};

struct PulseTimes {
  std::chrono::milliseconds beat{1000};      // between signs of life
  std::chrono::milliseconds silence{20000};  // after which a rank is lost
  std::chrono::milliseconds grace{15000};    // that the program has to end by itself, once it knows
};

class Pulse {
 public:
  // `names`: of each rank, as a message calls it. `force_end` is called with the message where the program, once a
  // rank is lost, does not end by itself: it waits for something that nobody can interrupt.
  Pulse(PulseStore store, int rank, std::vector<std::string> names, PulseTimes times,
        std::function<void(const std::string&)> force_end);
  ~Pulse();

  struct Ended {
    std::string why;
    bool elsewhere = false;  // somebody else says it
  };
  std::optional<Ended> ended() const;  // what is known
  // Where a collective has failed: waits until it is known whose fault it was; nothing where all are well.
  std::optional<Ended> wait_for_reason() const;

  // This rank ends before the work is done. True: it is the one that says why.
  bool leave(const std::string& why);
  void stop();  // without a word: the work is done, or the end is known

 private:
  void beat();
  void watch();
  void look();
  void set_ended(Ended ended);

  PulseStore store_;
  int rank_;
  std::vector<std::string> names_;
  PulseTimes times_;
  std::function<void(const std::string&)> force_end_;
  mutable std::mutex mutex_;
  std::optional<Ended> ended_;
  // How long this process has run, as its watcher counts. Time in which it was stopped itself is nobody's silence.
  std::atomic<std::chrono::steady_clock::duration> now_{};
  std::chrono::steady_clock::duration contact_{};  // when the store last answered
  struct Seen {
    std::string beat;
    std::chrono::steady_clock::duration changed{};
  };
  std::vector<Seen> seen_;
  std::atomic<bool> stopping_ = false;
  std::thread beater_, watcher_;
};

}  // namespace pare
