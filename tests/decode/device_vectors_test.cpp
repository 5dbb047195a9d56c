// The vector that a kernel of a step multiplies with, beside float64: the token, what sublayers wrote, and norms, in
// every width.

#include "tests/decode/step_runner.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

constexpr double epsilon = 1e-5, alpha = 0.7;

struct TestedNorm {
  step::StepNormKind kind = step::StepNormKind::none;
  at::Tensor gain, bias;  // undefined: none
};

TestedNorm some_norm(int64_t which, int64_t width) {
  constexpr step::StepNormKind kinds[] = {step::StepNormKind::none, step::StepNormKind::rms, step::StepNormKind::layer,
                                          step::StepNormKind::dyt};
  TestedNorm norm{.kind = kinds[which % 4]};
  if (which % 3 != 0) {
    norm.gain = at::randn({width}, at::kFloat);
  }
  if (which % 3 == 2) {
    norm.bias = at::randn({width}, at::kFloat);
  }
  return norm;
}

step::StepNorm on_device(const TestedNorm& norm, Memory& memory) {
  return {.kind = norm.kind,
          .epsilon = static_cast<float>(epsilon),
          .alpha = static_cast<float>(alpha),
          .gain = norm.gain.defined() ? memory.floats(norm.gain) : nullptr,
          .bias = norm.bias.defined() ? memory.floats(norm.bias) : nullptr};
}

at::Tensor exactly(const TestedNorm& norm, const at::Tensor& x) {
  at::Tensor y = x;
  if (norm.kind == step::StepNormKind::none) {
    return y;
  }
  if (norm.kind == step::StepNormKind::dyt) {
    y = at::tanh(x * static_cast<float>(alpha));
  } else {
    y = norm.kind == step::StepNormKind::layer ? x - x.mean() : x;
    y = y / at::sqrt(y.square().mean() + epsilon);
  }
  y = norm.gain.defined() ? y * wide(norm.gain) : y;
  return norm.bias.defined() ? y + wide(norm.bias) : y;
}

// Every kind of norm in every place, with one or two things added, with and without a skip.
void check_vectors(at::Device device, StepRunner& runner) {
  at::manual_seed(6);
  int64_t draw = 0;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t width : {3, 8, 132, 520, 1030, 4104}) {
      for (int64_t which = 0; which < 16; ++which, ++draw) {
        CAPTURE(type);
        CAPTURE(width);
        CAPTURE(which);
        const bool embedded = which % 5 == 4;
        // A mean far from zero is what a norm of layers is sensitive to.
        const at::Tensor stream = at::randn({width}, at::kFloat) * 2 + static_cast<double>(which % 3),
                         tokens = at::randn({5, width}, at::kDouble).to(type),
                         places = at::randn({9, width}, at::kDouble).to(type);
        const TestedNorm embedding_norm = some_norm(which / 2, width), norm = some_norm(which, width);
        Memory memory{device};
        step::Piecework work;
        step::StepProduct& p = work.product;
        p.state = state_in(memory);
        at::Tensor expected = wide(stream);
        if (embedded) {
          p.input.tokens = memory.numbers(tokens, type);
          p.input.positions = memory.numbers(places, type);
          p.input.token_scale = 1.5f;
          p.input.position_offset = 2;
          p.input.embedding_norm = on_device(embedding_norm, memory);
          expected = exactly(embedding_norm, wide(tokens)[3] * 1.5 + wide(places)[4 + 2]);
        } else {
          p.input.stream = memory.floats(stream);
        }
        for (int64_t n = 0; n < which % 3; ++n) {
          const at::Tensor y = at::randn({width}, at::kFloat);
          const TestedNorm before = some_norm(draw + n, width), after = some_norm(draw / 4 + n, width);
          step::Added& added = p.input.added[n];
          added = {.y = memory.floats(y),
                   .before = on_device(before, memory),
                   .after = on_device(after, memory),
                   .skip = (draw + n) % 4 != 0};
          expected = exactly(after, (added.skip ? expected : at::zeros_like(expected)) + exactly(before, wide(y)));
        }
        p.input.stream_out = memory.floats(at::full({width}, NAN));
        const at::Tensor left = memory.kept.back();
        p.input.norm = on_device(norm, memory);
        p.input.width = p.columns = p.rows = static_cast<int>(width);
        p.vectored = width % (16 / static_cast<int64_t>(at::elementSize(type))) == 0;
        p.pieces[0] = {.out = memory.floats(at::full({width}, NAN)), .rows = static_cast<int>(width)};
        const at::Tensor out = memory.kept.back();
        runner.take({.work = &work,
                     .count = 1,
                     .number = type == at::kFloat ? step::Number::float32 : step::Number::bfloat16,
                     .state = p.state});
        runner.run(3, 4, false);
        const at::Tensor answer = exactly(norm, expected);
        CHECK(off(wide(left), expected, expected.abs() + 1) < 1e-5);
        CHECK(off(wide(out), answer, answer.abs() + 1) < 2e-5);
      }
    }
  }
}

}  // namespace

TEST_CASE("the kernels' vectors are those of float64, for every norm in every place") {
  if (!fibers_work()) {
    return;
  }
  RunnerOnCpu runner;
  check_vectors(at::kCPU, runner);
}

TEST_CASE("CUDA makes the kernels' vectors") {
  if (const std::unique_ptr<StepRunner> runner = runner_of_gpu()) {
    check_vectors(find_device("cuda"), *runner);
  }
}

}  // namespace pare::test
