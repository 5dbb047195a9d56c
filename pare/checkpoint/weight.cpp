#include "pare/checkpoint/weight.h"

#include <map>
#include <mutex>
#include <optional>

#include "pare/support/error.h"
#include "pare/support/mapped.h"

namespace pare {

namespace {

// What was measured of a node.
class Numbers {
 public:
  std::optional<double> find(const std::string& what) {
    const std::lock_guard lock(mutex_);
    const auto found = numbers_.find(what);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(const std::string& what, double number) {
    const std::lock_guard lock(mutex_);
    numbers_.emplace(what, number);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, double> numbers_;
};

}  // namespace

struct Weight::Node {
  Formula formula;
  Dtype dtype = Dtype::f32;
  Shape shape;
  Load load = nullptr;  // of a leaf
  LoadRows load_rows = nullptr;
  std::vector<Weight> inputs = {};
  Operation operation = nullptr;  // of what is made
  Rows rows = Rows::all;
  std::shared_ptr<Numbers> numbers = std::make_shared<Numbers>();
};

Weight Weight::leaf(Formula formula, Dtype dtype, Shape shape, Load load, LoadRows load_rows) {
  return Weight(std::make_shared<const Node>(Node{.formula = std::move(formula),
                                                  .dtype = dtype,
                                                  .shape = std::move(shape),
                                                  .load = std::move(load),
                                                  .load_rows = std::move(load_rows)}));
}

Weight Weight::made(Formula formula, Dtype dtype, Shape shape, std::vector<Weight> inputs, Operation operation,
                    Rows rows) {
  return Weight(std::make_shared<const Node>(Node{.formula = std::move(formula),
                                                  .dtype = dtype,
                                                  .shape = std::move(shape),
                                                  .inputs = std::move(inputs),
                                                  .operation = std::move(operation),
                                                  .rows = rows}));
}

const Weight::Node& Weight::node() const {
  PARE_CHECK(node_, "a weight that is not there was asked for");
  return *node_;
}

Dtype Weight::dtype() const {
  return node().dtype;
}

const Shape& Weight::shape() const {
  return node().shape;
}

const Formula& Weight::formula() const {
  return node().formula;
}

std::span<const Weight> Weight::inputs() const {
  return node().inputs;
}

at::Tensor Weight::load() const {
  if (node().load) {
    return node().load();
  }
  std::vector<at::Tensor> loaded = mapped(node().inputs, &Weight::load);
  return node().operation(loaded);
}

bool Weight::can_load_rows() const {
  return node().load ? node().load_rows != nullptr : node().rows == Rows::each && node().inputs.front().can_load_rows();
}

at::Tensor Weight::load_rows(int64_t begin, int64_t count) const {
  PARE_CHECK(can_load_rows(), "only the whole tensor can be had");
  if (node().load) {
    return node().load_rows(begin, count);
  }
  std::vector<at::Tensor> loaded = {node().inputs.front().load_rows(begin, count)};
  for (const Weight& input : inputs().subspan(1)) {
    loaded.push_back(input.load());
  }
  return node().operation(loaded);
}

double Weight::measured(const std::string& what, const std::function<double()>& measure) const {
  if (const std::optional<double> known = node().numbers->find(what)) {
    return *known;
  }
  const double number = measure();  // unlocked: it may take minutes, and whoever asks as well gets the same
  node().numbers->add(what, number);
  return number;
}

}  // namespace pare
