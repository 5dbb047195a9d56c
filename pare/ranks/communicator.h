#pragma once
// Several processes that work as one: each has a rank, and what they exchange goes through libtorch's process groups
// (Gloo between hosts, NCCL between GPUs). A process that was started alone is rank 0 of 1, and exchanges nothing.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pare/ranks/launch.h"
#include "pare/support/error.h"

namespace pare {

// A rank is gone, hangs or cannot be reached; the message names it and its host. Exit code 1.
struct RankLost : IoError {
  using IoError::IoError;
};

// Another rank has ended, and says why itself. Exit code 1, and nothing more is printed.
struct EndedElsewhere : IoError {
  using IoError::IoError;
};

// Work that goes on while the caller does something else.
class Exchange {
 public:
  void wait();  // RankLost, and EndedElsewhere
  struct Work;
  std::shared_ptr<Work> work;  // none: nothing to wait for
};

class Communicator {
 public:
  Communicator();  // alone
  // Meets the others. RankLost where they do not come within a minute. InputError where the libtorch at hand has no
  // process groups. `force_end` ends the program with a message: where a rank is lost, and the program, which waits for
  // something that nobody can interrupt, does not end by itself.
  Communicator(const Launch& launch, std::function<void(const std::string&)> force_end);

  int rank() const;
  int size() const;
  bool is_first() const { return rank() == 0; }
  bool alone() const { return !group_; }
  std::string name() const;  // "rank 2 of 4 on HOST"

  // From here on tensors on GPUs are exchanged by NCCL, on the device, where `cuda_part` (pare/model/device.h) brings
  // it and each rank has a GPU of its own. Returns why not; tensors then go through the memory of the hosts.
  std::string use_gpu(void* cuda_part, int device) const;

  // All ranks call these in one order. Tensors are contiguous, on the CPU or on the rank's GPU; a GPU is handed the
  // exchange and nobody waits for it.
  void all_reduce(const at::Tensor& sum) const;
  Exchange begin_all_reduce(const at::Tensor& sum) const;
  // The rank's own part of the sum, of as many as there are ranks; `part` may lie in `whole`, at its place. On CPUs
  // each number is added up in the order of ranks.
  void reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const;
  Exchange begin_reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const;
  void all_gather(const at::Tensor& whole, const at::Tensor& part) const;  // parts in the order of ranks
  void broadcast(const at::Tensor& tensor) const;                          // what rank 0 has
  std::string broadcast(const std::string& text) const;
  std::vector<std::string> all_gather(const std::string& text) const;  // of every rank
  double sum(double value) const;
  void barrier() const;

  // What `work` does goes wrong on one rank or on all: each of the others learns of it at its next exchange, and one
  // says why.
  template <class F>
  auto guarded(F&& work) const -> decltype(work()) {
    try {
      return work();
    } catch (const RankLost&) {
      abandon();
      throw;
    } catch (const EndedElsewhere&) {
      abandon();
      throw;
    } catch (const Interrupted&) {
      leave("interrupted");
      throw;
    } catch (const std::exception& error) {
      if (!leave(error.what())) {
        throw EndedElsewhere(error.what());
      }
      throw;
    }
  }
  // All have done their work: nobody waits for anybody any more.
  void finish() const;

  struct Group;

 private:
  bool leave(const std::string& why) const;  // whether this rank is the one that says it
  void abandon() const;
  std::shared_ptr<Group> group_;
};

// Whether the libtorch that this program was built with has process groups, and if not, how to get one that has.
bool has_process_groups();
constexpr const char* how_to_get_process_groups =
    "the libtorch that pare was built with has no process groups: build with the torch package of PyPI (make build "
    "fetches it)";

}  // namespace pare
