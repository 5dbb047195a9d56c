// A teacher's part of the loss against torch's own functions and autograd, and teachers that cannot teach.

#include "pare/train/teacher.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include "tests/support/helpers.h"
#include "tests/train/gradient_check.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

double furthest(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

at::Tensor capped(const at::Tensor& logits, const std::optional<double>& cap) {
  return cap ? *cap * at::tanh(logits / *cap) : logits;
}

const char* const small_model = R"({"width": 12, "vocab": 23, "context": 32, "blocks": [{"attention": {"heads": 4,
  "head_width": 3, "norm": {"kind": "rms"}}, "mlp": {"width": 20, "activation": "gelu"}}], "head": {"tied": true}})";
const char* const other_model = R"({"width": 10, "vocab": 23, "context": 32, "embedding": {"position": "learned"},
  "blocks": [{"attention": {"heads": 2, "head_width": 5}}], "head": {"bias": true, "softcap": 3.0}})";

}  // namespace

TEST_CASE("the loss and its gradients are those of kl_div and cross_entropy over all logits at once") {
  at::manual_seed(4);
  const at::Tensor x = at::randn({13, 6}, at::kDouble), targets = at::randint(11, {13}, at::kLong);
  const at::Tensor read = at::randn({13, 9}, at::kDouble);
  const LossHead taught{
      .weight = at::randn({11, 9}, at::kDouble), .bias = at::randn({11}, at::kDouble), .softcap = 2.5};
  for (const std::optional<double> cap : {std::optional<double>(), std::optional<double>(0.8)}) {
    for (const auto& [weight, tau] : {std::pair{0.0, 1.0}, {1.0, 1.0}, {0.3, 1.0}, {0.7, 2.5}, {1.0, 0.4}}) {
      const LossHead head{
          .weight = at::randn({11, 6}, at::kDouble), .bias = at::randn({11}, at::kDouble), .softcap = cap};
      const at::Tensor leaf = x.clone().requires_grad_(true), matrix = head.weight.clone().requires_grad_(true),
                       bias = head.bias.clone().requires_grad_(true);
      const at::Tensor logits = capped(at::linear(leaf, matrix, bias), cap);
      const at::Tensor wanted = at::log_softmax(capped(at::linear(read, taught.weight, taught.bias), 2.5) / tau, -1);
      const at::Tensor apart = at::kl_div(at::log_softmax(logits / tau, -1), wanted, at::Reduction::Sum, true);
      const at::Tensor sum =
          (1 - weight) * at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum) + weight * tau * tau * apart;
      (0.3 * sum).backward();
      for (const int64_t piece : {1, 60, 88, 1 << 20}) {
        CAPTURE(piece);
        const HeadGradients gradients{at::ones_like(head.weight), at::ones_like(head.bias)};
        const Taught teacher{read, taught, weight, tau};
        const LossParts parts = cross_entropy(x, head, targets, piece, 0.3, gradients, &teacher);
        CHECK(furthest(parts.sum, sum.detach()) < 1e-12 * (1 + sum.item<double>()));
        const at::Tensor plain = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).detach();
        CHECK(furthest(parts.plain, plain) < 1e-12 * (1 + plain.item<double>()));
        CHECK(furthest(parts.head_input, leaf.grad()) < 1e-12);
        CHECK(furthest(gradients.weight - 1, matrix.grad()) < 1e-12);  // added, not overwritten
        CHECK(furthest(gradients.bias - 1, bias.grad()) < 1e-12);
      }
    }
  }
}

TEST_CASE("a teacher without a say leaves the loss and its gradients as they are, bit for bit, in every type") {
  at::manual_seed(5);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const std::optional<double> cap : {std::optional<double>(), std::optional<double>(4)}) {
      const at::ScalarType wide = type == at::kBFloat16 ? at::kFloat : type;
      const at::Tensor x = at::randn({90, 16}).to(type), targets = at::randint(37, {90}, at::kLong);
      const LossHead head{.weight = at::randn({37, 16}).to(type), .bias = at::randn({37}).to(type), .softcap = cap};
      const HeadGradients plain{at::zeros({37, 16}, wide), at::zeros({37}, wide)},
          taught{plain.weight.clone(), plain.bias.clone()};
      const LossParts wanted = cross_entropy(x, head, targets, 1 << 20, 0.01, plain);
      const Taught silent{x, head, 0, 1};
      const LossParts found = cross_entropy(x, head, targets, 1 << 20, 0.01, taught, &silent);
      CAPTURE(type);
      CHECK(found.sum.equal(wanted.sum));
      CHECK(found.head_input.equal(wanted.head_input));
      CHECK(taught.weight.equal(plain.weight));
      CHECK(taught.bias.equal(plain.bias));
    }
  }
}

TEST_CASE("gradients of a student are finite differences") {
  const Architecture a = parse(small_model), b = parse(other_model);
  TrainConfig config{.architecture = a, .dtype = TrainDtype::float64, .distillation = {0.6, 1.7}};
  config.optimiser.clip = 0;
  const auto teacher =
      std::make_shared<const Teacher>(Model{b, as_weights(generic_tensors(b, 3))}, at::kDouble, at::kCPU);
  Trainer trainer(config, {a, as_weights(calm_tensors(a))}, at::kCPU, {nullptr, teacher});
  check_gradients(trainer, {random_batch(a)});
}

TEST_CASE("who is taught by itself alone has nothing to learn") {
  const Architecture a = parse(small_model);
  const Model model{a, as_weights(generic_tensors(a))};
  TrainConfig config{.architecture = a, .dtype = TrainDtype::float64, .distillation = {1, 2}};
  Trainer trainer(config, model, at::kCPU, {nullptr, std::make_shared<const Teacher>(model, at::kDouble, at::kCPU)});
  const StepMeasure found = trainer.measure(std::vector<TrainBatch>{random_batch(a)});
  CHECK(std::abs(found.loss) < 1e-13);
  CHECK(found.gradient_norm < 1e-13);
}

TEST_CASE("a teacher of other tokens, of another task, of shorter texts") {
  const TrainConfig config = sorting_config({{"teacher", "elsewhere"}});
  const auto says = [&](Architecture teacher, const std::string& wanted) {
    const std::string found = message_of<InputError>([&] { check_teacher(config, config.architecture, teacher); });
    CAPTURE(found);
    CHECK(found.find(wanted) != std::string::npos);
  };
  Architecture teacher = config.architecture;
  check_teacher(config, config.architecture, teacher);
  teacher.vocab = 99;
  says(teacher, "its vocabulary has 99 tokens, this run's 16");
  teacher = config.architecture;
  teacher.context = 4;
  says(teacher, "it reads 4 tokens, and sequences have 10");
  teacher.task = Task::encoder;
  says(teacher, "its task is encoder");
}

}  // namespace pare::test
