// The communicator where libtorch has no process groups: one process works as ever, several are refused.

#include <ATen/ATen.h>

#include "pare/ranks/communicator.h"

namespace pare {

struct Exchange::Work {};
struct Communicator::Group {};

void Exchange::wait() {}

Communicator::Communicator() = default;

Communicator::Communicator(const Launch& launch, std::function<void(const std::string&)>) {
  refuse_if(launch.size > 1, "{} started {} processes, and {}", launch.launcher, launch.size,
            how_to_get_process_groups);
}

int Communicator::rank() const {
  return 0;
}

int Communicator::size() const {
  return 1;
}

std::string Communicator::name() const {
  return "rank 0 of 1";
}

std::string Communicator::use_gpu(void*, int) const {
  return "";
}

Exchange Communicator::begin_all_reduce(const at::Tensor&) const {
  return {};
}

void Communicator::all_reduce(const at::Tensor&) const {}

Exchange Communicator::begin_reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const {
  part.copy_(whole);
  return {};
}

void Communicator::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const {
  begin_reduce_scatter(part, whole);
}

void Communicator::all_gather(const at::Tensor& whole, const at::Tensor& part) const {
  whole.copy_(part);
}

void Communicator::broadcast(const at::Tensor&) const {}

std::string Communicator::broadcast(const std::string& text) const {
  return text;
}

std::vector<std::string> Communicator::all_gather(const std::string& text) const {
  return {text};
}

double Communicator::sum(double value) const {
  return value;
}

void Communicator::barrier() const {}

bool Communicator::leave(const std::string&) const {
  return true;
}

void Communicator::abandon() const {}

void Communicator::finish() const {}

bool has_process_groups() {
  return false;
}

}  // namespace pare
