// The engine of the CPU beside the Executor, over the whole schema, and its loops beside plain sums.

#include "pare/decode/engine.h"

#include <ATen/Parallel.h>

#include <random>
#include <set>

#include "pare/decode/decoder.h"
#include "pare/decode/kernels.h"
#include "pare/decode/kernels_arm.h"
#include "pare/decode/repeated_step.h"
#include "pare/decode/team.h"
#include "pare/model/executor.h"
#include "tests/model/architectures.h"
#include "tests/model/cuda.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

// The loops without Highway, beside those of the program.
#define multiply_rows plain_multiply_rows
#define add_rows plain_add_rows
#define largest plain_largest
#define exponentials plain_exponentials
#define sum_of_exponentials plain_sum_of_exponentials
#define sigmoids plain_sigmoids
#define swish plain_swish
#define kernel_target plain_kernel_target
#include "pare/decode/kernels_plain.cpp"
#undef multiply_rows
#undef add_rows
#undef largest
#undef exponentials
#undef sum_of_exponentials
#undef sigmoids
#undef swish
#undef kernel_target

namespace pare::test {

namespace {

// As the file would hold them: matrices in that type, the rest in float32.
Tensors rounded(Tensors tensors, at::ScalarType type) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point()) {
      tensor = tensor.to(tensor.dim() >= 2 ? type : at::kFloat).to(at::kDouble);
    }
  }
  return tensors;
}

at::Tensor as_tensor(std::span<const float> numbers) {
  return at::tensor(at::ArrayRef<float>(numbers.data(), numbers.size()), at::kFloat).to(at::kDouble);
}

// On so many of libtorch's threads, which the engine takes as many as.
struct Threads {
  int before = at::get_num_threads();
  explicit Threads(int count) { at::set_num_threads(count); }
  ~Threads() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("the engine's logits are those of the Executor with the same weights, for every form that it runs") {
  std::set<std::string> lacking;
  for (const auto& [name, text] : causal_architectures()) {
    const Architecture a = parse(text);
    if (engine_lacks(a)) {
      lacking.insert(name);
      continue;
    }
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      CAPTURE(name);
      CAPTURE(type);
      const Model model{a, as_weights(rounded(generic_tensors(a), type))};
      const at::Tensor ids = random_inputs(a, 1, 14).ids;
      const at::Tensor expected = Executor(model, at::kDouble).forward({.ids = ids}).logits[0];
      const at::Tensor single = Executor(model, at::kFloat).forward({.ids = ids}).logits[0].to(at::kDouble);
      // What float32 itself loses; the same block again and again lets it grow, and other sums grow otherwise.
      const double allowed = 16 * relative_error(single, expected) + 1e-6;
      const Threads threads(type == at::kFloat ? 3 : 1);
      Decoder decoder(model, {.dtype = type});
      const std::span<const int64_t> all(ids.const_data_ptr<int64_t>(), 14);
      for (const size_t prompt : {1, 5}) {
        decoder.reset();
        CHECK(relative_error(as_tensor(decoder.prefill(all.first(prompt))), expected[prompt - 1]) < allowed);
        for (size_t n = prompt; n < all.size(); ++n) {
          CHECK(relative_error(as_tensor(decoder.step(all[n])), expected[n]) < allowed);
        }
      }
    }
  }
  MESSAGE("left to the Executor: ", lacking.size());
  CHECK(lacking.size() * 2 < causal_architectures().size());
}

// Prompts and steps in turns, several texts after one another, and more tokens than there is room for at first: on a
// GPU the third step of a kind is recorded, and the fourth on it is repeated.
static void check_repeated_steps(at::Device device) {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    Architecture a = parse(text);
    if (!steps_are_alike(a) || a.embedding.types > 0) {
      continue;
    }
    const Executor executor(Model{a, as_weights(generic_tensors(a))}, at::kDouble, device);
    RepeatedStep steps(executor, device, 3);
    for (const int64_t prompt : {1, 4, 2}) {
      const at::Tensor ids = random_inputs(a, 1, 16).ids.to(device);
      const at::Tensor expected = executor.forward({.ids = ids}).logits[0].cpu();
      steps.reset();
      int64_t read = 0;
      for (const int64_t count : std::vector<int64_t>{prompt, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1}) {
        const at::Tensor found = steps.read(ids.narrow(1, read, count)).cpu();
        read += count;
        CHECK(relative_error(found, expected[read - 1]) < 1e-11);
        CHECK(steps.length() == read);
      }
    }
  }
}

