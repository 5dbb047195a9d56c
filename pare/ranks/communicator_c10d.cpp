// The communicator over libtorch's process groups.

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <iostream>
#include <set>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "pare/ranks/communicator.h"
#include "pare/ranks/pulse.h"
#include "pare/support/memory.h"

namespace pare {

namespace {

constexpr std::chrono::seconds meeting{60};       // how long one waits for the others at the start
constexpr std::chrono::minutes patience{30};      // and in a collective, while all give signs of life
constexpr std::chrono::milliseconds glance{100};  // between two looks at whether all are still there
constexpr int gloo_threads = 2;

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 && name[0] != '\0' ? name : "an unknown host";
}

// The address of this host on the way to another: where the others can reach it.
std::string address_towards(const std::string& host, int port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  refuse_if(getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0,
            "rank 0 should be at {}, which is no host that this one knows: set MASTER_ADDR to its name or address",
            host);
  char text[NI_MAXHOST] = {};
  for (const addrinfo* way = found; way != nullptr && text[0] == '\0'; way = way->ai_next) {
    const int probe = ::socket(way->ai_family, way->ai_socktype | SOCK_CLOEXEC, 0);  // a datagram's: nothing is sent
    sockaddr_storage own = {};
    socklen_t length = sizeof own;
    if (probe >= 0 && ::connect(probe, way->ai_addr, way->ai_addrlen) == 0 &&
        ::getsockname(probe, reinterpret_cast<sockaddr*>(&own), &length) == 0) {
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    }
    if (probe >= 0) {
      ::close(probe);
    }
  }
  freeaddrinfo(found);
  refuse_if(text[0] == '\0', "no way leads from this host to {}, where rank 0 should be: is the network up?", host);
  return text;
}

c10::intrusive_ptr<c10d::Store> opened_store(const Launch& launch, bool serve) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(launch.port);
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = meeting;
  try {
    auto store = c10::make_intrusive<c10d::TCPStore>(launch.address, options);
    return c10::make_intrusive<c10d::PrefixStore>("pare", store);
  } catch (const std::exception& error) {
    throw RankLost(serve ? fmt::format("rank 0 cannot listen at port {}: set MASTER_PORT to a free one ({})",
                                       launch.port, std::string(error.what()).substr(0, 200))
                         : fmt::format("rank {} on {} found no rank 0 at {}, port {}, within {} s: has it ended, or is "
                                       "the port closed?",
                                       launch.rank, host_name(), launch.address, launch.port, meeting.count()));
  }
}

std::vector<uint8_t> bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

PulseStore pulse_store(const c10::intrusive_ptr<c10d::Store>& store) {
  return {.set = [store](const std::string& key, const std::string& value) { store->set(key, bytes_of(value)); },
          .get = [store](const std::string& key) -> std::optional<std::string> {
            if (!store->check({key})) {
              return std::nullopt;
            }
            const std::vector<uint8_t> value = store->get(key);
            return std::string(value.begin(), value.end());
          }};
}

// gloo greets on stdout, which is for results.
class SilentStdout {
 public:
  SilentStdout() { std::cout.setstate(std::ios::failbit); }
  ~SilentStdout() { std::cout.clear(); }
  SilentStdout(const SilentStdout&) = delete;
  SilentStdout& operator=(const SilentStdout&) = delete;
};

}  // namespace

struct Communicator::Group {
  int rank = 0, size = 1;
  std::vector<std::string> names;
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> hosts, gpus;  // Gloo; NCCL, or none
  std::optional<Pulse> pulse;

  [[noreturn]] void end(const Pulse::Ended& ended) {
    if (ended.elsewhere) {
      throw EndedElsewhere(ended.why);
    }
    throw RankLost(
        fmt::format("{}. What was saved last is whole, and the same command goes on from it with --resume", ended.why));
  }

