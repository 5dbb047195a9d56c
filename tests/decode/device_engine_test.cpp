// The kernels of a step of decoding beside plain sums in float64, and the engine made of them beside the Executor, over
// the whole schema: on a CPU, where their text runs as it stands, and on a GPU, where there is one.

#include "pare/decode/device_engine.h"

#include <random>
#include <set>

#include "pare/decode/decoder.h"
#include "pare/decode/loaded_model.h"
#include "pare/model/activation.h"
#include "pare/model/norm.h"
#include "pare/model/rope.h"
#include "pare/support/error.h"
#include "tests/decode/step_runner.h"
#include "tests/model/architectures.h"
#include "tests/model/cuda.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

const std::pair<Activation, step::StepCurve> curves[] = {{Activation::gelu, step::StepCurve::gelu},
                                                         {Activation::gelu_tanh, step::StepCurve::gelu_tanh},
                                                         {Activation::gelu_bloom, step::StepCurve::gelu_bloom},
                                                         {Activation::quick_gelu, step::StepCurve::quick_gelu},
                                                         {Activation::relu, step::StepCurve::relu},
                                                         {Activation::relu_squared, step::StepCurve::relu_squared},
                                                         {Activation::silu, step::StepCurve::silu},
                                                         {Activation::sigmoid, step::StepCurve::sigmoid},
                                                         {Activation::tanh, step::StepCurve::tanh},
                                                         {Activation::identity, step::StepCurve::none}};

// Sums of products alone, in each width, with matrices that begin anywhere, and one piece without a matrix.
void check_products(at::Device device, StepRunner& runner) {
  at::manual_seed(1);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {1, 3, 8, 20, 64, 264, 776, 2056}) {
      for (const int64_t rows : {1, 5, 37, 150}) {
        CAPTURE(columns);
        CAPTURE(rows);
        CAPTURE(type);
        const double size = std::pow(10.0, static_cast<double>(columns % 5) * 5 - 10);
        const int64_t own = std::min<int64_t>(columns, 7);
        const at::Tensor x = at::randn({columns}, at::kFloat) * size,
                         first = at::randn({rows, columns}, at::kDouble).to(type),
                         second = at::randn({rows + 2, columns}, at::kDouble).to(type),
                         bias = at::randn({rows}, at::kFloat) * size;
        Memory memory{device};
        step::Piecework work;
        step::StepProduct& p = work.product;
        p.input.stream = memory.floats(x);
        p.input.width = p.columns = static_cast<int>(columns);
        p.pieces[0] = {.matrix = memory.numbers(first, type),
                       .bias = memory.floats(bias),
                       .out = memory.floats(at::full({rows}, NAN)),
                       .rows = static_cast<int>(rows)};
        const at::Tensor out_first = memory.kept.back();
        p.pieces[1] = {.out = memory.floats(at::full({own}, NAN)), .rows = static_cast<int>(own)};
        const at::Tensor out_own = memory.kept.back();
        p.pieces[2] = {.matrix = memory.numbers(second, type),
                       .out = memory.floats(at::full({rows + 2}, NAN)),
                       .rows = static_cast<int>(rows + 2)};
        const at::Tensor out_second = memory.kept.back();
        p.rows = static_cast<int>(2 * rows + 2 + own);
        p.vectored = columns % (16 / static_cast<int64_t>(at::elementSize(type))) == 0;
        p.state = state_in(memory);
        run_one(runner, work, type, p.state, 3);
        const at::Tensor exact = at::mv(wide(first), wide(x)) + wide(bias);
        const at::Tensor terms = at::mv(wide(first).abs(), wide(x).abs()) + wide(bias).abs();
        CHECK(off(wide(out_first), exact, terms) < 1e-6);
        CHECK(off(wide(out_second), at::mv(wide(second), wide(x)), at::mv(wide(second).abs(), wide(x).abs())) < 1e-6);
        CHECK(at::equal(out_own.cpu(), x.narrow(0, 0, own)));
      }
    }
  }
}

