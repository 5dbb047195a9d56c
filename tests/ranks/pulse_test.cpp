#include "pare/ranks/pulse.h"

#include <doctest/doctest.h>

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>

namespace {

using namespace pare;
using namespace std::chrono_literals;

// A store that can be frozen for one client, as a network that is cut does.
struct Shared {
  std::mutex mutex;
  std::map<std::string, std::string> values;
};

struct Client {
  std::shared_ptr<Shared> shared;
  std::shared_ptr<std::atomic<bool>> cut = std::make_shared<std::atomic<bool>>(false);

  PulseStore store() const {
    return {.set =
                [shared = shared, cut = cut](const std::string& key, const std::string& value) {
                  if (*cut) {
                    throw std::runtime_error("cut");
                  }
                  const std::lock_guard lock(shared->mutex);
                  shared->values[key] = value;
                },
            .get = [shared = shared, cut = cut](const std::string& key) -> std::optional<std::string> {
              if (*cut) {
                throw std::runtime_error("cut");
              }
              const std::lock_guard lock(shared->mutex);
              const auto found = shared->values.find(key);
              return found == shared->values.end() ? std::nullopt : std::optional(found->second);
            }};
  }
};

const std::vector<std::string> names = {"rank 0 of 3 (on a)", "rank 1 of 3 (on b)", "rank 2 of 3 (on c)"};
const PulseTimes quick{.beat = 50ms, .silence = 2000ms, .grace = 60s};

Pulse::Ended waited(const Pulse& pulse) {
  for (int i = 0; i < 1000 && !pulse.ended(); ++i) {
    std::this_thread::sleep_for(20ms);
  }
  REQUIRE(pulse.ended());
  return *pulse.ended();
}

TEST_CASE("a rank that no longer gives a sign of life is named by rank 0, and told to the others") {
  const auto shared = std::make_shared<Shared>();
  const auto quiet = [](const std::string&) {};
  Pulse first(Client{shared}.store(), 0, names, quick, quiet);
  Pulse second(Client{shared}.store(), 1, names, quick, quiet);
  {
    Pulse third(Client{shared}.store(), 2, names, quick, quiet);
    std::this_thread::sleep_for(300ms);
    CHECK_FALSE(first.ended());
    CHECK_FALSE(third.ended());
  }  // as if killed: it beats no more
  const Pulse::Ended found = waited(first), told = waited(second);
  CHECK(found.why.find("rank 2 of 3 (on c) has given no sign of life") == 0);
  CHECK_FALSE(found.elsewhere);
  CHECK(told.why == found.why);
  CHECK(told.elsewhere);
}

TEST_CASE("where the network is cut each side names the other") {
  const auto shared = std::make_shared<Shared>();
  const auto quiet = [](const std::string&) {};
  const Client client{shared};
  Pulse first(Client{shared}.store(), 0, names, quick, quiet), other(Client{shared}.store(), 2, names, quick, quiet);
  Pulse second(client.store(), 1, names, quick, quiet);
  std::this_thread::sleep_for(200ms);
  *client.cut = true;
  CHECK(waited(first).why.find("rank 1 of 3 (on b)") == 0);
  CHECK(waited(second).why.find("rank 0 of 3 (on a) cannot be reached from rank 1 of 3 (on b)") == 0);
}

TEST_CASE("who leaves says why, and the others do not") {
  const auto shared = std::make_shared<Shared>();
  const auto quiet = [](const std::string&) {};
  Pulse first(Client{shared}.store(), 0, names, quick, quiet), second(Client{shared}.store(), 1, names, quick, quiet);
  CHECK(second.leave("the disk is full"));
  CHECK(waited(first).why == "the disk is full");
  CHECK(first.ended()->elsewhere);
  CHECK_FALSE(first.leave("something that follows from it"));
}

TEST_CASE("a program that does not end by itself is ended") {
  const auto shared = std::make_shared<Shared>();
  std::atomic<bool> forced = false;
  PulseTimes times = quick;
  times.grace = 100ms;
  Pulse first(Client{shared}.store(), 0, {"a", "b"}, times, [&](const std::string&) { forced = true; });
  waited(first);
  for (int i = 0; i < 500 && !forced; ++i) {
    std::this_thread::sleep_for(20ms);
  }
  CHECK(forced);
}

}  // namespace
