#include "pare/cli/ranks.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "pare/cli/failure.h"
#include "pare/cli/output.h"
#include "pare/model/device.h"
#include "pare/ranks/shares.h"
#include "pare/support/log.h"
#include "pare/support/progress.h"

namespace pare {

namespace {

constexpr int exit_interrupted = 130;
constexpr std::array commands_with_ranks = {"train", "verify", "probe", "run", "reproduce"};

bool is_elsewhere(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const EndedElsewhere&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

void as_ranks(const Settings& settings, const std::function<void(const Communicator&)>& work) {
  const std::optional<Launch> launch = launch_of_this_process();
  // A group of one exchanges with itself: what that costs can be measured.
  if (!launch || (launch->size == 1 && std::getenv("PARE_GROUP_OF_ONE") == nullptr)) {
    work(Communicator());
    return;
  }
  if (settings.threads == 0) {
    at::set_num_threads(std::max(1, at::get_num_threads() / launch->local_size));
  }
  const Communicator ranks(*launch, [first = launch->rank == 0, json = settings.json](const std::string& why) {
    const bool interrupted = why == Interrupted().what();
    if (interrupted && first) {  // in the middle of work of its own, such as a run of a sweep
      print_failure(describe(std::make_exception_ptr(Interrupted())), json, is_quiet());
    } else if (!interrupted) {
      set_silent(false);
      print_warnings({why});
    }
    std::fflush(nullptr);
    std::_Exit(interrupted ? exit_interrupted : 1);
  });
  if (!ranks.is_first()) {
    set_quiet(true);
    show_progress(false);
  }
  const auto shared = [&] {
    check_alike(ranks, "command", fmt::format("{} in {}", settings.command, std::filesystem::current_path().string()));
    if (settings.device == "cuda") {
      const at::Device gpu = find_device(settings.device, launch->local_rank);
      if (const std::string why = ranks.use_gpu(cuda_part(), gpu.index()); !why.empty() && ranks.is_first()) {
        print_warnings({why + ": what they exchange goes through the memory of the hosts, slowly"});
      }
    }
    work(ranks);
    ranks.finish();
  };
  try {
    ranks.guarded(shared);
  } catch (const Interrupted&) {
    set_silent(!ranks.is_first());
    throw;
  } catch (const EndedElsewhere& error) {
    if (error.what() != std::string(Interrupted().what())) {
      throw;
    }
    set_silent(!ranks.is_first());  // one signal is enough for all
    throw Interrupted();
  }
}

void as_one(const Settings& settings, const std::function<std::exception_ptr(const Communicator&)>& work) {
  std::exception_ptr end, own;  // how all of them end, and this one before that
  try {
    as_ranks(settings, [&](const Communicator& ranks) {
      set_silent(!ranks.is_first());
      try {
        end = work(ranks);
      } catch (...) {
        own = std::current_exception();
        throw;
      }
    });
  } catch (const Interrupted&) {
    throw;
  } catch (const EndedElsewhere&) {
    set_silent(true);
    if (own && !is_elsewhere(own)) {  // the same mistake, most likely: so is the exit code
      std::rethrow_exception(own);
    }
    throw;
  } catch (...) {  // only this rank knows
    set_silent(false);
    throw;
  }
  if (end) {
    std::rethrow_exception(end);
  }
}

void check_takes_ranks(const std::string& command) {
  std::optional<Launch> launch;
  try {
    launch = launch_of_this_process();
  } catch (const InputError&) {  // half of an environment, which only those who need it whole complain of
    return;
  }
  if (!launch || launch->size == 1 || std::ranges::find(commands_with_ranks, command) != commands_with_ranks.end()) {
    return;
  }
  set_silent(launch->rank != 0);
  throw InputError(
      fmt::format("pare {} is the work of one process, and {} started {}: run it without the launcher ({} "
                  "divide theirs)",
                  command, launch->launcher, launch->size, fmt::join(commands_with_ranks, ", ")));
}

}  // namespace pare