// Gates, activations, logits and the largest of them.
void check_answers(at::Device device, StepRunner& runner) {
  at::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {5, 40}) {
      for (const int64_t rows : {3, 70}) {
        const at::Tensor x = at::randn({columns}, at::kFloat) * 3,
                         matrix = at::randn({2 * rows, columns}, at::kDouble).to(type),
                         bias = at::randn({2 * rows}, at::kFloat);
        const at::Tensor both = at::mv(wide(matrix), wide(x)) + wide(bias),
                         terms = at::mv(wide(matrix).abs(), wide(x).abs()) + wide(bias).abs();
        for (const auto& [activation, curve] : curves) {
          for (const bool gated : {false, true}) {
            CAPTURE(columns);
            CAPTURE(rows);
            CAPTURE(type);
            CAPTURE(gated);
            CAPTURE(static_cast<int>(curve));
            Memory memory{device};
            step::Piecework work;
            step::StepProduct& p = work.product;
            p.input.stream = memory.floats(x);
            p.input.width = p.columns = static_cast<int>(columns);
            p.pieces[0] = {.matrix = memory.numbers(matrix, type), .bias = memory.floats(bias)};
            p.rows = p.pieces[0].rows = static_cast<int>(gated ? rows : 2 * rows);
            p.pieces[0].out = memory.floats(at::full({p.rows}, NAN));
            const at::Tensor out = memory.kept.back();
            p.vectored = columns % 8 == 0;
            p.then = gated ? step::Then::gate : step::Then::curve;
            p.curve = curve;
            p.state = state_in(memory);
            run_one(runner, work, type, p.state, 3);
            const at::Tensor bent = activate(activation, gated ? both.narrow(0, 0, rows) : both);
            const at::Tensor expected = gated ? bent * both.narrow(0, rows, rows) : bent;
            const at::Tensor scale =
                gated ? (terms.narrow(0, 0, rows) + 1) * (terms.narrow(0, rows, rows) + 1) : (terms + 1).square();
            CHECK(off(wide(out), expected, scale) < 2e-6);
          }
        }
        // The largest logit, of two the first, and what is no number above all.
        for (const std::string what : {"", "twice", "no number", "softcap"}) {
          CAPTURE(what);
          Memory memory{device};
          at::Tensor numbers = bias.clone();
          const int64_t a = rows / 2, b = rows + 1;
          const at::Tensor zeros = at::zeros_like(matrix);
          if (what == "twice") {
            numbers[a] = numbers[b] = 100;
          } else if (what == "no number") {
            numbers[b] = NAN;
          }
          step::Piecework work;
          step::StepProduct& p = work.product;
          p.input.stream = memory.floats(x);
          p.input.width = p.columns = static_cast<int>(columns);
          p.pieces[0] = {.matrix = memory.numbers(zeros, type), .bias = memory.floats(numbers)};
          p.rows = p.pieces[0].rows = static_cast<int>(2 * rows);
          p.pieces[0].out = memory.floats(at::full({2 * rows}, NAN));
          const at::Tensor out = memory.kept.back();
          p.vectored = columns % 8 == 0;
          p.then = step::Then::logits;
          p.softcap = what == "softcap" ? 0.5f : 0.0f;
          p.best_logits = memory.floats(at::zeros({step::most_blocks}));
          p.best_ids = memory.integers(step::most_blocks);
          p.state = state_in(memory);
          runner.take({.work = &work,
                       .count = 1,
                       .number = type == at::kFloat ? step::Number::float32 : step::Number::bfloat16,
                       .state = p.state});
          for (int again = 0; again < 2; ++again) {  // tickets begin anew
            const StepRunner::Answer answer = runner.run(0, 9, false);
            const at::Tensor capped = what == "softcap" ? 0.5 * at::tanh(wide(numbers) / 0.5) : wide(numbers);
            if (what == "no number") {
              CHECK(answer.likeliest == b);
              CHECK(std::isnan(answer.most));
              continue;
            }
            CHECK(off(wide(out), capped, at::ones_like(capped)) < 1e-6);
            CHECK(answer.likeliest == (what == "twice" ? a : capped.argmax().item<int64_t>()));
            CHECK(answer.most == doctest::Approx(capped.max().item<double>()));
          }
        }
      }
    }
  }
}

