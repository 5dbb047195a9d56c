// What decoding stands on: logits where they are asked for, constants that are made once, steps that read nothing back.

#include <thread>

#include "pare/arch/head.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"
#include "tests/model/operators.h"

namespace pare::test {

namespace {

Inputs next_token(int64_t batch, int64_t id) {
  Inputs inputs;
  inputs.ids = at::full({batch, 1}, id, at::kLong);
  return inputs;
}

}  // namespace

TEST_CASE("logits are computed where they are asked for, and the last are the last of all") {
  for (const auto& [name, text] : every_architecture()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    for (const bool padded : {false, true}) {
      Inputs inputs = random_inputs(a, 2, 9);
      if (padded && inputs.ids.defined()) {  // the first row ends at 6, the second begins at 2
        inputs.mask = at::ones({2, 9}, at::kBool);
        inputs.mask[0].narrow(0, 7, 2).fill_(false);
        inputs.mask[1].narrow(0, 0, 2).fill_(false);
      }
      const Outputs all = model.forward(inputs), last = model.forward(inputs, nullptr, nullptr, Logits::last),
                    none = model.forward(inputs, nullptr, nullptr, Logits::none);
      CHECK(last.hidden.equal(all.hidden));
      CHECK(none.hidden.equal(all.hidden));
      if (a.task == Task::encoder) {
        CHECK(relative_error(last, all) == 0);
        CHECK(relative_error(none, all) == 0);
        continue;
      }
      CHECK_FALSE(none.logits.defined());
      CHECK_FALSE(none.sequence_logits.defined());
      if (answers_sequences(a)) {
        CHECK(relative_error(last, all) == 0);
        continue;
      }
      REQUIRE(last.logits.sizes() == at::IntArrayRef({2, 1, head_size(a)}));
      const int64_t end = inputs.mask.defined() ? 6 : 8;
      const at::Tensor expected = at::stack({all.logits[0][end], all.logits[1][8]}).unsqueeze(1);
      CHECK(relative_error(last.logits, expected) < 1e-12);
      CHECK((!a.head.sequence || last.sequence_logits.equal(all.sequence_logits)));
    }
  }
}

TEST_CASE("the last logits of cached tokens are those of one prefill, also where everything is computed anew") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs inputs = random_inputs(a, 2, 9);
    Cache cache;
    for (const int64_t begin : {0, 3, 6}) {
      Inputs part;
      part.ids = inputs.ids.narrow(1, begin, 3);
      part.types = inputs.types.defined() ? inputs.types.narrow(1, begin, 3) : at::Tensor();
      const at::Tensor found = model.forward(part, &cache, nullptr, Logits::last).logits;
      CHECK(found.size(1) == 1);
      if (begin == 6) {
        CHECK(relative_error(found, model.forward(inputs).logits.narrow(1, 8, 1)) < 1e-12);
      }
    }
  }
}

TEST_CASE("steps that are the same work for every token compute what one prefill does") {
  int64_t tried = 0;
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    if (!steps_are_alike(a)) {
      continue;
    }
    ++tried;
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs inputs = random_inputs(a, 2, 9);
    const auto part = [&](int64_t begin, int64_t count) {
      Inputs some{.ids = inputs.ids.narrow(1, begin, count)};
      some.types = inputs.types.defined() ? inputs.types.narrow(1, begin, count) : at::Tensor();
      return some;
    };
    const at::Tensor expected = model.forward(inputs).logits;
    Cache cache(12);
    model.forward(part(0, 3), &cache, nullptr, Logits::last);
    cache.place = at::full({1}, 3, at::kLong);
    for (LayerCache& layer : cache.layers) {  // what is not there yet may be anything that is a number
      for (at::Tensor* stored : {&layer.keys, &layer.values, &layer.inputs}) {
        stored->defined() ? stored->narrow(2, 3, 9).fill_(1e3) : at::Tensor();
      }
    }
    for (int64_t at = 3; at < 9; ++at) {
      const at::Tensor found = model.forward(part(at, 1), &cache, nullptr, Logits::last).logits;
      CHECK(relative_error(found, expected.narrow(1, at, 1)) < 1e-12);
      CHECK(cache.place.item<int64_t>() == at + 1);
    }
  }
  CHECK(tried > 20);
}