  // A collective that failed: the others are asked before its own words are passed on.
  [[noreturn]] void end(const std::exception& error) {
    if (const std::optional<Pulse::Ended> found = pulse->wait_for_reason()) {
      end(*found);
    }
    throw RankLost(fmt::format("{}: an exchange with the other ranks failed ({})", names[static_cast<size_t>(rank)],
                               std::string(error.what()).substr(0, 300)));
  }

  const c10::intrusive_ptr<c10d::Backend>& backend_of(const at::Tensor& tensor) const {
    return tensor.is_cpu() || !gpus ? hosts : gpus;
  }

  // What a backend takes: the tensor itself, or, where no backend has its device, a copy.
  at::Tensor within_reach(const at::Tensor& tensor) const { return gpus ? tensor : tensor.cpu(); }
  // The same for what a backend only writes.
  at::Tensor room_for(const at::Tensor& tensor) const {
    return gpus || tensor.is_cpu() ? tensor : at::empty_like(tensor, tensor.options().device(at::kCPU));
  }

  void wait(const c10::intrusive_ptr<c10d::Work>& work, bool on_gpu) {
    if (on_gpu) {  // what the device does after this waits, not this thread
      try {
        work->wait();
      } catch (const std::exception& error) {
        end(error);
      }
      return;
    }
    // A wait that timed out throws, and the work may end before it is asked about: only a completed one is waited for
    // without a limit, and only that one's words count.
    for (bool completed = false;; completed = work->isCompleted()) {
      try {
        completed ? work->wait() : work->wait(glance);
        return;
      } catch (const std::exception& error) {
        if (completed) {
          end(error);
        }
      }
      if (const std::optional<Pulse::Ended> found = pulse->ended()) {
        end(*found);
      }
    }
  }
};

struct Exchange::Work {
  std::shared_ptr<Communicator::Group> group;
  c10::intrusive_ptr<c10d::Work> work;
  bool on_gpu = false;
  std::function<void()> then;  // what is left to do with what came
};

void Exchange::wait() {
  if (work) {
    work->group->wait(work->work, work->on_gpu);
    work->then ? work->then() : void();
    work.reset();
  }
}

namespace {

// `start` begins a collective of the backend that takes `sent`.
template <class F>
Exchange begun(const std::shared_ptr<Communicator::Group>& group, const at::Tensor& sent, F&& start,
               std::function<void()> then = {}) {
  const c10::intrusive_ptr<c10d::Backend>& backend = group->backend_of(sent);
  try {
    return {std::make_shared<Exchange::Work>(
        Exchange::Work{group, start(*backend), backend == group->gpus, std::move(then)})};
  } catch (const std::exception& error) {
    group->end(error);
  }
}

// What has to be done when `exchanged` is there, where that is a copy of `tensor`.
std::function<void()> copied_back(const at::Tensor& tensor, const at::Tensor& exchanged) {
  if (exchanged.is_same(tensor)) {
    return {};
  }
  return [into = at::Tensor(tensor), exchanged] { into.copy_(exchanged); };
}

}  // namespace

Communicator::Communicator() = default;

Communicator::Communicator(const Launch& launch, std::function<void(const std::string&)> force_end) {
  const std::string own = address_towards(launch.address, launch.port);  // before anybody waits
  group_ = std::make_shared<Group>();
  group_->rank = launch.rank;
  group_->size = launch.size;
  group_->store = opened_store(launch, launch.rank == 0 && !launch.store_is_there);
  const auto name_key = [](int rank) { return "name/" + std::to_string(rank); };
  const std::string name =
      fmt::format("rank {} of {} (process {} on {})", launch.rank, launch.size, getpid(), host_name());
  group_->store->set(name_key(launch.rank), bytes_of(name));
  std::string missing;
  for (int rank = 0; rank < launch.size; ++rank) {
    try {
      group_->store->wait({name_key(rank)}, missing.empty() ? std::chrono::milliseconds(meeting) : glance);
      const std::vector<uint8_t> found = group_->store->get(name_key(rank));
      group_->names.emplace_back(found.begin(), found.end());
    } catch (const std::exception&) {
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    }
  }
  if (!missing.empty()) {
    throw RankLost(fmt::format("{} waited {} s for rank {}, which did not come: did it fail to start?", name,
                               meeting.count(), missing));
  }
  const SilentStdout silent;
  const auto options = c10d::ProcessGroupGloo::Options::create(patience);
  options->threads = gloo_threads;
  try {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(launch.one_host() ? "127.0.0.1" : own));
    group_->hosts = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>("gloo", group_->store), launch.rank, launch.size, options);
  } catch (const std::exception& error) {
    throw RankLost(
        fmt::format("{} could not connect to the other ranks ({})", name, std::string(error.what()).substr(0, 300)));
  }
  // A client of its own: the other one may wait for something else.
  group_->pulse.emplace(pulse_store(opened_store(launch, /*serve=*/false)), launch.rank, group_->names, PulseTimes(),
                        std::move(force_end));
}

