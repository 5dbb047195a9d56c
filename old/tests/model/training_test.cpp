// Training: what is made from a stored tensor follows it, for every architecture, and what is saved is what ran.

#include <ATen/core/grad_mode.h>

#include <cmath>

#include "pare/checkpoint/model_folder.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

namespace pare::test {

namespace {

std::vector<at::Tensor> answers_of(const Outputs& outputs) {
  std::vector<at::Tensor> answers = {answer_of(outputs)};
  for (const at::Tensor& answer : {outputs.pooled, outputs.sequence_logits}) {
    if (answer.defined()) {
      answers.push_back(answer);
    }
  }
  return answers;
}

// The squared distance to what is asked for, summed over a row.
at::Tensor loss_of(const Outputs& outputs, const std::vector<at::Tensor>& targets) {
  const std::vector<at::Tensor> answers = answers_of(outputs);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < answers.size(); ++i) {
    loss = loss + (answers[i] - targets[i]).square().sum(-1).mean();
  }
  return loss;
}

// A step of plain SGD on gradients that are clipped together, for the random models that begin far away.
void descend(const Tensors& leaves) {
  constexpr double learning_rate = 0.1, longest = 3;
  const at::NoGradGuard no_grad;
  double squares = 0;
  for (const auto& [name, leaf] : leaves) {
    squares += leaf.grad().square().sum().item<double>();
  }
  const double rate = learning_rate * std::min(1.0, longest / std::sqrt(squares));
  for (const auto& [name, leaf] : leaves) {
    leaf.sub_(rate * leaf.grad());
    leaf.mutable_grad().reset();
  }
}

// Through a folder and back, as somebody else would read it.
Outputs answer_of_saved(const Architecture& a, const Tensors& tensors, const Inputs& inputs) {
  const TemporaryFolder folder;
  write_native_model(folder.path() / "model", {a, as_weights(tensors)}, false, 1 << 20);
  return Executor(open_model(folder.path() / "model").model, at::kDouble).forward(inputs);
}

}  // namespace

TEST_CASE("every architecture overfits a batch, is saved, and answers the same when it is read back") {
  for (const auto& [name, text] : every_architecture()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors before = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 7);
    const Executor model({a, as_weights(before)}, at::kDouble, at::kCPU, Use::training);
    std::vector<at::Tensor> targets;
    for (const at::Tensor& answer : answers_of(model.forward(inputs))) {
      targets.push_back(at::randn(answer.sizes(), at::kDouble));
    }
    double first = 0;
    for (int step = 0; step < 20; ++step) {
      const at::Tensor loss = loss_of(model.forward(inputs), targets);
      first = step == 0 ? loss.item<double>() : first;
      loss.backward();
      for (const auto& [leaf_name, leaf] : model.parameters()) {
        CAPTURE(leaf_name);
        REQUIRE(leaf.grad().defined());
      }
      descend(model.parameters());
    }
    const at::NoGradGuard no_grad;
    const Outputs trained = model.forward(inputs);
    CHECK(loss_of(trained, targets).item<double>() < 0.7 * first);

    Tensors after = before;  // what an optimiser does not move, indices, stays
    for (const auto& [leaf_name, leaf] : model.parameters()) {
      CAPTURE(leaf_name);
      CHECK((leaf_name.ends_with("key.bias") || !leaf.equal(before.at(leaf_name))));  // softmax sees no key bias
      after[leaf_name] = leaf;
    }
    CHECK(relative_error(answer_of_saved(a, after, inputs), trained) < 1e-12);
  }
}

TEST_CASE("a model that was loaded where no gradients are recorded can be trained") {
  for (const auto& [name, text] : every_architecture()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Inputs inputs = random_inputs(a, 2, 7);
    const auto load = [&a] {
      const at::NoGradGuard no_grad;
      return Executor({a, as_weights(generic_tensors(a))}, at::kDouble, at::kCPU, Use::training);
    };
    const Executor model = load();
    answer_of(model.forward(inputs)).square().sum().backward();
    for (const auto& [leaf_name, leaf] : model.parameters()) {
      CAPTURE(leaf_name);
      CHECK((leaf.grad().defined() || leaf_name.starts_with("head.")));  // a second head, which this loss does not see
    }
  }
}

}  // namespace pare::test
