// Noise of several draws: of each row the largest counts.

#include "pare/verify/exam.h"

#include "pare/verify/noise.h"
#include "tests/verify/helpers.h"

namespace pare::test {

TEST_CASE("noise that is measured again never becomes less, and is the largest of its draws in every row") {
  const Architecture a = rich_architecture();
  const Model model{a, as_weights(generic_tensors(a))};
  const Rounding rounding(model.weights, {});
  const Model first = rounding.moved(model, 1), second = rounding.moved(model, 2);
  const Arithmetic exact{at::kDouble, at::kCPU};
  const ComparedModel reference{model, exact}, one{first, exact}, other{second, exact};
  const std::vector<Inputs> inputs = draw_inputs(a, 3, 7);
  const Standard standard{.to_float64 = 1};
  const auto errors_of = [&](const ComparedModel& noise, const ComparedModel* again) {
    Exam exam(reference, reference, noise, standard, 0);
    exam.ask(inputs);
    if (again) {
      exam.measure_noise(*again);
    }
    return std::pair{exam.noise().rows.error, exam.noise().rows.kl};
  };
  const auto [error, kl] = errors_of(one, nullptr);
  const auto [other_error, other_kl] = errors_of(other, nullptr);
  const auto [both, both_kl] = errors_of(one, &other);
  CHECK(both.equal(at::maximum(error, other_error)));
  CHECK(both_kl.equal(at::maximum(kl, other_kl)));
  CHECK((both > error).any().item<bool>());  // else nothing is tested
  CHECK((both > other_error).any().item<bool>());
}

}  // namespace pare::test
