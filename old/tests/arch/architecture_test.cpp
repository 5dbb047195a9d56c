// The Architecture's JSON: every problem at once, every key written, the same bytes for the same value.

#include "pare/arch/architecture.h"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"
#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/json.h"

using namespace pare;

namespace {

using nlohmann::json;

json small() {
  return json::parse(R"({"width": 12, "vocab": 23, "context": 8,
    "blocks": [{"attention": {"heads": 4, "head_width": 3}, "mlp": {"width": 20, "activation": "gelu"}}]})");
}

// What is said about `small` after a change, or "" when it is fine.
std::string complaint(const std::function<void(json&)>& change) {
  json text = small();
  change(text);
  try {
    architecture_from_json(text, "test");
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

std::string complaint(const char* pointer, const json& value) {
  return complaint([&](json& text) { text[json::json_pointer(pointer)] = value; });
}

bool says(const std::string& complaint, const std::string& part) {
  const bool found = complaint.find(part) != std::string::npos;
  if (!found) {
    MESSAGE("found: " << complaint);
  }
  return found;
}

std::filesystem::path shared_folder() {
  const char* set = std::getenv("PARE_SHARED");
  return set ? set : "../shared";
}

}  // namespace

TEST_CASE("what is absent takes its default, and everything is written") {
  const Architecture a = architecture_from_json(small(), "test");
  CHECK(a.task == Task::causal_lm);
  CHECK(a.blocks[0].attention.kv_heads == 4);
  CHECK(a.blocks[0].attention.skip);
  CHECK(a.blocks[0].mlp->skip);
  const json written = json::parse(architecture_text(a));
  CHECK(written["blocks"][0]["attention"]["rope"].is_null());
  CHECK(written["blocks"][0]["attention"]["bias"]["query"] == false);
  CHECK(written["head"]["tied"] == false);
  CHECK(written["embedding"]["position"] == "none");
  CHECK(architecture_from_json(written, "again") == a);
  CHECK(architecture_text(architecture_from_json(written, "again")) == architecture_text(a));
}

TEST_CASE("what does not fit together is listed with all else that is wrong") {
  const std::string said = complaint([](json& text) {
    json& attention = text["blocks"][0]["attention"];
    attention["cache"] = "k";
    attention["value"] = "identity";
    attention["softcap"] = -1;
  });
  CHECK(says(said, "blocks[0].attention.cache: k replaces the value matrix: leave value dense"));
  CHECK(says(said, "blocks[0].attention.softcap: -1 is not positive"));
}

TEST_CASE("equal neighbours are written as one kind with repeat") {
  json text = small();
  text["blocks"].push_back(text["blocks"][0]);
  text["blocks"].push_back(text["blocks"][0]);
  text["blocks"][2]["attention"]["window"] = 5;
  const Architecture a = architecture_from_json(text, "test");
  const json written = json::parse(architecture_text(a));
  REQUIRE(written["blocks"].size() == 2);
  CHECK(written["blocks"][0]["repeat"] == 2);
  CHECK(a.blocks == architecture_from_json(written, "again").blocks);
}

TEST_CASE("every wrong type, word and key is named with its path") {
  CHECK(says(complaint("/width", "12"), "test: width: \"12\" is not a whole number"));
  CHECK(says(complaint("/width", 12.5), "width: 12.5 is not a whole number"));
  CHECK(says(complaint("/width", 18446744073709551615u), "width: 18446744073709551615 is not a whole number"));
  CHECK(says(complaint("/task", "causal"), "task: \"causal\" is not one of causal_lm, masked_lm, encoder, classifier"));
  CHECK(says(complaint("/blocks", json::object()), "blocks: {} is not a list"));
  CHECK(says(complaint("/blocks/0/attention/skip", 1), "blocks[0].attention.skip: 1 is not true or false"));
  CHECK(says(complaint("/blocks/0/attention/sofcap", 1),
             "blocks[0].attention.sofcap: unknown key (did you mean 'softcap'?)"));
  CHECK(says(complaint("/blocks/0/attention/query", "keys"),
             "blocks[0].attention.query: \"keys\" is not dense, identity, key or"));
  CHECK(says(complaint([](json& t) { t.erase("context"); }), "context: is required"));
  CHECK(says(complaint([](json& t) { t["blocks"][0]["attention"].erase("heads"); }),
             "blocks[0].attention.heads: is required"));
  CHECK_THROWS_WITH_AS(architecture_from_json(json(3), "test"), "test: 3 is not an object", InputError);
}

TEST_CASE("all problems come at once") {
  const std::string found = complaint([](json& t) {
    t["blocks"].push_back(t["blocks"][0]);
    t["blocks"].push_back(t["blocks"][0]);
    t["blocks"][2]["attention"]["heads"] = 8;
    t["blocks"][2]["attention"]["kv_heads"] = 3;
    t["blocks"][1]["attention"]["query"] = "identity";
    t["blocks"][1]["attention"]["head_width"] = 5;
    t["head"]["classes"] = 3;
  });
  CHECK(says(found, "blocks[2].attention.kv_heads: 3 does not divide heads 8"));
  CHECK(says(found, "blocks[1].attention.query: identity needs heads * head_width = width, found 4 * 5 and 12"));
  CHECK(says(found, "head.classes"));
}

TEST_CASE("every end of a model survives writing, and ends that cannot be are refused") {
  const auto ended = [](const char* task, const json& head) {
    json text = small();
    text["task"] = task;
    text["head"] = head;
    return text;
  };
  const json pooler = {{"activation", "tanh"}, {"width", 5}};
  for (const json& text :
       {ended("classifier", {{"classes", 1}, {"pool", "last"}}),
        ended("token_classifier", {{"classes", 4}, {"bias", true}}),
        ended("question_answering", {{"classes", 2}, {"transform", pooler}}),
        ended("next_sentence", {{"classes", 2}, {"transform", pooler}}),
        ended("encoder", {{"pool", "last"}, {"transform", pooler}}),
        ended("encoder", {{"pool", "none"}, {"transform", pooler}}),
        ended("masked_lm", {{"tied", true}, {"sequence", {{"classes", 3}, {"transform", pooler}}}})}) {
    CAPTURE(text.dump());
    const Architecture a = architecture_from_json(text, "test");
    const json written = json::parse(architecture_text(a));
    CHECK(architecture_from_json(written, "again") == a);
    CHECK(written["head"]["pool"] == text["head"].value("pool", "first"));
    CHECK(written["head"].contains("sequence"));
  }
  const auto refused = [](const char* task, const json& head) {
    return complaint([&](json& text) {
      text["task"] = task;
      text["head"] = head;
    });
  };
  CHECK(says(refused("token_classifier", json::object()), "head.classes: a classifier needs a number"));
  CHECK(says(refused("question_answering", {{"classes", 3}}), "head.classes: question answering has 2"));
  CHECK(says(refused("next_sentence", {{"classes", 1}}), "head.classes: a next sentence has 2"));
  CHECK(says(refused("token_classifier", {{"classes", 3}, {"pool", "last"}}), "head.pool: last is for"));
  CHECK(says(refused("encoder", {{"pool", "last"}}), "head.pool: last is for"));
  CHECK(says(refused("encoder", {{"pool", "none"}}), "head.pool: none is for"));
  CHECK(says(refused("classifier", {{"classes", 2}, {"pool", "none"}}), "head.pool: none is for"));
  CHECK(
      says(refused("classifier", {{"classes", 2}, {"sequence", {{"classes", 2}}}}), "head.sequence: is a second head"));
  CHECK(says(refused("classifier", {{"classes", 2}, {"tied", true}}), "head.tied"));
  CHECK(says(refused("masked_lm", {{"sequence", {{"classes", 0}}}}), "head.sequence.classes: 0 is not between"));
  CHECK(says(refused("masked_lm", {{"tied", true}, {"transform", pooler}}), "head.tied: the head reads width 5"));
  CHECK(says(refused("classifier", {{"classes", 2}, {"transform", {{"activation", "tanh"}, {"width", 0}}}}),
             "head.transform.width: 0 is not between"));
}

TEST_CASE("numbers and forms that cannot be are refused") {
  const std::string attention = "/blocks/0/attention/";
  const auto with = [&](const char* key, const json& value) { return complaint((attention + key).c_str(), value); };
  CHECK(says(complaint("/width", 0), "width: 0 is not between 1 and"));
  CHECK(says(complaint("/context", -1), "context: -1"));
  CHECK(says(complaint("/blocks", json::array()), "blocks: is empty"));
  CHECK(says(complaint("/blocks/0/repeat", 1000000000), "blocks[0].repeat: 1000000000 is not between 1 and 10000"));
  CHECK(says(complaint("/embedding", {{"position", "learned"}, {"position_pad", 1}}),
             "embedding.position_pad: needs a row before the first: position_offset is 0"));
  CHECK(says(complaint("/embedding", {{"position", "learned"}, {"position_offset", 2}, {"position_pad", 1000}}),
             "embedding.position_pad: 1000 is not between 0 and"));
  CHECK(says(with("heads", 0), "blocks[0].attention.heads: 0"));
  CHECK(says(complaint([](json& t) {
               t["blocks"][0]["attention"]["kv_heads"] = 2;
               t["blocks"][0]["attention"]["query"] = "key";
             }),
             "blocks[0].attention.query: 'key' needs kv_heads = heads, found 2 and 4"));
  CHECK(says(with("key", "key"), "blocks[0].attention.key: must be dense or identity"));
  CHECK(says(with("softcap", -1.0), "softcap: -1 is not positive"));
  CHECK(says(with("rope", {{"width", 3}}), "rope.width: 3 is odd"));
  CHECK(says(with("rope", {{"width", 4}}), "rope.width: 4 is not between 2 and 3"));
  CHECK(with("scores", "collapsed").empty());
  CHECK(says(complaint([](json& t) {
               t["blocks"][0]["attention"]["scores"] = "collapsed";
               t["blocks"][0]["attention"]["rope"] = {{"width", 2}};
             }),
             "collapsed scores allow neither rope nor qk_norm"));
  CHECK(says(with("norm", {{"kind", "rms"}, {"epsilon", -1.0}}), "norm.epsilon: -1 is negative"));
  CHECK(says(complaint("/layers", {0, 1}), "layers[1]: 1 is no block: there are 1, counted from 0"));
  CHECK(says(complaint([](json& t) {
               t["blocks"][0]["repeat"] = 2;
               t["layers"] = {0, 0};
             }),
             "layers: block 1 is stored but never run"));
  CHECK(complaint("/head/tied", true).empty());
  CHECK(says(complaint([](json& t) {
               t["embedding"]["factor"] = 5;
               t["head"]["tied"] = true;
             }),
             "head.tied: the head reads width 12 but the table has factor 5"));
  CHECK(says(complaint([](json& t) {
               t["width"] = 2147483648;
               t["blocks"][0]["attention"]["scores"] = "collapsed";
             }),
             "more than 2^56 parameters"));
  CHECK(says(complaint("/embedding/class_token", true), "embedding.class_token"));
}

TEST_CASE("the table of tensors has the shapes of the format") {
  const auto shape_of = [](const json& text, const std::string& name) -> Shape {
    for (const TensorSpec& spec : tensor_table(architecture_from_json(text, "test"))) {
      if (spec.name == name) {
        return spec.shape;
      }
    }
    return {};
  };
  json text = small();
  text["blocks"][0]["attention"]["kv_heads"] = 2;
  CHECK(shape_of(text, "blocks.0.attention.key.weight") == Shape{6, 12});
  CHECK(shape_of(text, "blocks.0.attention.output.weight") == Shape{12, 12});
  CHECK(shape_of(text, "head.weight") == Shape{23, 12});
  CHECK(shape_of(text, "blocks.0.attention.query.bias").empty());
  text["blocks"][0]["attention"]["pairs"] = {{"value_output", "shrunk"}};
  CHECK(shape_of(text, "blocks.0.attention.value.weight") == Shape{2, 3, 9});
  CHECK(shape_of(text, "blocks.0.attention.value.pivot") == Shape{2, 3});
  text["first_layer"] = "table";
  text["blocks"][0]["attention"].erase("pairs");
  CHECK(shape_of(text, "embed.table.weight") == Shape{23, 12 + (4 + 2 * 2) * 3});
  CHECK(shape_of(text, "embed.token.weight").empty());
}

TEST_CASE("counts: indices are no parameters, and caches are what decoding keeps") {
  json text = small();
  CHECK(cache_elements_per_token(architecture_from_json(text, "test")) == 24);
  const int64_t full = count(architecture_from_json(text, "test")).total;
  CHECK(full == 23 * 12 * 2 + 4 * 144 + 2 * 240);
  text["blocks"][0]["attention"]["pairs"] = {{"value_output", "shrunk"}};
  CHECK(count(architecture_from_json(text, "test")).total == full - 4 * 3 * 3);
  text = small();
  text["blocks"][0]["attention"]["cache"] = "k";
  CHECK(cache_elements_per_token(architecture_from_json(text, "test")) == 12);
  text["blocks"][0]["attention"]["mask"] = "full";
  text["blocks"][0]["attention"]["cache"] = "kv";
  CHECK(cache_elements_per_token(architecture_from_json(text, "test")) == 0);
}

TEST_CASE("PG-OP on BERT-base costs 18,444 parameters a layer, 3.13 % of its output matrix") {
  json text = json::parse(
      R"({"width": 768, "vocab": 1, "context": 1, "blocks": [{"attention": {"heads": 12, "head_width": 64}}]})");
  const int64_t plain = count(architecture_from_json(text, "test")).total;
  text["blocks"][0]["attention"]["gate"] = "position";
  CHECK(count(architecture_from_json(text, "test")).total - plain == 18'444);
}

TEST_CASE("the example architectures load and round-trip") {
  const std::filesystem::path folder = shared_folder() / "architectures";
  if (!std::filesystem::exists(folder)) {
    std::puts(("skipped the example architectures: no " + folder.string()).c_str());
    return;
  }
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path().string());
    std::ifstream file(entry.path());
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const Architecture a = architecture_from_json(parse_json(text, entry.path().string()), entry.path().string());
    CHECK(a.name == entry.path().stem().string());
    const std::string written = architecture_text(a);
    CHECK(architecture_text(architecture_from_json(json::parse(written), "again")) == written);
    ++seen;
  }
  CHECK(seen >= 12);
}
