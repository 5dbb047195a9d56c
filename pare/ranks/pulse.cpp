#include "pare/ranks/pulse.h"

#include <fmt/format.h>

#include <algorithm>

namespace pare {

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* end_key = "ended";                           // what rank 0 found, or why a rank left
constexpr std::chrono::milliseconds tick{50}, longest_tick{1000};  // longer ones: the process was stopped

std::string beat_key(size_t rank) {
  return "beat/" + std::to_string(rank);
}

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Pulse::Pulse(PulseStore store, int rank, std::vector<std::string> names, PulseTimes times,
             std::function<void(const std::string&)> force_end)
    : store_(std::move(store)),
      rank_(rank),
      names_(std::move(names)),
      times_(times),
      force_end_(std::move(force_end)),
      seen_(names_.size()),
      beater_([this] { beat(); }),
      watcher_([this] { watch(); }) {}

// A thread that waits for a store that no longer answers cannot be ended: it is left behind, and the program ends soon.
Pulse::~Pulse() {
  stop();
  watcher_.join();
  const bool unreachable = seconds(now_.load() - contact_) > 2 * seconds(times_.beat);
  unreachable ? beater_.detach() : beater_.join();
}

void Pulse::stop() {
  stopping_ = true;
}

void Pulse::beat() {
  for (int64_t number = 1; !stopping_; ++number) {
    try {
      store_.set(beat_key(static_cast<size_t>(rank_)), std::to_string(number));
      look();
      const std::lock_guard lock(mutex_);
      contact_ = now_;
    } catch (const std::exception&) {
      // The store is gone: the watcher sees for how long.
    }
    for (auto waited = tick; waited < times_.beat && !stopping_; waited += tick) {
      std::this_thread::sleep_for(tick);
    }
  }
}

// Rank 0 looks at everybody, the others at it: what it finds they are told.
void Pulse::look() {
  if (const std::optional<std::string> end = store_.get(end_key)) {
    set_ended({*end, /*elsewhere=*/true});
  }
  const size_t first = rank_ == 0 ? 1 : 0, last = rank_ == 0 ? names_.size() : 1;
  for (size_t other = first; other < last; ++other) {
    const std::string beat = store_.get(beat_key(other)).value_or("");
    const Clock::duration now = now_;
    Seen& seen = seen_[other];
    if (beat != seen.beat) {
      seen = {beat, now};
    } else if (now - seen.changed > times_.silence) {
      const std::string why = fmt::format(
          "{} has given no sign of life for {:.0f} s: it was killed, hangs, or its host "
          "cannot be reached",
          names_[other], seconds(now - seen.changed));
      set_ended({why, false});
      store_.set(end_key, why);
    }
  }
}

void Pulse::watch() {
  std::optional<Clock::duration> known;
  for (Clock::time_point before = Clock::now(); !stopping_;) {
    std::this_thread::sleep_for(tick);
    const Clock::time_point after = Clock::now();
    const Clock::duration now = now_.load() + std::min<Clock::duration>(after - before, longest_tick);
    now_ = now;
    before = after;
    std::unique_lock lock(mutex_);
    const Clock::duration silence = now - contact_;
    lock.unlock();
    if (silence > times_.silence) {
      set_ended(
          {fmt::format("{} cannot be reached from {} for {:.0f} s: it has ended, hangs, or the network between the "
                       "two is down",
                       names_.front(), names_[static_cast<size_t>(rank_)], seconds(silence)),
           false});
    }
    if (!known && ended()) {
      known = now;
    }
    if (known && now - *known > times_.grace && !stopping_) {
      force_end_(ended()->why);
      return;
    }
  }
}

void Pulse::set_ended(Ended ended) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    ended_ = std::move(ended);
  }
}

std::optional<Pulse::Ended> Pulse::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

std::optional<Pulse::Ended> Pulse::wait_for_reason() const {
  const Clock::time_point until = Clock::now() + times_.silence + 3 * times_.beat;
  while (!ended() && Clock::now() < until) {
    std::this_thread::sleep_for(tick);
  }
  return ended();
}

// The first to leave says why; rank 0 where several leave at once, as they do where all of them find the same mistake.
bool Pulse::leave(const std::string& why) {
  if (ended()) {
    return !ended()->elsewhere;
  }
  bool first = true;
  try {
    if (rank_ != 0) {
      std::this_thread::sleep_for(times_.beat);
      first = !store_.get(end_key);
    }
    if (first) {
      store_.set(end_key, why);
    }
    if (rank_ == 0) {  // the store may end with it: the others have to have read it
      std::this_thread::sleep_for(3 * times_.beat);
    }
  } catch (const std::exception&) {
    // Nobody can be told.
  }
  stop();
  return first;
}

}  // namespace pare
