#include "pare/checkpoint/shards.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "pare/checkpoint/safetensors.h"
#include "pare/support/error.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

constexpr const char* index_name = "model.safetensors.index.json";

// A file with these tensors, each of one byte.
void write_file(const fs::path& path, const std::vector<std::string>& names) {
  std::map<std::string, SafetensorsWriter::Declared> tensors;
  for (const std::string& name : names) {
    tensors[name] = {Dtype::u8, {1}};
  }
  SafetensorsWriter writer(path, tensors, {});
  std::byte value{7};
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, {&value, 1});
  }
  writer.finish();
}

void write_index(const TemporaryFolder& folder, const std::map<std::string, std::string>& index) {
  folder.write(index_name, weight_index_text(index, 0));
}

std::string refusal(const fs::path& folder) {
  return message_of<InputError>([&] { open_shards(folder); });
}

std::string index_refusal(const std::string& text) {
  return message_of<InputError>([&] { parse_weight_index(text, "index.json"); });
}

}  // namespace

TEST_CASE("a single file is opened") {
  TemporaryFolder folder;
  write_file(folder.path() / "model.safetensors", {"a", "b"});
  std::vector<TensorFile> files = open_shards(folder.path()).files;
  REQUIRE(files.size() == 1);
  CHECK(files[0].tensors().contains("b"));
}

TEST_CASE("every file of an index is opened, also through links as in the Hugging Face cache") {
  TemporaryFolder folder;
  TemporaryFolder blobs;
  write_file(folder.path() / "one.safetensors", {"a", "b"});
  write_file(blobs.path() / "0123abcd", {"c"});
  fs::create_symlink(blobs.path() / "0123abcd", folder.path() / "two.safetensors");
  write_index(folder, {{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"c", "two.safetensors"}});
  std::vector<TensorFile> files = open_shards(folder.path()).files;
  REQUIRE(files.size() == 2);
  CHECK(files[1].tensors().contains("c"));
}

TEST_CASE("an index that is none is refused") {
  CHECK(contains(index_refusal("not json"), "index.json is not valid JSON"));
  CHECK(contains(index_refusal("[]"), "index.json has no object \"weight_map\""));
  CHECK(contains(index_refusal("{}"), "no object \"weight_map\""));
  CHECK(contains(index_refusal(R"({"weight_map": ["a"]})"), "no object \"weight_map\""));
  CHECK(contains(index_refusal(R"({"weight_map": {"a": 3}})"), "tensor 'a' is in number, expected a file name"));
  CHECK(
      contains(index_refusal(R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})"), "'a' appears twice"));
}

TEST_CASE("file names that leave the folder are refused, all of them") {
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "a/x.safetensors", "..\\\\x.safetensors", "..", "",
                           "passwd", "x\\u0000.safetensors", ".safetensors/.."}) {
    CAPTURE(name);
    std::string message = index_refusal(fmt::format(R"({{"weight_map": {{"the.tensor": "{}"}}}})", name));
    CHECK(contains(message, "tensor 'the.tensor' is in"));
    CHECK(contains(message, "expected the name of a .safetensors file in the same folder"));
  }
  CHECK(contains(index_refusal(R"({"weight_map": {"a": "../x", "b": "/y", "c": 1}})"), "3 problems"));
}

TEST_CASE("missing and broken files are all listed") {
  TemporaryFolder folder;
  write_file(folder.path() / "one.safetensors", {"a"});
  folder.write("two.safetensors", "short");
  fs::create_directory(folder.path() / "three.safetensors");
  write_index(folder, {{"a", "one.safetensors"},
                       {"b", "two.safetensors"},
                       {"c", "three.safetensors"},
                       {"d", "four.safetensors"},
                       {"e", "five.safetensors"}});
  std::string message = refusal(folder.path());
  CHECK(contains(message, "4 problems"));
  CHECK(contains(message, "two.safetensors' has 5 bytes, too few"));
  CHECK(contains(message, "three.safetensors' is a folder"));
  CHECK(contains(message, "four.safetensors': no such file"));
  CHECK(contains(message, "five.safetensors': no such file"));
}

