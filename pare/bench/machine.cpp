#include "pare/bench/machine.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>

namespace pare {

namespace {

std::string text_of(const char* path) {  // a file of the kernel, which has no size
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// "VmRSS:   12345 kB" of /proc/self/status.
std::optional<int64_t> status_bytes(const std::string& key) {
  std::istringstream lines(text_of("/proc/self/status"));
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(key)) {
      int64_t kilobytes = 0;
      std::istringstream(line.substr(key.size())) >> kilobytes;
      return 1024 * kilobytes;
    }
  }
  return std::nullopt;
}

struct Held {
  std::optional<int64_t> now, peak;
};

Held held_on(at::Device device) {
  if (device.is_cpu()) {
    return {status_bytes("VmRSS:"), status_bytes("VmHWM:")};
  }
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const auto& bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
  return {bytes.current, bytes.peak};
}

// Whether the peak is from now on that of what comes.
bool forget_peak(at::Device device) {
  if (!device.is_cpu()) {
    at::globalContext().lazyInitDevice(device.type());  // the allocator knows no device before
    c10::getDeviceAllocator(device.type())->resetPeakStats(device.index());
    return true;
  }
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

}  // namespace

std::optional<ProcessorTime> parse_processor_time(const std::string& stat, double ticks) {
  std::istringstream lines(stat);
  ProcessorTime time;
  double idle = 0;
  for (std::string line; std::getline(lines, line) && line.starts_with("cpu");) {
    std::istringstream words(line);
    std::string name;
    double user = 0, nice = 0, system = 0, waiting = 0, interrupts = 0, soft = 0, stolen = 0;
    words >> name >> user >> nice >> system >> idle >> waiting >> interrupts >> soft >> stolen;
    if (name != "cpu") {
      ++time.cores;
      continue;
    }
    if (!words) {
      return std::nullopt;
    }
    time.busy = (user + nice + system + interrupts + soft) / ticks;  // user has what guests take
    time.stolen = stolen / ticks;
  }
  return time.cores > 0 && time.busy > 0 ? std::optional(time) : std::nullopt;
}

std::optional<ProcessorTime> processor_time() {
  std::optional<ProcessorTime> time =
      parse_processor_time(text_of("/proc/stat"), static_cast<double>(::sysconf(_SC_CLK_TCK)));
  rusage own = {};
  if (!time || ::getrusage(RUSAGE_SELF, &own) != 0) {
    return std::nullopt;
  }
  time->own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime);
  time->wall = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return time;
}

std::optional<MachineUse> use_between(const std::optional<ProcessorTime>& from,
                                      const std::optional<ProcessorTime>& to) {
  if (!from || !to || to->wall <= from->wall) {
    return std::nullopt;
  }
  const double wall = to->wall - from->wall, own = to->own - from->own;
  return MachineUse{.cores = to->cores,
                    .own = own / wall,
                    .others = std::max(0.0, (to->busy - from->busy - own) / wall),
                    .stolen = std::max(0.0, (to->stolen - from->stolen) / wall)};
}

std::vector<std::string> noise_of(const std::optional<MachineUse>& use, std::span<const Scatter> scatter) {
  std::vector<std::string> reasons;
  if (use && use->others > most_others * static_cast<double>(use->cores)) {
    reasons.push_back(fmt::format("other processes kept {:.1f} of {} cores busy (more than {:.0f} % of them)",
                                  use->others, use->cores, 100 * most_others));
  }
  if (use && use->stolen > most_stolen * static_cast<double>(use->cores)) {
    reasons.push_back(fmt::format("the host of this virtual machine took {:.2f} of {} cores (more than {:.0f} %)",
                                  use->stolen, use->cores, 100 * most_stolen));
  }
  std::vector<std::string> wide;
  for (const Scatter& each : scatter) {
    if (each.spread > most_spread) {
      wide.push_back(fmt::format("{} {:.0f} %", each.what, 100 * each.spread));
    }
  }
  if (!wide.empty()) {
    reasons.push_back(fmt::format("the middle half of the rounds lies more than {:.0f} % apart: {}", 100 * most_spread,
                                  fmt::join(wide, ", ")));
  }
  return reasons;
}

MemoryWatch::MemoryWatch(at::Device device) : device_(device) {
#if defined(__GLIBC__)
  malloc_trim(0);  // what others freed would be taken for ours
#endif
  if (forget_peak(device)) {
    before_ = held_on(device).now;
  }
}

std::optional<int64_t> MemoryWatch::held() const {
  const std::optional<int64_t> now = held_on(device_).now;
  return before_ && now ? std::optional(std::max<int64_t>(0, *now - *before_)) : std::nullopt;
}

std::optional<int64_t> MemoryWatch::peak() const {
  const std::optional<int64_t> most = held_on(device_).peak;
  return before_ && most ? std::optional(std::max<int64_t>(0, *most - *before_)) : std::nullopt;
}

}  // namespace pare
