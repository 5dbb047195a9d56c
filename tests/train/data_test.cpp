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
#include "pare/train/token_shards.h"
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

TEST_CASE("what no token before a place is, is known; of what nobody looked at nothing is said") {
  TokenPlaces places;
  CHECK(places.may_have(3, 100));
  places.add(std::vector<int64_t>{5, 3, 5});
  places.add(std::vector<int64_t>{7, 4'000'000'000, 3});
  CHECK_FALSE(places.may_have(3, 1));
  CHECK(places.may_have(3, 2));
  CHECK_FALSE(places.may_have(7, 3));
  CHECK(places.may_have(7, 4));
  CHECK_FALSE(places.may_have(4, 100));
  CHECK_FALSE(places.may_have(8, 100));
  CHECK(places.may_have(4'000'000'000, 100));  // which no vocabulary has, and nobody counts
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
  CHECK(third.asks_all);
  CHECK(sequences->batch(true, {1}, 0).inputs.ids[0][0].item<int64_t>() == 19 * 8);

  const Batches batches(sequences, config);
  const TrainBatch first = batches.training(0);
  for (int64_t row = 0; row < 4; ++row) {
    CHECK(first.inputs.ids[row][0].item<int64_t>() == 8 * batches.order()[row]);
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
    return std::pair(tokens, (batch.targets != no_target).sum().item<int64_t>());
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
  CHECK_FALSE(batch.asks_all);
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
  CHECK(batch.asks_all);
  json["architecture"]["head"]["classes"] = 2;
  CHECK(says(refusal_of(json), "line 3: the label 2 is not one of 2 classes"));
}

// A WordPiece vocabulary that fits on a line: words are cut into the longest tokens from the left.
static std::string write_vocabulary(const TemporaryFolder& folder) {
  return folder.write("vocab.txt", "[UNK]\n[MASK]\nto\nbe\nor\nnot\nquest\n##ion\n").string();
}

TEST_CASE("a text becomes the tokens of a tokenizer, and its hash is in the manifest") {
  const TemporaryFolder folder;
  const std::string vocabulary = write_vocabulary(folder);
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += "to be or not question ";
  }
  nlohmann::json json = text_json({folder.write("text", text).string()});
  json["data"]["tokenizer"] = vocabulary;
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config(json));
  const TrainBatch batch = sequences->batch(false, {0}, 0);
  CHECK(batch.inputs.ids[0].equal(at::tensor({2, 3, 4, 5, 6, 7, 2, 3}, at::kLong)));
  CHECK(batch.targets[0].equal(at::tensor({3, 4, 5, 6, 7, 2, 3, 4}, at::kLong)));
  const nlohmann::ordered_json manifest = sequences->manifest();
  CHECK(manifest["tokenizer"]["sha256"] == sha256_of(bytes_of_file(vocabulary)));
  CHECK(manifest["train"][0]["tokens"] == 240);
  CHECK(manifest["train"][0]["sha256"] == sha256_of(text));

  json["architecture"]["vocab"] = 7;
  CHECK(says(refusal_of(json), "has ids up to 7, but the Architecture's vocabulary ends before 7"));
  json["architecture"]["vocab"] = 256;
  json["data"]["tokenizer"] = (folder.path() / "none").string();
  CHECK(says(refusal_of(json), "there is no tokenizer"));
  json["data"]["tokenizer"] = vocabulary;
  json["data"]["format"] = "uint16";
  CHECK(says(refusal_of(json), "hold token ids already"));
}

TEST_CASE("shards hold the tokens of a text, and are refused once they are touched") {
  const TemporaryFolder folder;
  const std::string text = counted_bytes(1000), other = counted_bytes(100);
  nlohmann::json json = text_json({folder.write("text", text).string()});
  json["data"]["validation"] = {folder.write("other", other).string()};
  const TrainConfig config = sorting_config(json);
  const std::filesystem::path place = folder.path() / "shards";
  const PreparedShards made = write_shards(config, place, at::kCPU, 300);
  CHECK(made.shards == 4 + 1);
  CHECK(made.train_tokens == 1000);
  CHECK(std::filesystem::file_size(place / "train-00003.u16") == 200);
  CHECK(says(message_of<InputError>([&] { write_shards(config, place); }), "exists already"));

  nlohmann::json prepared = text_json({});
  prepared["data"] = {{"shards", place.string()}};
  const std::shared_ptr<const Sequences> direct = open_sequences(config);
  const std::shared_ptr<const Sequences> from_shards = open_sequences(sorting_config(prepared));
  CHECK(from_shards->training() == direct->training());
  for (const int64_t number : {0, 36, 37, 112}) {  // 37: across two shards
    CHECK(from_shards->batch(false, {number}, 0).targets.equal(direct->batch(false, {number}, 0).targets));
  }
  CHECK(from_shards->batch(true, {3}, 0).inputs.ids.equal(direct->batch(true, {3}, 0).inputs.ids));
  CHECK(from_shards->manifest()["contents"] == direct->manifest()["contents"]);

  const auto with = [&](const std::string& file, const std::string& bytes) {
    const std::string before = bytes_of_file(place / file);
    write_file(place / file, bytes);
    const std::string message = refusal_of(prepared);
    write_file(place / file, before);
    return message;
  };
  const std::string shard = bytes_of_file(place / "train-00001.u16");
  std::string changed = shard;
  changed[7] ^= 1;
  CHECK(says(with("train-00001.u16", shard.substr(0, 598)), "was it cut since it was written?"));
  CHECK(says(with("train-00001.u16", shard + "ab"), "was it changed since it was written?"));
  CHECK(says(with("train-00001.u16", changed), "is damaged: its SHA-256"));
  CHECK(says(with("tokens.json", "{}"), "has another kind of tokens.json"));
  CHECK(says(with("tokens.json", R"({"pare_tokens": 1, "dtype": "uint16", "train": [{"file": "../text"}]})"),
             "without file, tokens and sha256"));
  CHECK(refusal_of(prepared) == "");
  std::filesystem::remove(place / "train-00002.u16");
  CHECK(says(refusal_of(prepared), "train-00002.u16"));
  prepared["data"]["shards"] = folder.path().string();
  CHECK(says(refusal_of(prepared), "has no tokens.json"));
  prepared["data"] = {{"shards", place.string()}, {"train", {(folder.path() / "text").string()}}};
  CHECK(says(refusal_of(prepared), "leave those keys out"));

  json["architecture"]["vocab"] = 100;
  CHECK(says(message_of<InputError>([&] { write_shards(sorting_config(json), folder.path() / "narrow"); }),
             "the Architecture's vocabulary ends before 100"));
  CHECK(!std::filesystem::exists(folder.path() / "narrow"));
}

TEST_CASE("a vocabulary beyond 65,536 is stored in four bytes a token, and a tokenizer that is named must fit") {
  const TemporaryFolder folder;
  nlohmann::json json = text_json({folder.write("text", "to be or not question to be or not question").string()});
  json["architecture"]["vocab"] = 70000;
  json["context"] = 4;
  json["data"]["tokenizer"] = write_vocabulary(folder);
  CHECK(write_shards(sorting_config(json), folder.path() / "shards").dtype == "uint32");
  nlohmann::json prepared = json;
  prepared["data"] = {{"shards", (folder.path() / "shards").string()}, {"tokenizer", json["data"]["tokenizer"]}};
  CHECK(refusal_of(prepared) == "");
  folder.write("vocab.txt", "[UNK]\n[MASK]\nto\nbe\nor\nnot\nquest\n##ing\n");
  CHECK(says(refusal_of(prepared), "with another tokenizer"));
}

static std::string big_endian(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

static nlohmann::json image_json(const std::string& format, const std::vector<std::string>& files, int64_t channels,
                                 int64_t side) {
  return {{"task", "classifier"},
          {"data", {{"format", format}, {"train", files}, {"length", nullptr}, {"validation_share", 0.25}}},
          {"architecture",
           {{"task", "classifier"},
            {"vocab", nullptr},
            {"context", 5},
            {"head", {{"classes", 3}}},
            {"embedding",
             {{"class_token", true}, {"patch", {{"size", side / 2}, {"channels", channels}, {"image", side}}}}}}}};
}

TEST_CASE("IDX images are the bytes of the file, normalised, and every fourth is for measuring") {
  const TemporaryFolder folder;
  std::string pixels, labels;
  for (int i = 0; i < 8 * 16; ++i) {
    pixels += static_cast<char>(i * 2);
    labels += i % 16 == 0 ? std::string(1, static_cast<char>(i / 16 % 3)) : "";
  }
  const std::string images = big_endian(0x803) + big_endian(8) + big_endian(4) + big_endian(4) + pixels;
  const std::string classes = big_endian(0x801) + big_endian(8) + labels;
  nlohmann::json json =
      image_json("idx", {folder.write("images", images).string(), folder.write("labels", classes).string()}, 1, 4);
  json["data"]["mean"] = {0.25};
  json["data"]["deviation"] = {0.5};
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config(json));
  CHECK(sequences->training() == 6);
  CHECK(sequences->validation() == 2);
  const TrainBatch batch = sequences->batch(false, {4, 1}, 0);  // without image 3, number 4 is image 5
  CHECK(batch.targets.equal(at::tensor({2, 1}, at::kLong)));
  CHECK(batch.asks_all);
  CHECK((batch.inputs.pixels.sizes() == at::IntArrayRef({2, 1, 4, 4})));
  CHECK(batch.inputs.pixels[0][0][1][2].item<double>() ==
        doctest::Approx((2.0 * (5 * 16 + 6) / 255 - 0.25) / 0.5).epsilon(1e-6));
  const at::Tensor measured = sequences->batch(true, {0, 1}, 0).inputs.pixels.flatten(1).select(1, 0);
  const at::Tensor expected = (at::tensor({3.0, 7.0}) * 32 / 255 - 0.25) / 0.5;  // images 3 and 7
  CHECK(at::allclose(std::get<0>(measured.sort()), expected.to(at::kFloat), 1e-6, 1e-6));
  CHECK((sequences->images(false)->pixels.scalar_type() == at::kByte));
  CHECK(sequences->images(true)->labels.size(0) == 2);
  const nlohmann::ordered_json manifest = sequences->manifest();
  CHECK(manifest["contents"]["train"]["sha256_of_pixels"] == sha256_of(pixels));
  CHECK((manifest["mean"] == nlohmann::json({0.25})));

  const auto refused = [&](const std::string& a, const std::string& b) {
    folder.write("images", a);
    folder.write("labels", b);
    return refusal_of(json);
  };
  CHECK(says(refused(images.substr(0, images.size() - 1), classes), "speaks of 128 bytes of data, and there are 127"));
  CHECK(says(refused(images + std::string(std::size_t{1} << 26, 'x'), classes),
             "speaks of 128 bytes of data, and there are more"));
  // 2^64 bytes, which are none where nobody looks.
  const std::string endless = big_endian(0x803) + big_endian(1 << 20) + big_endian(1 << 20) + big_endian(1 << 24);
  CHECK(says(refused(endless, classes), "speaks of impossibly many bytes"));
  CHECK(says(refused(images + "x", classes), "and there are more"));
  CHECK(says(refused(images.substr(0, 9), classes), "impossibly many"));
  CHECK(says(refused(classes, images), "is no IDX file of pictures"));
  CHECK(says(refused("", classes), "is empty"));
  CHECK(says(refused(images, big_endian(0x801) + big_endian(7) + labels.substr(1)), "do they belong together?"));
  labels[5] = 3;
  CHECK(says(refused(images, big_endian(0x801) + big_endian(8) + labels),
             "image 5 has the label 3, which is not one of 3 classes"));
  CHECK(says(refused(big_endian(0x803) + big_endian(8) + big_endian(2) + big_endian(8) + pixels, classes),
             "grey pictures of 8 x 2, but the model reads 1 channel of 4 x 4"));
  json["data"]["train"] = {(folder.path() / "images").string()};
  CHECK(says(refusal_of(json), "1 IDX file: expected pictures, labels"));
  json["data"]["format"] = "bytes";
  CHECK(says(refusal_of(json), "data.format: bytes is text, and the Architecture reads images"));
  json["data"]["format"] = "idx";
  json["data"]["mean"] = {0.1, 0.2};
  CHECK(says(refusal_of(json), "data.mean: 2 numbers, expected one, or one for each of 1 channels"));
}

TEST_CASE("images to measure on are mixed, so that the first of them are not of the first class alone") {
  const TemporaryFolder folder;
  std::string pixels(90 * 16, 'x'), labels;
  for (int i = 0; i < 90; ++i) {
    labels += static_cast<char>(i / 30);
  }
  const std::string images =
      folder.write("images", big_endian(0x803) + big_endian(90) + big_endian(4) + big_endian(4) + pixels).string();
  const std::string classes = folder.write("labels", big_endian(0x801) + big_endian(90) + labels).string();
  nlohmann::json json = image_json("idx", {images, classes}, 1, 4);
  json["data"]["validation"] = {images, classes};
  const std::shared_ptr<const Sequences> sequences = open_sequences(sorting_config(json));
  std::vector<int64_t> numbers(90);
  std::iota(numbers.begin(), numbers.end(), 0);
  const at::Tensor targets = sequences->batch(true, numbers, 0).targets;
  CHECK(at::bincount(targets).equal(at::full({3}, 30, at::kLong)));
  CHECK(at::bincount(targets.narrow(0, 0, 30)).min().item<int64_t>() > 4);
  CHECK(at::bincount(sequences->batch(false, numbers, 0).targets.narrow(0, 0, 30)).size(0) == 1);
}

TEST_CASE("batches of CIFAR are channel by channel; of two labels, the fine one counts") {
  const TemporaryFolder folder;
  std::string ten, hundred;
  for (int i = 0; i < 4; ++i) {
    std::string pixels;
    for (int p = 0; p < 3072; ++p) {
      pixels += static_cast<char>(p / 1024 * 50 + i);
    }
    ten += std::string(1, static_cast<char>(i % 3)) + pixels;
    hundred += std::string(1, static_cast<char>(19)) + std::string(1, static_cast<char>(2 - i % 3)) + pixels;
  }
  nlohmann::json json = image_json("cifar10", {folder.write("ten", ten).string()}, 3, 32);
  json["data"]["mean"] = {0, 0.5, 1};
  json["data"]["deviation"] = {1, 2, 4};
  const TrainBatch batch = open_sequences(sorting_config(json))->batch(false, {2, 0}, 0);
  CHECK(batch.targets.equal(at::tensor({2, 0}, at::kLong)));
  for (const int64_t channel : {0, 1, 2}) {
    const double expected = ((50.0 * static_cast<double>(channel) + 2) / 255 - 0.5 * static_cast<double>(channel)) /
                            static_cast<double>(1 << channel);
    CHECK(batch.inputs.pixels[0][channel][31][31].item<double>() == doctest::Approx(expected).epsilon(1e-6));
  }
  json["data"]["train"] = {folder.write("hundred", hundred).string()};
  CHECK(says(refusal_of(json), "no whole number of records of 3073"));
  json["data"]["format"] = "cifar100";
  CHECK(open_sequences(sorting_config(json))->batch(false, {0, 1}, 0).targets.equal(at::tensor({2, 1}, at::kLong)));
  json["architecture"]["head"]["classes"] = 2;
  CHECK(says(refusal_of(json), "image 0 has the label 2, which is not one of 2 classes"));
  nlohmann::json small = image_json("cifar100", {(folder.path() / "hundred").string()}, 3, 16);
  CHECK(says(refusal_of(small), "3 channels of 32 x 32, but the model reads 3 of 16 x 16"));
}

TEST_CASE("folders of images that cannot be read are refused, all at once") {
  const TemporaryFolder folder;
  nlohmann::json json = image_json("folders", {folder.path().string()}, 3, 4);
  CHECK(says(refusal_of(json), "has no folders: expected one for each class"));
  for (const char* name : {"cat", "dog", "owl"}) {
    std::filesystem::create_directory(folder.path() / name);
  }
  folder.write("cat/one.jpg", "\xFF\xD8 and no more");
  folder.write("cat/two.png", "\x89PNG\r\n\x1A\n and no more");
  folder.write("cat/three.png", "plain text");
  folder.write("cat/four.jpg", "");
  folder.write("dog/notes.txt", "woof");
  const std::string message = refusal_of(json);
  for (const char* part :
       {"one.jpg' cannot be decoded", "two.png' cannot be decoded", "three.png' is no JPEG and no PNG",
        "four.jpg' is empty", "notes.txt' is no .jpg", "owl' has no images"}) {
    CAPTURE(part);
    CHECK_MESSAGE(says(message, part), message);
  }
  json["architecture"]["head"]["classes"] = 2;
  CHECK(says(refusal_of(json), "has folders of 3 classes, but the model knows 2 (head.classes): the label 2 of 'owl'"));
}

}  // namespace pare::test