int Communicator::rank() const {
  return group_ ? group_->rank : 0;
}

int Communicator::size() const {
  return group_ ? group_->size : 1;
}

std::string Communicator::name() const {
  return group_ ? group_->names[static_cast<size_t>(group_->rank)] : "rank 0 of 1";
}

std::string Communicator::use_gpu(void* cuda_part, int device) const {
  if (!group_) {
    return "";
  }
  using Name = const char* (*)(int);
  using Make = c10d::Backend* (*)(const c10::intrusive_ptr<c10d::Store>*, int, int, int64_t);
  const auto name = reinterpret_cast<Name>(cuda_part ? dlsym(cuda_part, "pare_gpu_name") : nullptr);
  const auto make = reinterpret_cast<Make>(cuda_part ? dlsym(cuda_part, "pare_nccl_group") : nullptr);
  const bool can = name != nullptr && make != nullptr;
  const std::vector<std::string> gpus = all_gather(can ? std::string(name(device)) : std::string());
  if (std::ranges::find(gpus, "") != gpus.end()) {
    return "this build of pare has no NCCL";
  }
  if (std::set<std::string>(gpus.begin(), gpus.end()).size() < gpus.size()) {
    return "not every rank has a GPU of its own";
  }
  const auto store =
      c10::static_intrusive_pointer_cast<c10d::Store>(c10::make_intrusive<c10d::PrefixStore>("nccl", group_->store));
  group_->gpus = c10::intrusive_ptr<c10d::Backend>::reclaim(
      make(&store, rank(), size(), std::chrono::milliseconds(patience).count()));
  return "";
}

Exchange Communicator::begin_all_reduce(const at::Tensor& sum) const {
  if (!group_) {
    return {};
  }
  std::vector<at::Tensor> tensors = {group_->within_reach(sum)};
  return begun(
      group_, sum, [&](c10d::Backend& backend) { return backend.allreduce(tensors); }, copied_back(sum, tensors[0]));
}

void Communicator::all_reduce(const at::Tensor& sum) const {
  begin_all_reduce(sum).wait();
}

// Gloo's own sends twice as much: it sums all on every rank, and takes a part of that.
Exchange Communicator::begin_reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const {
  if (!group_) {
    part.copy_(whole);
    return {};
  }
  at::Tensor in = group_->within_reach(whole);
  if (in.is_cuda()) {
    at::Tensor out = part;
    return begun(group_, whole, [&](c10d::Backend& backend) { return backend._reduce_scatter_base(out, in); });
  }
  const PromptlyFreed promptly;  // a bucket's size: a hole in the heap would last longer than the exchange
  at::Tensor out = at::empty_like(in);
  std::vector<int64_t> even;
  const at::Tensor sum = group_->room_for(part);
  const auto add_up = [out, sum = at::Tensor(sum), ranks = size(), back = copied_back(part, sum)]() mutable {
    at::sum_out(sum, out.view({ranks, -1}), 0);
    back ? back() : void();
  };
  return begun(
      group_, whole, [&](c10d::Backend& backend) { return backend.alltoall_base(out, in, even, even); }, add_up);
}