TEST_CASE("repeated steps are those of the Executor, across growing memory, further prompts and other texts") {
  check_repeated_steps(at::kCPU);
}

TEST_CASE("CUDA repeats a recorded step, with the Executor's answers") {
  if (!has_cuda()) {
    return;
  }
  if (!DeviceGraph::works_on(at::Device(at::kCUDA, 0))) {
    std::puts("skipped recorded steps: libpare_cuda is not there");
    return;
  }
  check_repeated_steps(at::Device(at::kCUDA, 0));
}

TEST_CASE("rows times a vector, in every type and length, and by a part of the rows") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const int64_t columns : {1, 2, 3, 7, 16, 31, 64, 65, 127, 256, 771, 3000, 4100}) {
    std::vector<float> x(columns), scratch(2 * columns), y(9), plain(9), direct(9);
    const double size = std::pow(10.0, static_cast<double>(columns % 13) * 5 - 30);  // of x, beyond what 16 bits hold
    for (float& one : x) {
      one = static_cast<float>(normal(random) * size);
    }
    const at::Tensor matrix = at::randn({11, columns}, at::kDouble);
    for (const auto& [type, stored] :
         {std::pair(at::kFloat, Element::float32), std::pair(at::kBFloat16, Element::bfloat16),
          std::pair(at::kHalf, Element::float16)}) {
      CAPTURE(columns);
      CAPTURE(type);
      const at::Tensor narrow = matrix.to(type).contiguous();
      const at::Tensor exact = at::mv(narrow.to(at::kDouble), as_tensor(x)).narrow(0, 1, 9);
      const MatrixView view{narrow.const_data_ptr(), stored, columns};
      multiply_rows(view, 1, 10, x.data(), scratch.data(), y.data());
      plain_multiply_rows(view, 1, 10, x.data(), scratch.data(), plain.data());
      if (multiplies_directly(view)) {
        multiply_directly(view, 1, 10, x.data(), scratch.data(), direct.data());
      } else {
        direct = y;
      }
      const double terms = at::mv(narrow.to(at::kDouble).abs(), as_tensor(x).abs()).max().item<double>();
      CHECK((as_tensor(y) - exact).abs().max().item<double>() < 1e-6 * terms);
      CHECK((as_tensor(plain) - exact).abs().max().item<double>() < 1e-6 * terms);
      CHECK((as_tensor(direct) - exact).abs().max().item<double>() < 1e-6 * terms);
    }
    const at::Tensor rows = matrix.to(at::kFloat).contiguous();
    std::vector<float> sum(columns), plain_sum(columns), weights(11);
    std::generate(weights.begin(), weights.end(), [&] { return normal(random); });
    const at::Tensor exact = at::mv(rows.t().to(at::kDouble), as_tensor(weights));
    add_rows(rows.const_data_ptr<float>(), columns, 11, weights.data(), sum.data());
    plain_add_rows(rows.const_data_ptr<float>(), columns, 11, weights.data(), plain_sum.data());
    CHECK((as_tensor(sum) - exact).abs().max().item<double>() < 1e-5);
    CHECK((as_tensor(plain_sum) - exact).abs().max().item<double>() < 1e-5);
  }
}

