#include "pare/decode/sampler.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;

namespace {

std::vector<int64_t> ids_of(const std::vector<Candidate>& all) {
  std::vector<int64_t> ids;
  for (const Candidate& each : all) {
    ids.push_back(each.id);
  }
  return ids;
}

// Probabilities 0.1, 0.4, 0.2, 0.3.
std::vector<float> four() {
  return {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
}

using Ids = std::vector<int64_t>;

}  // namespace

TEST_CASE("what is left to choose from, by plain numbers") {
  const std::vector<float> logits = four();
  CHECK(ids_of(candidates(logits, {}, {})) == Ids{1});
  const std::vector<Candidate> all = candidates(logits, {}, {.temperature = 1});
  REQUIRE(ids_of(all) == Ids{0, 1, 2, 3});
  CHECK(all[2].probability == doctest::Approx(0.2).epsilon(1e-6));
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_k = 2})) == Ids{1, 3});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_k = 9})) == Ids{0, 1, 2, 3});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_p = 0.65})) == Ids{1, 3});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_p = 0.75})) == Ids{1, 2, 3});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_p = 1e-9})) == Ids{1});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .min_p = 0.6})) == Ids{1, 3});
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .min_p = 1})) == Ids{1});
  // A cut acts on what those before it left: of 0.4 and 0.3 the first has 0.57.
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_k = 2, .top_p = 0.55})) == Ids{1});
  const std::vector<Candidate> cold = candidates(logits, {}, {.temperature = 0.5, .top_k = 2});
  CHECK(cold[0].probability == doctest::Approx(0.16 / 0.25).epsilon(1e-6));
}

TEST_CASE("tokens as likely as the last of the k most likely stay, and the first of equals is the most likely") {
  const std::vector<float> logits = {1, 2, 2, 0, 2};
  CHECK(ids_of(candidates(logits, {}, {.temperature = 1, .top_k = 2})) == Ids{1, 2, 4});
  CHECK(ids_of(candidates(logits, {}, {})) == Ids{1});
}

TEST_CASE("a token seen before counts less, once, whatever the sign of its logit") {
  const std::vector<float> logits = {4, -1, 3, 0};
  const Ids seen = {0, 1, 0};
  CHECK(ids_of(candidates(logits, seen, {.repetition_penalty = 2})) == Ids{2});
  const std::vector<Candidate> found = candidates(logits, seen, {.repetition_penalty = 2, .temperature = 1});
  const double sum = std::exp(2) + std::exp(-2) + std::exp(3) + 1;
  CHECK(found[0].probability == doctest::Approx(std::exp(2) / sum));
  CHECK(found[1].probability == doctest::Approx(std::exp(-2) / sum));
  CHECK(found[2].probability == doctest::Approx(std::exp(3) / sum));
}

TEST_CASE("tokens are drawn as often as they are likely") {
  const std::vector<Candidate> all = {{3, 0.25}, {5, 0.5}, {9, 0.25}};
  std::map<int64_t, int> count;
  for (int n = 0; n < 1000; ++n) {
    ++count[drawn(all, n / 1000.0)];
  }
  CHECK(count == std::map<int64_t, int>{{3, 250}, {5, 500}, {9, 250}});
  CHECK(drawn(all, 1 - 0x1p-53) == 9);
}

TEST_CASE("the probability of a token is the model's own") {
  CHECK(log_probability(four(), 3) == doctest::Approx(std::log(0.3)).epsilon(1e-6));
  CHECK(log_probability(std::vector<float>{1000, 0}, 0) == doctest::Approx(0));
}

TEST_CASE("logits that are no numbers are refused, excluded tokens are not") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& logits : {std::vector<float>{0, nan, 1}, {0, inf}, {nan, nan}, {-inf, -inf}}) {
    CHECK(message_of<InputError>([&] { candidates(logits, {}, {}); }).find("not all finite") != std::string::npos);
  }
  const std::vector<Candidate> found = candidates(std::vector<float>{-inf, 1, 1}, {}, {.temperature = 1});
  CHECK(found[0].probability == 0);
  CHECK(drawn(found, 0) == 1);
}