void Communicator::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const {
  begin_reduce_scatter(part, whole).wait();
}

void Communicator::all_gather(const at::Tensor& whole, const at::Tensor& part) const {
  if (!group_) {
    whole.copy_(part);
    return;
  }
  if (whole.is_cuda() && group_->gpus) {
    at::Tensor out = whole, in = part;
    begun(group_, part, [&](c10d::Backend& backend) { return backend._allgather_base(out, in); }).wait();
    return;
  }
  // Gloo's own gathers into a copy of the whole. As many bytes are sent where each rank broadcasts its part.
  const at::Tensor out = group_->room_for(whole);
  std::vector<at::Tensor> parts = at::chunk(out.view(-1), size());
  parts[static_cast<size_t>(rank())].copy_(part.view(-1));
  std::vector<Exchange> under_way;
  for (int root = 0; root < size(); ++root) {
    std::vector<at::Tensor> one = {parts[static_cast<size_t>(root)]};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    under_way.push_back(begun(group_, one[0], [&](c10d::Backend& backend) { return backend.broadcast(one, options); }));
  }
  for (Exchange& exchange : under_way) {
    exchange.wait();
  }
  if (!out.is_same(whole)) {
    whole.copy_(out);
  }
}

void Communicator::broadcast(const at::Tensor& tensor) const {
  if (group_) {
    std::vector<at::Tensor> tensors = {group_->within_reach(tensor)};
    begun(
        group_, tensor, [&](c10d::Backend& backend) { return backend.broadcast(tensors); },
        copied_back(tensor, tensors[0]))
        .wait();
  }
}

std::string Communicator::broadcast(const std::string& text) const {
  if (!group_) {
    return text;
  }
  const at::Tensor length = at::tensor(static_cast<int64_t>(text.size()));
  broadcast(length);
  at::Tensor bytes = at::empty({std::max<int64_t>(length.item<int64_t>(), 1)}, at::kByte);
  if (is_first()) {
    std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  }
  broadcast(bytes);
  const uint8_t* found = bytes.const_data_ptr<uint8_t>();
  return {found, found + length.item<int64_t>()};
}

std::vector<std::string> Communicator::all_gather(const std::string& text) const {
  if (!group_) {
    return {text};
  }
  const int64_t own = static_cast<int64_t>(text.size());
  const at::Tensor lengths = at::empty({size()}, at::kLong);
  all_gather(lengths, at::full({1}, own, at::kLong));
  const int64_t longest = std::max<int64_t>(lengths.max().item<int64_t>(), 1);
  const at::Tensor bytes = at::zeros({longest}, at::kByte), all = at::empty({size() * longest}, at::kByte);
  std::copy(text.begin(), text.end(), bytes.mutable_data_ptr<uint8_t>());
  all_gather(all, bytes);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < size(); ++rank) {
    const uint8_t* found = all.const_data_ptr<uint8_t>() + rank * longest;
    texts.emplace_back(found, found + lengths[rank].item<int64_t>());
  }
  return texts;
}

double Communicator::sum(double value) const {
  const at::Tensor tensor = at::tensor(value, at::kDouble);
  all_reduce(tensor);
  return tensor.item<double>();
}

void Communicator::barrier() const {
  sum(0);
}

bool Communicator::leave(const std::string& why) const {
  const bool says = !group_ || group_->pulse->leave(why);
  abandon();
  return says;
}

// Its threads may wait for ranks that are gone: it is not taken apart, and the program ends soon.
void Communicator::abandon() const {
  if (group_) {
    group_->pulse->stop();
    new std::shared_ptr<Group>(group_);
  }
}

void Communicator::finish() const {
  if (group_) {
    barrier();
    group_->pulse->stop();
    if (group_->gpus) {
      group_->gpus->shutdown();
    }
    barrier();  // the store ends with rank 0
  }
}

bool has_process_groups() {
  return true;
}

}  // namespace pare
