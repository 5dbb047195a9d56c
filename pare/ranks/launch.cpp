#include "pare/ranks/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

constexpr int first_port = 20'000, ports = 12'000;  // below those that systems hand out by themselves

// Where each launcher says what. Those of torchrun are understood by any launcher that sets them itself.
struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
  const char *job, *step;  // together no two jobs of a machine have them: they choose the port
};
constexpr Names launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", nullptr},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
    // Set by srun alone: in a batch script, outside of srun, there is one process, whatever the job asked for.
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID", "SLURM_STEP_ID"}};

int number_of(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  refuse_if(error != std::errc() || end != text.data() + text.size() || value < least || value > most,
            "the environment has {}={}: expected a whole number from {} to {}", name, quote(text), least, most);
  return value;
}

// "node[03-07,9],other" begins with node03.
std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) {
    return list.substr(0, comma);
  }
  const size_t end = list.find_first_of(",-]", open + 1);
  const size_t close = list.find(']', open);
  const std::string after = close == std::string::npos ? "" : list.substr(close + 1, list.find(',', close) - close - 1);
  return list.substr(0, open) + list.substr(open + 1, end - open - 1) + after;
}

int derived_port(const std::string& job) {
  uint64_t hash = 1469598103934665603u;  // FNV-1a
  for (const char c : job) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  }
  return first_port + static_cast<int>(hash % ports);
}

// "4(x2),3": how many tasks each host has; that of the first one is enough to tell whether there is another.
int tasks_of_first_host(const std::string& list) {
  return std::atoi(list.c_str());
}

}  // namespace

std::optional<Launch> launch_of(const Environment& environment) {
  for (const Names& names : launchers) {
    const std::optional<std::string> rank = environment(names.rank), size = environment(names.size);
    if (!size || (!rank && std::string_view(names.launcher) != "torchrun")) {
      continue;
    }
    refuse_if(!rank, "the environment has {}={}, and no {}: expected both, as {} sets them, or neither", names.size,
              quote(*size), names.rank, names.launcher);
    Launch launch{.launcher = names.launcher};
    launch.size = number_of(names.size, *size, 1, 100'000);
    launch.rank = number_of(names.rank, *rank, 0, launch.size - 1);
    const std::optional<std::string> local_rank = environment(names.local_rank),
                                     local_size =
                                         names.local_size == nullptr ? std::nullopt : environment(names.local_size);
    launch.local_rank = local_rank ? number_of(names.local_rank, *local_rank, 0, launch.size - 1) : launch.rank;
    launch.local_size = local_size ? number_of(names.local_size, *local_size, 1, launch.size) : launch.size;
    if (const auto tasks = environment("SLURM_STEP_TASKS_PER_NODE"); tasks && !names.local_size) {
      launch.local_size = std::clamp(tasks_of_first_host(*tasks), 1, launch.size);
    }
    const std::optional<std::string> address = environment("MASTER_ADDR"), port = environment("MASTER_PORT"),
                                     hosts = environment("SLURM_STEP_NODELIST");
    if (address) {
      launch.address = *address;
    } else if (launch.one_host()) {
      launch.address = "127.0.0.1";
    } else if (hosts && !names.local_size) {
      launch.address = first_host(*hosts);
    }
    refuse_if(
        launch.address.empty(),
        "{} started {} processes on several hosts, and nothing says where rank 0 is: set MASTER_ADDR to its host, "
        "as in 'mpirun -x MASTER_ADDR=HOST -n {} pare ...'",
        launch.launcher, launch.size, launch.size);
    const std::optional<std::string> job = environment(names.job),
                                     step = names.step == nullptr ? std::nullopt : environment(names.step);
    launch.port =
        port ? number_of("MASTER_PORT", *port, 1, 65'535) : derived_port(job.value_or("") + step.value_or(""));
    launch.store_is_there = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    return launch;
  }
  return std::nullopt;
}

std::optional<Launch> launch_of_this_process() {
  return launch_of([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace pare
