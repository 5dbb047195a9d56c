#pragma once
// While each of several ranks works for itself for a while, such as for one run: who is done, and whether to stop.

#include <memory>
#include <thread>

#include "pare/ranks/communicator.h"

namespace pare {

// All ranks begin one together and end it together. In between no rank exchanges anything else.
class Round {
 public:
  explicit Round(const Communicator& ranks);
  ~Round();
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // Called often. Interrupted where another rank is, once, so that what was done can be saved; RankLost and
  // EndedElsewhere.
  void check() const;
  // This rank has done its part, or was interrupted in it: waits for the others, however long they take. Whether any
  // was interrupted.
  bool end(bool interrupted);

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace pare
