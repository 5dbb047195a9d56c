#pragma once
// What a machine did while something was measured: whose time its cores took, how much memory was held, and when that
// is reason to believe no figure.

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace pare {

// Over some time, in cores on average.
struct MachineUse {
  int64_t cores = 0;
  double own = 0;     // this process
  double others = 0;  // all other processes
  double stolen = 0;  // by the host of a virtual machine
};

// Seconds of processor time, from the start of the machine and of the process.
struct ProcessorTime {
  double wall = 0, own = 0, busy = 0, stolen = 0;
  int64_t cores = 0;
};
// Nothing where the system does not tell.
std::optional<ProcessorTime> processor_time();
// `stat`: the text of /proc/stat, in ticks of a second.
std::optional<ProcessorTime> parse_processor_time(const std::string& stat, double ticks);
std::optional<MachineUse> use_between(const std::optional<ProcessorTime>& from, const std::optional<ProcessorTime>& to);

// How far a figure was from itself, over rounds: the middle half of them, as a share of the median.
struct Scatter {
  std::string what;  // "decode of gpt2"
  double spread = 0;
};

// A machine is noisy where a figure scatters by more than this, other processes take more than that share of its cores,
// or a host more than this one.
constexpr double most_spread = 0.1, most_others = 0.1, most_stolen = 0.02;
// Why the machine was noisy, a sentence each without full stop; empty where it was quiet.
std::vector<std::string> noise_of(const std::optional<MachineUse>& use, std::span<const Scatter> scatter);

// Memory that this process holds on a device, and the most that it held since the last one began; on a CPU the resident
// set. Nothing where the system does not tell.
class MemoryWatch {
 public:
  explicit MemoryWatch(at::Device device);
  std::optional<int64_t> held() const;  // more than when it began
  std::optional<int64_t> peak() const;

 private:
  at::Device device_;
  std::optional<int64_t> before_;
};

}  // namespace pare
