// Streams: how many there are, and who stands on each.

#include "pare/arch/streams.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pare/arch/architecture_json.h"

using namespace pare;

namespace {

using nlohmann::json;

Architecture small(const std::string& model = "{}", const std::string& attention = "{}", const std::string& mlp = "{}",
                   int64_t blocks = 3, const std::string& wiring = "serial") {
  json block =
      json::parse(R"({"attention": {"heads": 2, "head_width": 4}, "mlp": {"width": 11, "activation": "gelu"}})");
  block["repeat"] = blocks;
  block["wiring"] = wiring;
  block["attention"].merge_patch(json::parse(attention));
  block["mlp"].merge_patch(json::parse(mlp));
  json text = {{"width", 8}, {"vocab", 19}, {"context", 12}, {"embedding", {{"position", "learned"}}}};
  text["blocks"] = json::array({block});
  text.merge_patch(json::parse(model));
  return architecture_from_json(text, "test");
}

const std::string skipless = R"({"skip": false})";

std::vector<std::string> ports(const Stream& stream, Role role) {
  std::vector<std::string> names;
  for (const Port& port : stream.ports) {
    if (port.role == role) {
      names.push_back(name_of(port.tensor));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> writers(const Stream& stream) {
  return ports(stream, Role::writer);
}

std::vector<std::string> readers(const Stream& stream) {
  return ports(stream, Role::reader);
}

std::vector<std::string> touches(const Stream& stream) {
  std::vector<std::string> words;
  for (const Touch& touch : stream.touches) {
    words.push_back(text_of(touch));
  }
  return words;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("skips around both sublayers: everything is one stream") {
  const Streams s = find_streams(small(R"({"head": {"tied": true}})"));
  REQUIRE(s.all.size() == 1);
  CHECK(s.all[0].width == 8);
  CHECK(s.all[0].touches.empty());
  CHECK(s.embedding == s.head);
  CHECK(s.all[0].ports.size() == 2 + 3 * (4 + 2) + 1);
  // A tied table writes with its columns and, as the head, reads with the same.
  Names found;
  for (const Port& port : s.all[0].ports) {
    if (port.tensor == weight_of(token_table)) {
      found.push_back(port.role == Role::writer ? "writer" : "reader");
      CHECK(port.axis == 1);
      CHECK(port.begin == 0);
    }
  }
  CHECK(found == Names{"writer", "reader"});
}

TEST_CASE("a skip around attention alone: one stream before each layer and one before the head") {
  const Streams s = find_streams(small("{}", R"({"bias": {"output": true, "key": true}})",
                                       R"({"skip": false, "bias": {"up": true, "down": true}})"));
  REQUIRE(s.all.size() == 4);
  CHECK(writers(s.all[s.embedding]) == Names{"blocks.0.attention.output.bias", "blocks.0.attention.output.weight",
                                             "embed.position.weight", "embed.token.weight"});
  CHECK(readers(s.all[s.embedding]) == Names{"blocks.0.attention.key.weight", "blocks.0.attention.query.weight",
                                             "blocks.0.attention.value.weight", "blocks.0.mlp.up.weight"});
  CHECK(s.blocks[1].input == s.blocks[0].output);
  CHECK(s.blocks[1].input == s.blocks[1].middle);
  CHECK(s.blocks[1].input != s.blocks[1].output);
  CHECK(writers(s.all[s.head]) == Names{"blocks.2.mlp.down.bias", "blocks.2.mlp.down.weight"});
  CHECK(readers(s.all[s.head]) == Names{"head.weight"});
  for (const Stream& stream : s.all) {
    for (const Port& port : stream.ports) {  // stored [out, in]: matrices read with axis 1 and write with axis 0
      const bool table = port.tensor.module.sublayer == Sublayer::embedding;
      CHECK(port.axis == (port.role == Role::reader || table ? 1 : 0));
    }
  }
}

TEST_CASE("no skips: two streams in each layer and one before the head") {
  const Streams s = find_streams(small("{}", skipless, skipless));
  REQUIRE(s.all.size() == 2 * 3 + 1);
  for (const BlockStreams& block : s.blocks) {
    CHECK(block.input != block.middle);
    CHECK(block.middle == block.attention_output);
    CHECK(block.middle == block.mlp_input);
    CHECK(block.output == block.mlp_output);
  }
  CHECK(writers(s.all[s.blocks[1].middle]) == Names{"blocks.1.attention.output.weight"});
  CHECK(readers(s.all[s.blocks[1].middle]) == Names{"blocks.1.mlp.up.weight"});
  CHECK(find_streams(small("{}", skipless, "null")).all.size() == 3 + 1);
  CHECK(find_streams(small("{}", "{}", "null")).all.size() == 1);
}

TEST_CASE("a block run again joins what it reads to what it reads again") {
  const auto count = [](const char* layers, int64_t blocks) {
    return find_streams(small(layers, "{}", skipless, blocks)).all.size();
  };
  CHECK(count(R"({"layers": [0, 0, 0]})", 1) == 1);
  CHECK(count(R"({"layers": [0, 1, 0, 1]})", 2) == 2);
  CHECK(count(R"({"layers": [0, 1, 1, 0]})", 2) == 1);
  CHECK(count(R"({"layers": [0, 0, 1]})", 2) == 2);
  CHECK(count(R"({"layers": [0, 1, 2, 0]})", 3) == 3);
  const Streams s = find_streams(small(R"({"layers": [0, 1, 2, 0]})", "{}", skipless));
  CHECK(s.head == s.blocks[1].input);
  CHECK(s.blocks[2].output == s.embedding);
}

TEST_CASE("parallel blocks: attention and MLP share what they read and what they write") {
  const Streams s = find_streams(small("{}", skipless, "{}", 3, "parallel"));
  REQUIRE(s.all.size() == 3 + 1);
  CHECK(s.blocks[0].attention_input == s.blocks[0].mlp_input);
  CHECK(s.blocks[0].attention_output == s.blocks[0].mlp_output);
  CHECK(writers(s.all[s.head]) == Names{"blocks.2.attention.output.weight", "blocks.2.mlp.down.weight"});
  CHECK(find_streams(small("{}", "{}", "{}", 3, "parallel")).all.size() == 1);
  // One norm before both, unless the MLP has its own.
  const std::string norm = R"({"norm": {"kind": "rms"}})";
  const Streams one = find_streams(small("{}", norm, "{}", 1, "parallel"));
  CHECK(one.blocks[0].attention_input == one.blocks[0].mlp_input);
  CHECK(one.blocks[0].attention_input != one.blocks[0].input);
  const Streams two = find_streams(small("{}", norm, norm, 1, "parallel"));
  CHECK(two.blocks[0].attention_input != two.blocks[0].mlp_input);
}

TEST_CASE("norms: what they read and what they write are two streams") {
  const std::string norm = R"({"norm": {"kind": "layer"}})";
  const Streams s = find_streams(small(R"({"final_norm": {"kind": "layer"}})", norm, norm, 1));
  REQUIRE(s.all.size() == 1 + 2 + 1);
  CHECK(touches(s.all[s.embedding]) ==
        Names{"blocks.0.attention.norm reads it", "blocks.0.mlp.norm reads it", "norm reads it"});
  CHECK(readers(s.all[s.embedding]).empty());
  CHECK(touches(s.all[s.blocks[0].attention_input]) == Names{"blocks.0.attention.norm writes it"});
  CHECK(writers(s.all[s.blocks[0].attention_input]).empty());
  CHECK(readers(s.all[s.blocks[0].mlp_input]) == Names{"blocks.0.mlp.up.weight"});
  CHECK(touches(s.all[s.head]) == Names{"norm writes it"});
  CHECK(readers(s.all[s.head]) == Names{"head.weight"});

  const std::string after = R"({"norm": {"kind": "layer", "place": "post"}})";
  const Streams post = find_streams(small("{}", after, after, 1));
  REQUIRE(post.all.size() == 3);
  CHECK(touches(post.all[post.blocks[0].middle]) ==
        Names{"blocks.0.attention.norm writes it", "blocks.0.mlp.norm reads it"});
  const Streams output = find_streams(small("{}", R"({"output_norm": {"kind": "rms"}})", "{}", 1));
  CHECK(touches(output.all[output.blocks[0].attention_output]) == Names{"blocks.0.attention.output_norm reads it"});
  CHECK(writers(output.all[output.blocks[0].attention_output]) == Names{"blocks.0.attention.output.weight"});
  CHECK(touches(output.all[output.embedding]) == Names{"blocks.0.attention.output_norm writes it"});
}

TEST_CASE("what is no matrix touches the stream by name") {
  const auto first = [](const Architecture& a) {
    const Streams s = find_streams(a);
    return touches(s.all[s.embedding]);
  };
  CHECK(first(small("{}", R"({"query": "identity"})", "{}", 1)) == Names{"blocks.0.attention.query has no matrix"});
  CHECK(first(small("{}", R"({"output": "identity"})", "{}", 1)) == Names{"blocks.0.attention.output has no matrix"});
  CHECK(first(small("{}", R"({"query": "key"})", "{}", 1)).empty());
  CHECK(first(small("{}", R"({"pairs": {"query_key": "shrunk"}})", "{}", 1)) ==
        Names{"blocks.0.attention.key is stored without its identity block"});
  CHECK(first(small(R"({"embedding": {"position": "sinusoidal"}})")) == Names{"sinusoidal positions are added to it"});
  CHECK(first(small(R"({"task": "encoder"})", R"({"mask": "full"})")) == Names{"it is the model's answer (hidden)"});
  const Streams narrow = find_streams(small(R"({"task": "encoder", "head": {"pool": "none",
      "transform": {"activation": "identity", "width": 5}}})"));
  CHECK(touches(narrow.all[narrow.head]).empty());
  CHECK(touches(narrow.all[1]) == Names{"head.transform has an activation", "it is the model's answer (hidden)"});
  const Streams head = find_streams(small(R"({"head": {"transform": {"activation": "gelu"}}})"));
  REQUIRE(head.all.size() == 2);
  CHECK(touches(head.all[1]) == Names{"head.transform has an activation"});
}

TEST_CASE("a head for tokens or for a sequence reads the last stream, and so does a second head") {
  for (const char* end : {R"({"task": "classifier", "head": {"classes": 3, "pool": "last"}})",
                          R"({"task": "token_classifier", "head": {"classes": 3}})",
                          R"({"task": "question_answering", "head": {"classes": 2}})"}) {
    const Streams s = find_streams(small(end));
    const Names found = readers(s.all[s.head]);
    CHECK(std::find(found.begin(), found.end(), "head.weight") != found.end());
    CHECK(touches(s.all[s.head]).empty());
  }
  const Streams two = find_streams(small(R"({"task": "masked_lm", "final_norm": {"kind": "layer"},
      "head": {"sequence": {"classes": 2, "transform": {"activation": "tanh"}}}})"));
  CHECK(readers(two.all[two.head]) == Names{"head.sequence.transform.weight", "head.weight"});
  CHECK(touches(two.all[two.head]) == Names{"norm writes it"});
  CHECK(writers(two.all.back()) == Names{"head.sequence.transform.bias", "head.sequence.transform.weight"});
  CHECK(readers(two.all.back()) == Names{"head.sequence.weight"});
  CHECK(touches(two.all.back()) == Names{"head.sequence.transform has an activation"});
}

TEST_CASE("gates, collapsed matrices and neuron heads read the stream too") {
  const Streams s = find_streams(small("{}", R"({"gate": "position", "scores": "collapsed", "values": "collapsed"})",
                                       R"({"kind": "heads", "activation": null})", 1));
  CHECK(readers(s.all[0]) == Names{"blocks.0.attention.gate.weight", "blocks.0.attention.qk.weight",
                                   "blocks.0.attention.qk.weight", "blocks.0.attention.vo.weight",
                                   "blocks.0.mlp.query.weight", "blocks.0.mlp.value.weight", "head.weight"});
  CHECK(writers(s.all[0]) == Names{"blocks.0.attention.vo.weight", "blocks.0.mlp.output.weight",
                                   "embed.position.weight", "embed.token.weight"});
}

TEST_CASE("a factorised table writes a narrow stream, tied by a head's transform") {
  const Streams token = find_streams(small(R"({"embedding": {"factor": 5, "factor_bias": true}})", "{}", "{}", 1));
  REQUIRE(token.all.size() == 2);
  const size_t narrow = 1 - token.embedding;
  CHECK(token.all[narrow].width == 5);
  CHECK(writers(token.all[narrow]) == Names{"embed.token.weight"});
  CHECK(readers(token.all[narrow]) == Names{"embed.projection.weight"});
  const Names wide = writers(token.all[token.embedding]);
  for (const char* name : {"embed.projection.bias", "embed.projection.weight", "embed.position.weight"}) {
    CHECK(std::find(wide.begin(), wide.end(), name) != wide.end());
  }
  const Streams sum = find_streams(small(R"({"embedding": {"factor": 5, "factor_scope": "sum", "types": 2}})"));
  CHECK(writers(sum.all[1 - sum.embedding]) ==
        Names{"embed.position.weight", "embed.token.weight", "embed.type.weight"});

  const Streams tied = find_streams(
      small(R"({"embedding": {"factor": 5}, "head": {"tied": true, "transform": {"activation": "identity"}}})", "{}",
            "{}", 1));
  int64_t written = -1, read = -1;
  for (size_t i = 0; i < tied.all.size(); ++i) {
    for (const Port& port : tied.all[i].ports) {
      if (port.tensor == weight_of(token_table)) {
        (port.role == Role::writer ? written : read) = static_cast<int64_t>(i);
      }
    }
  }
  CHECK(written >= 0);
  CHECK(read >= 0);
  CHECK(written != read);
}

TEST_CASE("a first-layer table takes the first projections with it") {
  const Streams s =
      find_streams(small(R"({"first_layer": "table", "embedding": {"position": "none"}})", "{}", skipless, 2));
  CHECK(writers(s.all[s.embedding]) == Names{"blocks.0.attention.output.weight", "embed.table.weight"});
  CHECK(readers(s.all[s.embedding]) == Names{"blocks.0.mlp.up.weight"});
}
