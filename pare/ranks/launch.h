#pragma once
// How several processes that were started together find each other: what torchrun, srun and mpirun tell each of them
// in its environment.

#include <functional>
#include <optional>
#include <string>

namespace pare {

struct Launch {
  std::string launcher;  // what started it: "torchrun", "mpirun" or "srun"
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // among those on this host
  std::string address;                 // of the host of rank 0
  int port = 0;
  bool store_is_there = false;  // the launcher serves the store at that port; else rank 0 does

  bool one_host() const { return local_size == size; }
};

// Of an environment; none where nothing was started by a launcher. InputError where what it says is half, or no number.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<Launch> launch_of(const Environment& environment);
std::optional<Launch> launch_of_this_process();

}  // namespace pare
