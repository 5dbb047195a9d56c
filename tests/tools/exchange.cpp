// One rank of several, as a launcher starts it: every collective once, beside what it has to give.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstdio>

#include "pare/ranks/communicator.h"

namespace {

int failed = 0;

void check(bool holds, const char* what) {
  if (!holds) {
    std::fprintf(stderr, "wrong: %s\n", what);
    ++failed;
  }
}

}  // namespace

int main() {
  const auto launch = pare::launch_of_this_process();
  if (!launch) {
    std::fputs("no launcher\n", stderr);
    return 2;
  }
  try {
    const pare::Communicator ranks(*launch, [](const std::string&) {});
    const int64_t rank = ranks.rank(), size = ranks.size(), all = size * (size - 1) / 2;
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kLong}) {
      const at::Tensor sum = at::arange(1000, type) * rank;
      ranks.all_reduce(sum);
      check(at::equal(sum, at::arange(1000, type) * all), "all_reduce");
      const at::Tensor whole = at::arange(3 * size, type) * (rank + 1), part = at::empty({3}, type);
      ranks.reduce_scatter(part, whole);
      check(at::equal(part, at::arange(3 * rank, 3 * rank + 3, type) * (all + size)), "reduce_scatter");
      const at::Tensor gathered = at::empty({2 * size}, type);
      ranks.all_gather(gathered, at::full({2}, rank, type));
      check(at::equal(gathered, at::arange(size, type).repeat_interleave(2)), "all_gather");
      const at::Tensor told = at::full({5}, rank + 7, type);
      ranks.broadcast(told);
      check(at::equal(told, at::full({5}, 7, type)), "broadcast");
    }
    pare::Exchange first = ranks.begin_all_reduce(at::ones({10})), second;
    const at::Tensor later = at::ones({100'000}) * rank;
    second = ranks.begin_all_reduce(later);
    second.wait();
    first.wait();
    check(later[0].item<float>() == static_cast<float>(all), "two exchanges under way");
    check(ranks.broadcast(rank == 0 ? std::string("text of rank 0") : std::string()) == "text of rank 0", "text");
    check(ranks.broadcast(std::string()).empty(), "an empty text");
    const std::vector<std::string> texts = ranks.all_gather(std::string(static_cast<size_t>(rank), 'x'));
    check(std::ssize(texts) == size && texts.back().size() == static_cast<size_t>(size - 1) && texts[0].empty(),
          "texts");
    check(ranks.sum(0.5) == 0.5 * static_cast<double>(size), "sum");
    ranks.barrier();
    ranks.finish();
    std::printf("%s\n", ranks.name().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return failed == 0 ? 0 : 1;
}