TEST_CASE("index and files must agree") {
  TemporaryFolder folder;
  write_file(folder.path() / "one.safetensors", {"a", "extra", "both"});
  write_file(folder.path() / "two.safetensors", {"both", "moved"});
  write_index(folder, {{"a", "one.safetensors"},
                       {"both", "one.safetensors"},
                       {"moved", "one.safetensors"},
                       {"gone", "two.safetensors"}});
  std::string message = refusal(folder.path());
  CHECK(contains(message, "4 problems"));
  CHECK(contains(message, "tensor 'extra' of 'one.safetensors' is not in the index"));
  CHECK(contains(message, "tensor 'both' is in both 'one.safetensors' and 'two.safetensors'"));
  CHECK(contains(message, "tensor 'moved' should be in 'one.safetensors' but is in 'two.safetensors'"));
  CHECK(contains(message, "tensor 'gone' should be in 'two.safetensors' but is in no file"));
}

TEST_CASE("other formats are refused by name, with what to do") {
  for (const char* name : {"tf_model.h5", "flax_model.msgpack", "model.onnx"}) {
    TemporaryFolder folder;
    folder.write(name, "");
    folder.write("config.json", "{}");
    CAPTURE(name);
    CHECK(contains(refusal(folder.path()), fmt::format("'{}' is ", name)));
    CHECK(contains(refusal(folder.path()), "safetensors"));
    CHECK(contains(refusal(folder.path()), "pare does not read"));
  }
  TemporaryFolder gguf;
  gguf.write("model.gguf", "");
  gguf.write("config.json", "{}");
  CHECK(contains(refusal(gguf.path()), "'model.gguf' is GGUF, a model by itself that needs no config.json"));
  TemporaryFolder adapter;
  adapter.write("adapter_model.safetensors", "");
  CHECK(contains(refusal(adapter.path()), "'adapter_model.safetensors' is an adapter"));
  CHECK(contains(refusal(adapter.path()), "--adapter"));
  TemporaryFolder renamed;
  renamed.write("weights.safetensors", "");
  CHECK(contains(refusal(renamed.path()), "'weights.safetensors' is not the name"));
}

TEST_CASE("folders that are none, or empty, are refused") {
  TemporaryFolder folder;
  CHECK(contains(refusal(folder.path()), "has neither model.safetensors nor model.safetensors.index.json"));
  CHECK(contains(refusal(folder.path() / "missing"), "missing': no such folder"));
  CHECK(contains(refusal(folder.write("model.gguf", "")), "model.gguf' is a file, expected a model folder"));
}

TEST_CASE("a folder that may not be read is an error of the system") {
  TemporaryFolder folder;
  fs::create_directory(folder.path() / "model");
  fs::permissions(folder.path() / "model", fs::perms::none);
  fs::permissions(folder.path(), fs::perms::all);
  int status = status_of([&] {
    // Root may read everything, so root becomes someone else.
    if (::geteuid() == 0 && ::seteuid(65534) != 0) {
      return false;
    }
    std::string message = message_of<IoError>([&] { open_shards(folder.path() / "model"); });
    return contains(message, "model.safetensors': Permission denied");
  });
  fs::permissions(folder.path() / "model", fs::perms::owner_all);
  CHECK(status == 0);
}

TEST_CASE("an index is written as Hugging Face writes it") {
  CHECK(weight_index_text({{"b", "model-00002-of-00002.safetensors"}, {"a", "model-00001-of-00002.safetensors"}}, 12) ==
        "{\n"
        "  \"metadata\": {\n"
        "    \"total_size\": 12\n"
        "  },\n"
        "  \"weight_map\": {\n"
        "    \"a\": \"model-00001-of-00002.safetensors\",\n"
        "    \"b\": \"model-00002-of-00002.safetensors\"\n"
        "  }\n"
        "}\n");
}