TEST_CASE("the loops over vectors are what libtorch computes in float64, at every length and size of numbers") {
  for (const int64_t n : {1, 3, 4, 15, 16, 33, 512, 1025}) {
    for (const double scale : {1e-3, 1.0, 30.0, 1e3}) {
      CAPTURE(n);
      CAPTURE(scale);
      const at::Tensor x = at::randn({n}, at::kFloat) * scale, wide = x.to(at::kDouble);
      const float most = wide.max().item<float>();
      const at::Tensor powers = at::exp((x - most).to(at::kDouble)), sigmoid = at::sigmoid(wide);
      const at::Tensor gelu = at::gelu(wide, "tanh"), silu = at::silu(wide);
      const auto check = [&](auto most_of, auto exponentials_of, auto sum_of, auto sigmoids_of, auto swish_of) {
        const auto off = [](const at::Tensor& found, const at::Tensor& expected) {
          return ((found.to(at::kDouble) - expected).abs() / (expected.abs() + 1e-30)).max().template item<double>();
        };
        CHECK(most_of(x.const_data_ptr<float>(), n) == most);
        at::Tensor y = at::empty_like(x);
        const double sum = exponentials_of(x.const_data_ptr<float>(), n, most, y.mutable_data_ptr<float>());
        CHECK(off(y, powers) < 3e-7);
        CHECK(std::abs(sum / powers.sum().item<double>() - 1) < 3e-7);
        CHECK(sum_of(x.const_data_ptr<float>(), n, most) == doctest::Approx(sum).epsilon(3e-7));
        y.copy_(x);
        sigmoids_of(y.mutable_data_ptr<float>(), n);
        CHECK((y.to(at::kDouble) - sigmoid).abs().max().item<double>() < 2e-7);
        y.copy_(x);
        swish_of(y.mutable_data_ptr<float>(), n, 1.0f, 0.0f);
        CHECK((y.to(at::kDouble) - silu).abs().max().item<double>() < 5e-7 * std::max(1.0, 4 * scale));
        y.copy_(x);
        swish_of(y.mutable_data_ptr<float>(), n, 1.5957691216057308f, 1.5957691216057308f * 0.044715f);
        CHECK((y.to(at::kDouble) - gelu).abs().max().item<double>() < 1e-6 * std::max(1.0, 4 * scale));
      };
      check(largest, exponentials, sum_of_exponentials, sigmoids, swish);
      check(plain_largest, plain_exponentials, plain_sum_of_exponentials, plain_sigmoids, plain_swish);
    }
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<float> x(static_cast<size_t>(n), -infinity);
    CHECK(largest(x.data(), n) == -infinity);
    x.back() = 2;
    CHECK(sum_of_exponentials(x.data(), n, 2) == 1);  // what is excluded counts nothing
    x.front() = std::numeric_limits<float>::quiet_NaN();
    CHECK(std::isnan(largest(x.data(), n)));
    CHECK(std::isnan(plain_largest(x.data(), n)));
    swish(x.data(), n, 1, 0);
    CHECK(std::isnan(x.front()));
  }
}

TEST_CASE("every number of 16 bits is the number that libtorch reads") {
  std::vector<int16_t> bits(65536);
  for (size_t n = 0; n < bits.size(); ++n) {
    bits[n] = static_cast<int16_t>(n);
  }
  const at::Tensor all = at::from_blob(bits.data(), {65536}, at::kShort);
  const at::Tensor half = all.view(at::kHalf).to(at::kFloat), brain = all.view(at::kBFloat16).to(at::kFloat);
  const auto same = [](float a, float b) { return a == b || (a != a && b != b); };
  int64_t wrong = 0;
  for (int64_t n = 0; n < 65536; ++n) {
    wrong += !same(from_float16(static_cast<uint16_t>(n)), half.const_data_ptr<float>()[n]);
    wrong += !same(from_bfloat16(static_cast<uint16_t>(n)), brain.const_data_ptr<float>()[n]);
  }
  CHECK(wrong == 0);
}

TEST_CASE("a team meets: what one wrote before, all read after") {
  for (const int size : {1, 2, 5}) {
    Team team(size);
    std::vector<int64_t> written(static_cast<size_t>(size)), sums(static_cast<size_t>(size));
    for (int64_t round = 0; round < 200; ++round) {
      team.run([&](int member) {
        written[member] = round * (member + 1);
        team.meet();
        sums[member] = 0;
        for (const int64_t one : written) {
          sums[member] += one;
        }
      });
      for (const int64_t sum : sums) {
        CHECK(sum == round * size * (size + 1) / 2);
      }
    }
  }
}

}  // namespace pare::test