// One head as it is behind its norm and its angle.
at::Tensor readied(const at::Tensor& heads, const std::optional<Rope>& rope, int64_t position) {
  if (!rope) {
    return heads;
  }
  const at::Tensor frequencies = at::tensor(rope_frequencies(*rope, 0), at::kDouble),
                   place = at::full({1, 1}, position, at::kLong);
  return turned(*rope, turn_at(*rope, frequencies, place, at::kDouble), heads.unsqueeze(0).unsqueeze(2))[0].squeeze(1);
}

struct Case {
  int64_t heads, kv_heads, width, length, splits, window;
  bool rope, alibi;
  double softcap;
};

void check_attention(at::Device device, StepRunner& runner) {
  at::manual_seed(4);
  const Case cases[] = {{1, 1, 3, 0, 1, 0, false, false, 0},     {2, 2, 8, 1, 4, 0, true, false, 0},
                        {4, 2, 6, 63, 4, 0, true, false, 0},     {4, 1, 64, 64, 4, 0, false, true, 0},
                        {6, 2, 40, 130, 2, 0, true, true, 0.7},  {5, 1, 16, 200, 7, 90, true, false, 0},
                        {9, 1, 24, 321, 3, 0, false, true, 0},   {12, 12, 64, 77, 16, 0, false, false, 0},
                        {8, 2, 128, 1000, 8, 0, true, false, 0}, {2, 1, 256, 150, 64, 0, true, false, 0},
                        {3, 3, 20, 500, 5, 3, false, false, 0},  {17, 1, 80, 700, 3, 0, true, false, 0}};
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const Case& c : cases) {
      if (type == at::kFloat && c.width > 128) {
        continue;
      }
      CAPTURE(type);
      CAPTURE(c.width);
      CAPTURE(c.heads);
      CAPTURE(c.length);
      const int64_t capacity = c.length + 5;
      // Scores from near to far apart, so that some tokens are all and others nothing.
      const at::Tensor query = at::randn({c.heads, c.width}, at::kFloat) * (c.length % 2 == 0 ? 1 : 8),
                       key = at::randn({c.kv_heads, c.width}, at::kFloat),
                       value = at::randn({c.kv_heads, c.width}, at::kFloat),
                       keys = at::randn({c.kv_heads, capacity, c.width}, at::kDouble).to(type),
                       values = at::randn({c.kv_heads, capacity, c.width}, at::kDouble).to(type),
                       slopes = at::rand({c.heads}, at::kFloat);
      std::optional<Rope> rope;
      if (c.rope) {
        rope = Rope{.width = c.width % 4 == 0 ? c.width / 2 : c.width,
                    .layout = c.heads % 2 == 0 ? RopeLayout::half : RopeLayout::interleaved};
      }
      const double scale = 1 / std::sqrt(static_cast<double>(c.width));
      Memory memory{device};
      step::Piecework work;
      work.attends = true;
      step::Attend& a = work.attend;
      a.query = memory.floats(query);
      a.key = memory.floats(key);
      a.value = memory.floats(value);
      a.keys = memory.numbers(keys, type);
      const at::Tensor keys_now = memory.kept.back();
      a.values = memory.numbers(values, type);
      const at::Tensor values_now = memory.kept.back();
      a.mixed = memory.floats(at::full({c.heads, c.width}, NAN));
      const at::Tensor mixed = memory.kept.back();
      a.heads = static_cast<int>(c.heads);
      a.kv_heads = static_cast<int>(c.kv_heads);
      a.width = static_cast<int>(c.width);
      a.capacity = static_cast<int>(capacity);
      a.window = static_cast<int>(c.window);
      a.scale = static_cast<float>(scale);
      a.softcap = static_cast<float>(c.softcap);
      a.slopes = c.alibi ? memory.floats(slopes) : nullptr;
      if (rope) {
        const at::Tensor frequencies = at::tensor(rope_frequencies(*rope, 0), at::kDouble);
        const Turn turn = turn_at(*rope, frequencies, at::arange(capacity).unsqueeze(0), at::kFloat);
        a.cosine = memory.floats(turn.cosine);
        a.sine = memory.floats(turn.sine);
        a.planes = static_cast<int>(rope->width / 2);
        a.halves = rope->layout == RopeLayout::half;
      }
      a.vectored = c.width % (16 / static_cast<int64_t>(at::elementSize(type))) == 0;
      a.splits = static_cast<int>(c.splits);
      a.parts = memory.floats(at::full({c.splits * c.heads * c.width}, NAN));
      const at::Tensor parts = memory.kept.back();
      a.shares = memory.floats(at::full({c.splits * c.heads * 2}, NAN));
      a.tickets = memory.integers(c.heads);
      step::State* state = state_in(memory);
      a.state = state;

      // What it remembers, and what it answers with that.
      at::Tensor all_keys = wide(keys).clone(), all_values = wide(values).clone();
      const at::Tensor new_key = readied(wide(key), rope, c.length);
      all_keys.select(1, c.length).copy_(new_key.to(type).to(at::kDouble));
      all_values.select(1, c.length).copy_(value.to(type).to(at::kDouble));
      const int64_t first = c.window > 0 ? std::max<int64_t>(0, c.length + 1 - c.window) : 0;
      const int64_t count = c.length + 1 - first, together = c.heads / c.kv_heads;
      const at::Tensor seen_keys = all_keys.narrow(1, first, count).repeat_interleave(together, 0),
                       seen_values = all_values.narrow(1, first, count).repeat_interleave(together, 0);
      at::Tensor scores = at::bmm(seen_keys, readied(wide(query), rope, c.length).unsqueeze(2)).squeeze(2) * scale;
      if (c.alibi) {
        scores = scores + wide(slopes).unsqueeze(1) * (at::arange(count, at::kDouble) + first - c.length);
      }
      if (c.softcap != 0) {
        scores = c.softcap * at::tanh(scores / c.softcap);
      }
      const at::Tensor expected = at::bmm(at::softmax(scores, -1).unsqueeze(1), seen_values).squeeze(1);
      runner.take({.work = &work,
                   .count = 1,
                   .number = type == at::kFloat ? step::Number::float32 : step::Number::bfloat16,
                   .state = state});
      for (int again = 0; again < 2; ++again) {
        mixed.fill_(NAN);
        parts.fill_(NAN);
        runner.run(0, c.length, false);
        CHECK((wide(mixed) - expected).abs().max().item<double>() < (type == at::kFloat ? 3e-5 : 1e-4));
      }
      // A key that lies between two numbers of 16 bits may be rounded to either.
      const double digits = type == at::kFloat ? 1e-6 : 8e-3;
      CHECK(((wide(keys_now) - all_keys).abs() - digits * all_keys.abs()).max().item<double>() < 1e-6);
      CHECK(at::equal(wide(values_now), all_values));
    }
  }
}

