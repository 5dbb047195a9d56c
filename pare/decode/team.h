#pragma once
// Threads that do one thing together: each its part, with meetings in between. They sleep from one run to the next, so
// libtorch's own threads have the cores in between.

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace pare {

class Team {
 public:
  explicit Team(int size);  // with the caller, who is member 0
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  // part(member) by every member. Parts do not throw.
  void run(const std::function<void(int)>& part);
  // Of every member, within a run: nobody goes on before all are here.
  void meet();

 private:
  void work(int member);
  void send_home();

  int size_;
  const std::function<void(int)>* part_ = nullptr;
  std::atomic<int> runs_ = 0, arrived_ = 0, meetings_ = 0;
  std::atomic<bool> over_ = false;
  std::vector<std::jthread> others_;
};

}  // namespace pare
