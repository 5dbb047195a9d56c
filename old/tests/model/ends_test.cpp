// Every end of a model: what it reads, and that neither padding, nor a cache, nor precision changes its answer.

#include "pare/model/ends.h"

#include "pare/arch/head.h"
#include "tests/model/architectures.h"
#include "tests/model/helpers.h"

namespace pare::test {

namespace {

// Tokens [begin, begin + count) of every row, as a batch of their own.
Inputs cut(const Inputs& inputs, int64_t begin, int64_t count) {
  Inputs part;
  part.ids = inputs.ids.narrow(1, begin, count);
  part.types = inputs.types.defined() ? inputs.types.narrow(1, begin, count) : at::Tensor();
  return part;
}

// A row of `tokens` places that holds the sequence from `begin` on, and anything elsewhere.
Inputs padded(const Inputs& alone, int64_t begin, int64_t tokens) {
  const int64_t length = alone.ids.size(1);
  Inputs inputs;
  inputs.ids = at::full({1, tokens}, 3, at::kLong);
  inputs.mask = at::zeros({1, tokens}, at::kBool);
  inputs.ids.narrow(1, begin, length).copy_(alone.ids);
  inputs.mask.narrow(1, begin, length).fill_(true);
  if (alone.types.defined()) {
    inputs.types = at::zeros({1, tokens}, at::kLong);
    inputs.types.narrow(1, begin, length).copy_(alone.types);
  }
  return inputs;
}

Outputs without_padding(Outputs outputs, const Architecture& a, int64_t begin, int64_t length) {
  outputs.hidden = outputs.hidden.narrow(1, begin, length);
  if (outputs.logits.defined() && !answers_sequences(a)) {
    outputs.logits = outputs.logits.narrow(1, begin, length);
  }
  return outputs;
}

}  // namespace

TEST_CASE("every end has an answer of its shape, fused and explicit alike") {
  for (const auto& [name, text] : ending_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs inputs = random_inputs(a, 2, 9);
    const Outputs found = model.forward(inputs);
    if (a.task == Task::encoder) {
      CHECK_FALSE(found.logits.defined());
    } else {
      const Shape expected = answers_sequences(a) ? Shape{2, head_size(a)} : Shape{2, 9, head_size(a)};
      CHECK(found.logits.sizes().vec() == expected);
    }
    CHECK(found.pooled.defined() == has_pooler(a));
    Taps taps;
    taps.record("*");
    const Outputs explicitly = model.forward(inputs, nullptr, &taps);
    CHECK(relative_error(found, explicitly) < 1e-12);
    CHECK((!a.head.sequence || taps.recorded().at("sequence_logits").equal(explicitly.sequence_logits)));
  }
}

TEST_CASE("heads are the products they stand for") {
  const Architecture a = parse(ending("classifier", "causal", R"("classes": 3, "bias": true, "pool": "last")"));
  const Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 2, 9);
  const Outputs found = double_model(a, tensors).forward(inputs);
  const at::Tensor weight = tensors.at("head.weight"), bias = tensors.at("head.bias");
  CHECK(relative_error(found.logits, at::linear(found.hidden.select(1, 8), weight, bias)) < 1e-13);

  Architecture first = a;
  first.head.pool = Pool::first;
  const Outputs other = double_model(first, tensors).forward(inputs);
  CHECK(relative_error(other.logits, at::linear(found.hidden.select(1, 0), weight, bias)) < 1e-13);

  Architecture tokens = a;
  tokens.task = Task::token_classifier;
  tokens.head.pool = Pool::first;
  const Outputs all = double_model(tokens, tensors).forward(inputs);
  CHECK(relative_error(all.logits, at::linear(found.hidden, weight, bias)) < 1e-13);
}

TEST_CASE("a second head reads the pooled token through a layer of its own") {
  const Architecture a = parse(ending("masked_lm", "full", R"("transform": {"activation": "gelu"},
      "sequence": {"classes": 2, "transform": {"activation": "tanh"}})"));
  Tensors tensors = generic_tensors(a);
  const Inputs inputs = random_inputs(a, 2, 9);
  const Outputs found = double_model(a, tensors).forward(inputs);
  const at::Tensor pooled = at::tanh(at::linear(found.hidden.select(1, 0), tensors.at("head.sequence.transform.weight"),
                                                tensors.at("head.sequence.transform.bias")));
  const at::Tensor expected = at::linear(pooled, tensors.at("head.sequence.weight"), tensors.at("head.sequence.bias"));
  CHECK(relative_error(found.sequence_logits, expected) < 1e-13);

  tensors.at("head.sequence.weight").mul_(2);  // and the first one does not see it
  CHECK(double_model(a, tensors).forward(inputs).logits.equal(found.logits));
}

TEST_CASE("padding on either side changes no end") {
  for (const auto& [name, text] : ending_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs alone = random_inputs(a, 1, 5);
    const Outputs expected = model.forward(alone);
    for (const int64_t begin : {0, 1, 3}) {
      CHECK(relative_error(without_padding(model.forward(padded(alone, begin, 8)), a, begin, 5), expected) < 1e-12);
    }
  }
}

TEST_CASE("token by token through a cache, an end that reads the last token comes out the same") {
  int64_t tried = 0;
  for (const auto& [name, text] : ending_architectures()) {
    const Architecture a = parse(text);
    if (a.blocks.front().attention.mask != Mask::causal) {
      continue;
    }
    CAPTURE(name);
    ++tried;
    const Executor model = double_model(a, generic_tensors(a));
    const Inputs inputs = random_inputs(a, 2, 9);
    Outputs whole = model.forward(inputs), last;
    Cache cache;
    for (int64_t token = 0; token < 9; token += 3) {
      last = model.forward(cut(inputs, token, 3), &cache);
    }
    CHECK(relative_error(last, without_padding(whole, a, 6, 3)) < 1e-12);
  }
  CHECK(tried >= 6);
}

TEST_CASE("float32 runs every end close to float64") {
  for (const auto& [name, text] : ending_architectures()) {
    CAPTURE(name);
    const Architecture a = parse(text);
    const Tensors tensors = generic_tensors(a);
    const Inputs inputs = random_inputs(a, 2, 9);
    const Executor single({a, as_weights(tensors)}, at::kFloat);
    CHECK(relative_error(single.forward(inputs), double_model(a, tensors).forward(inputs)) < 1e-4);
  }
}

}  // namespace pare::test