Tensors rounded_to(Tensors tensors, at::ScalarType type) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.is_floating_point()) {
      tensor = tensor.to(type).to(at::kDouble);
    }
  }
  return tensors;
}

// The whole engine. A text is begun twice, and goes on until the memory has grown.
void check_engine(at::Device device, const std::function<std::unique_ptr<StepRunner>()>& runner) {
  std::set<std::string> lacking;
  for (const auto& [name, text] : causal_architectures()) {
    const Architecture a = parse(text);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      if (device_engine_lacks(a, type)) {
        lacking.insert(name);
        continue;
      }
      CAPTURE(name);
      CAPTURE(type);
      const Model model{a, as_weights(rounded_to(generic_tensors(a), type))};
      const at::Tensor ids = random_inputs(a, 1, 12).ids;
      const at::Tensor expected = Executor(model, at::kDouble).forward({.ids = ids}).logits[0];
      const at::Tensor narrow = wide(Executor(model, type).forward({.ids = ids}).logits[0]);
      // What the type itself loses, and the same with other roundings.
      const double allowed = type == at::kFloat ? 16 * relative_error(narrow, expected) + 1e-6
                                                : 4 * relative_error(narrow, expected) + 1e-3;
      const LoadedModel loaded = load_whole(model, {.dtype = type, .device = device});
      const Tables tables({.dtype = type, .device = device});
      DeviceEngine engine(loaded, runner());
      for (const int64_t prompt : {type == at::kFloat ? 1 : 5, 9}) {
        Cache cache(6);
        forward(loaded, tables, {.ids = ids.narrow(1, 0, prompt).to(device)}, cache);
        for (int64_t n = prompt; n < 12; ++n) {
          const StepRunner::Answer answer = engine.step(ids[0][n].item<int64_t>(), cache, true);
          const at::Tensor logits =
              at::tensor(at::ArrayRef<float>(answer.logits, static_cast<size_t>(a.vocab)), at::kFloat);
          CHECK(relative_error(wide(logits), expected[n]) < allowed);
          CHECK(answer.likeliest == logits.argmax().item<int64_t>());
          CHECK(answer.most == logits.max().item<float>());
        }
      }
    }
  }
  MESSAGE("left to the Executor: ", lacking.size());
  CHECK(lacking.size() + 20 < causal_architectures().size());
}

}  // namespace