TEST_CASE("a step of decoding makes no constant anew and reads nothing back") {
  for (const auto& [name, text] : causal_architectures()) {
    for (const bool padded : {false, true}) {
      if (name == "rope dynamic" || (name == "rope longrope" && padded)) {
        continue;  // docs/design.md: how long the longest sequence is decides their angles
      }
      CAPTURE(name);
      CAPTURE(padded);
      const Architecture a = parse(text);
      const Executor model({a, as_weights(generic_tensors(a))}, at::kFloat);  // constants are made in float64
      Inputs inputs = random_inputs(a, 2, 8);
      if (padded) {
        inputs.mask = at::ones({2, 8}, at::kBool);
        inputs.mask[0].narrow(0, 0, 3).fill_(false);
      }
      Cache cache(16);
      model.forward(inputs, &cache, nullptr, Logits::last);
      model.forward(next_token(2, 5), &cache, nullptr, Logits::last);
      const std::vector<LayerCache> before = cache.layers;
      Operators found = operators_of([&] { model.forward(next_token(2, 7), &cache, nullptr, Logits::last); });
      CHECK(found.calls["aten::linear"] > 0);
      for (const std::string waits : {"item", "_local_scalar_dense", "nonzero", "masked_select", "equal"}) {
        CAPTURE(waits);
        CHECK(found.calls["aten::" + waits] == 0);
      }
      for (const std::string makes : {"arange", "tril"}) {
        CAPTURE(makes);
        CHECK(found.calls["aten::" + makes] == 0);
      }
      if (!padded) {  // else each row has positions of its own, and their angles are computed
        CHECK(found.calls["aten::cos"] + found.calls["aten::sin"] == 0);
        CHECK(found.on_float64.empty());
      }
      for (size_t layer = 0; layer < before.size(); ++layer) {
        for (at::Tensor LayerCache::*field : {&LayerCache::keys, &LayerCache::values, &LayerCache::inputs}) {
          const at::Tensor now = cache.layers[layer].*field, was = before[layer].*field;
          CHECK((!was.defined() || now.data_ptr() == was.data_ptr()));  // nothing moves
        }
      }
    }
  }
}

// Not the same bits: the last digit of a cosine depends on where in a vector register it was computed.
TEST_CASE("positions that are counted and the same positions given are the same answer") {
  for (const auto& [name, text] : causal_architectures()) {
    CAPTURE(name);
    Architecture a = parse(text);
    if (a.embedding.position == Position::learned) {
      a.context = 200;
    }
    const Executor model = double_model(a, generic_tensors(a));
    for (const int64_t tokens : {5, 100, 150, 5}) {  // tables grow, twice, and serve short texts afterwards
      Inputs counted = random_inputs(a, 2, tokens);
      if (a.embedding.position_pad) {
        counted.ids = counted.ids.masked_fill(counted.ids == *a.embedding.position_pad, 1);
      }
      Inputs given = counted;
      given.positions = at::arange(tokens, at::kLong).unsqueeze(0);
      CHECK(relative_error(model.forward(counted).logits, model.forward(given).logits) < 1e-13);
    }
  }
}

TEST_CASE("a text that goes on as a padded batch is the same text") {
  const Architecture a = parse(rotary(R"(, "rope": {})"));
  const Executor model = double_model(a, generic_tensors(a));
  const Inputs begin = random_inputs(a, 2, 4);
  Cache cache;
  model.forward(begin, &cache);
  Inputs rest = random_inputs(a, 2, 3, 8);
  rest.mask = at::ones({2, 3}, at::kBool);
  rest.mask[0][2].fill_(false);
  const at::Tensor found = model.forward(rest, &cache).logits;
  Inputs whole;
  whole.ids = at::cat({begin.ids, rest.ids}, 1);
  const at::Tensor expected = model.forward(whole).logits.narrow(1, 4, 3);
  CHECK(relative_error(found.narrow(1, 0, 2), expected.narrow(1, 0, 2)) < 1e-12);
  CHECK(relative_error(found[1], expected[1]) < 1e-12);
}

TEST_CASE("several threads share an executor") {
  for (const char* attention : {R"(, "rope": {})", R"(, "rope": {}, "softcap": 1.0)", R"(, "alibi": {"scaled": true})",
                                R"(, "gate": "position")"}) {
    CAPTURE(attention);
    const Architecture a = parse(rotary(attention));
    const Tensors tensors = generic_tensors(a);
    std::vector<Inputs> inputs;
    std::vector<at::Tensor> expected;
    for (const int64_t tokens : {3, 70, 130, 260}) {
      inputs.push_back(random_inputs(a, 1, tokens));
      expected.push_back(run(a, tensors, inputs.back()));
    }
    const Executor shared = double_model(a, tensors);
    std::vector<at::Tensor> found(inputs.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < inputs.size(); ++i) {
      threads.emplace_back([&, i] { found[i] = shared.forward(inputs[i]).logits; });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      CHECK(relative_error(found[i], expected[i]) < 1e-12);
    }
  }
}

}  // namespace pare::test
