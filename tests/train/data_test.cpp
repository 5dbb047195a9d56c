// What a run sees: the order, the windows, the masks, the generated problems, and what is refused before the first
// step.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <set>

#include "pare/support/sha256.h"
#include "pare/train/batches.h"
#include "pare/train/tokens.h"
#include "tests/support/helpers.h"
#include "tests/train/helpers.h"

namespace pare::test {

namespace {

std::string write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

std::string counted_bytes(size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += static_cast<char>(i % 200);
  }
  return text;
}

nlohmann::json text_json(const std::vector<std::string>& files) {
  return {{"task", "causal_lm"},
          {"context", 8},
          {"batch", 4},
          {"steps", 10},
          {"architecture", {{"vocab", 256}}},
          {"data", {{"train", files}, {"length", nullptr}}}};
}

std::string refusal_of(const nlohmann::json& changes) {
  try {
    open_sequences(sorting_config(changes));
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("an epoch sees every sequence once, and a longer run begins like a shorter one") {
  const std::vector<int32_t> order = draw_order(10, 25, 7);
  for (const size_t epoch : {0, 1}) {
    const std::set<int32_t> seen(order.begin() + 10 * epoch, order.begin() + 10 * (epoch + 1));
    CHECK(seen.size() == 10);
  }
  CHECK(!std::equal(order.begin(), order.begin() + 10, order.begin() + 10));
  const std::vector<int32_t> shorter = draw_order(10, 13, 7);
  CHECK(std::equal(shorter.begin(), shorter.end(), order.begin()));
  CHECK(draw_order(10, 25, 8) != order);
}

TEST_CASE("tokens of several files are one array, in every format") {
  const TemporaryFolder folder;
  const std::string a = write_file(folder.path() / "a", std::string("\x01\x02\x03\x04", 4));
  const std::string b = write_file(folder.path() / "b", std::string("\x05\x00\x00\x01", 4));
  const TokenArray bytes = open_tokens({a, b}, {.format = DataFormat::bytes});
  CHECK(bytes.size() == 8);
  CHECK(bytes.read(2, 4).equal(at::tensor({3, 4, 5, 0}, at::kLong)));
  CHECK(bytes.files()[0].sha256 == sha256_of(std::string_view("\x01\x02\x03\x04", 4)));
  CHECK(
      open_tokens({a, b}, {.format = DataFormat::uint16}).read(0, 4).equal(at::tensor({513, 1027, 5, 256}, at::kLong)));
  CHECK(open_tokens({b}, {.format = DataFormat::uint32}).read(0, 1).item<int64_t>() == 16777221);
  CHECK(open_tokens({b}, {.format = DataFormat::uint16}).files()[0].largest == 256);
  const std::string odd = write_file(folder.path() / "odd", "abc");
  CHECK_THROWS_AS(open_tokens({odd}, {.format = DataFormat::uint16}), InputError);
}

TEST_CASE("windows lie side by side, targets are the next tokens, the end is for measuring") {
  const TemporaryFolder folder;
  const std::string file = write_file(folder.path() / "text", counted_bytes(161));  // 20 windows of 8, and one token
  const TrainConfig config = sorting_config(text_json({file}));
  const std::shared_ptr<const Sequences> sequences = open_sequences(config);
  CHECK(sequences->training() == 18);
  CHECK(sequences->validation() == 2);
  const TrainBatch third = sequences->batch(false, {3}, 0);
  CHECK(third.inputs.ids.equal(at::arange(24, 32).unsqueeze(0)));
  CHECK(third.targets.equal(at::arange(25, 33).unsqueeze(0)));
  CHECK(sequences->batch(true, {1}, 0).inputs.ids[0][0].item<int64_t>() == 19 * 8);

  const Batches batches(sequences, config);
  const TrainBatch first = batches.training(0);
  for (int64_t row = 0; row < 4; ++row) {
    CHECK(first.inputs.ids[row][0].item<int64_t>() == 8 * batches.order()[static_cast<size_t>(row)]);
  }
  CHECK(batches.validations() == 1);
  CHECK(batches.validation(0).inputs.ids.size(0) == 2);
  CHECK(batches.manifest()["data"]["train"][0]["sha256"] == sha256_of(counted_bytes(161)));
}

TEST_CASE("data that cannot be trained on is refused, with what is wrong") {
  const TemporaryFolder folder;
  CHECK(says(refusal_of(text_json({(folder.path() / "missing").string()})), "missing"));
  CHECK(says(refusal_of(text_json({write_file(folder.path() / "empty", "")})), "is empty"));
  CHECK(says(refusal_of(text_json({write_file(folder.path() / "short", "abc")})),
             "3 tokens are too few for one sequence of 9"));
  CHECK(says(refusal_of(text_json({write_file(folder.path() / "nine", "abcdefghi")})), "both need one"));
  nlohmann::json narrow = text_json({write_file(folder.path() / "wide", counted_bytes(300))});
  narrow["architecture"]["vocab"] = 100;
  CHECK(says(refusal_of(narrow), "has the token 199, but the Architecture's vocabulary ends before 100"));
  CHECK(says(refusal_of(text_json({write_file(folder.path() / "text.xz", "abc")})), "xz -dk"));
}

TEST_CASE("generated problems are solved by their answers, and only these are asked for") {
  const auto sequence = [](const TrainConfig& config, int64_t number) {
    const TrainBatch batch = open_sequences(config)->batch(false, {number}, 0);
    std::vector<int64_t> tokens(batch.inputs.ids.const_data_ptr<int64_t>(),
                                batch.inputs.ids.const_data_ptr<int64_t>() + batch.inputs.ids.numel());
    tokens.push_back(batch.targets[0][-1].item<int64_t>());
    CHECK(batch.inputs.ids.size(1) == context_of(config));
    CHECK(batch.targets[0]
              .slice(0, 0, -1)
              .masked_select(batch.targets[0].slice(0, 0, -1) != no_target)
              .equal(batch.inputs.ids[0].slice(0, 1).masked_select(batch.targets[0].slice(0, 0, -1) != no_target)));
    return std::pair(tokens, targets_in(batch));
  };
  for (int64_t number = 0; number < 20; ++number) {
    const auto [sorted, asked] = sequence(sorting_config(), number);
    CHECK(asked == 5);
    std::vector<int64_t> problem(sorted.begin(), sorted.begin() + 5);
    std::sort(problem.begin(), problem.end());
    CHECK(sorted[5] == 10);
    CHECK(std::equal(problem.begin(), problem.end(), sorted.begin() + 6));

    const auto [copied, copies] = sequence(sorting_config({{"task", "copying"}}), number);
    CHECK(std::equal(copied.begin(), copied.begin() + 5, copied.begin() + 6));

    const auto [sum, digits] = sequence(sorting_config({{"task", "addition"}, {"data", {{"length", 3}}}}), number);
    const auto value = [&sum = sum](size_t from, size_t count) {
      int64_t total = 0;
      for (size_t i = count; i-- > 0;) {
        total = 10 * total + sum[from + i];
      }
      return total;
    };
    CHECK(digits == 4);
    CHECK(sum[3] == 10);
    CHECK(sum[7] == 11);
    CHECK(value(0, 3) + value(4, 3) == value(8, 4));
  }
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config());
  CHECK(!sequences->batch(false, {0}, 0).inputs.ids.equal(sequences->batch(true, {0}, 0).inputs.ids));
  CHECK(!sequences->batch(false, {0}, 0).inputs.ids.equal(sequences->batch(false, {1}, 0).inputs.ids));
}

TEST_CASE("masks are drawn anew when a window is seen again, and stay the same for measuring") {
  const TemporaryFolder folder;
  nlohmann::json json = text_json({write_file(folder.path() / "text", counted_bytes(6400))});
  json.merge_patch({{"task", "masked_lm"},
                    {"context", 32},
                    {"data", {{"mask_token", 255}}},
                    {"architecture", {{"task", "masked_lm"}}}});
  json["architecture"]["blocks"] = {{{"attention", {{"heads", 2}, {"head_width", 8}, {"mask", "full"}}}}};
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config(json));
  std::vector<int64_t> all(static_cast<size_t>(sequences->training()));
  std::iota(all.begin(), all.end(), 0);
  const TrainBatch batch = sequences->batch(false, all, 0);
  const at::Tensor asked = batch.targets != no_target;
  const double share = asked.to(at::kDouble).mean().item<double>();
  CHECK(share > 0.13);
  CHECK(share < 0.21);  // 0.15, and one that is always asked for
  CHECK(asked.any(1).all().item<bool>());
  const double masked = (batch.inputs.ids.masked_select(asked) == 255).to(at::kDouble).mean().item<double>();
  CHECK(masked > 0.75);
  CHECK(masked < 0.85);
  CHECK(batch.inputs.ids.masked_select(~asked).lt(200).all().item<bool>());
  CHECK(!sequences->batch(false, all, 1000).targets.equal(batch.targets));
  CHECK(sequences->batch(true, {0, 1}, 0).targets.equal(sequences->batch(true, {0, 1}, 0).targets));
}

TEST_CASE("labelled lines become padded sequences with a class each") {
  const TemporaryFolder folder;
  const std::string lines = R"({"text": "ab", "label": 1}
{"tokens": [1, 2, 3], "label": 0}
{"text": "z", "label": 2}
)";
  nlohmann::json json = text_json({write_file(folder.path() / "lines", lines)});
  json.merge_patch({{"task", "classifier"},
                    {"data", {{"validation_share", 0.3}}},
                    {"architecture", {{"task", "classifier"}, {"head", {{"classes", 3}}}}}});
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config(json));
  CHECK(sequences->training() == 2);
  const TrainBatch batch = sequences->batch(false, {0, 1}, 0);
  CHECK(batch.inputs.ids.equal(at::tensor({97, 98, 0, 1, 2, 3}, at::kLong).view({2, 3})));
  CHECK(batch.inputs.mask.sum(1).equal(at::tensor({2, 3}, at::kLong)));
  CHECK(batch.targets.equal(at::tensor({1, 0}, at::kLong)));
  json["architecture"]["head"]["classes"] = 2;
  CHECK(says(refusal_of(json), "line 3: the label 2 is not one of 2 classes"));
}

}  // namespace pare::test