TEST_CASE("the kernels' products are sums in float64, for all widths and types") {
  if (!fibers_work()) {
    return;
  }
  RunnerOnCpu runner;
  for (const int multiprocessors : {1, 4}) {  // several rows for a warp, or one
    runner.multiprocessors = multiprocessors;
    check_products(at::kCPU, runner);
  }
}

TEST_CASE("the kernels' gates, activations and largest logits are those of float64") {
  if (!fibers_work()) {
    return;
  }
  RunnerOnCpu runner;
  check_answers(at::kCPU, runner);
}

TEST_CASE("the kernels' attention is that of float64, in one split and in many") {
  if (!fibers_work()) {
    return;
  }
  RunnerOnCpu runner;
  check_attention(at::kCPU, runner);
}

TEST_CASE("the engine of kernels has the Executor's logits, for every form that it runs") {
  if (!fibers_work()) {
    return;
  }
  check_engine(at::kCPU, [] { return std::make_unique<RunnerOnCpu>(); });
}

TEST_CASE("CUDA runs the kernels of a step: products, answers, attention, and the engine") {
  if (const std::unique_ptr<StepRunner> runner = runner_of_gpu()) {
    const at::Device device = find_device("cuda");
    check_products(device, *runner);
    check_answers(device, *runner);
    check_attention(device, *runner);
    check_engine(device, [&] { return device_runner(device); });
  }
}

TEST_CASE("the likeliest token is that of the largest logit, and none where these are no numbers") {
  const Architecture a = parse(causal(""));
  Tensors tensors = generic_tensors(a);
  const Model model{a, as_weights(tensors)};
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {  // by the engine, and by the Executor
    Decoder one(model, {.dtype = type}), other(model, {.dtype = type});
    int64_t id = one.likeliest(3);
    std::span<const float> logits = other.step(3);
    for (int n = 0; n < 6; ++n) {
      CHECK(id == std::ranges::max_element(logits) - logits.begin());
      logits = other.step(id);
      id = one.likeliest(id);
      CHECK(one.length() == other.length());
    }
  }
  tensors["head.weight"].fill_(NAN);
  Decoder damaged(Model{a, as_weights(tensors)}, {.dtype = at::kFloat});
  CHECK_THROWS_AS(damaged.likeliest(3), InputError);
}

}  // namespace pare::test
