#include "pare/rewrite/rewrite.h"

#include <ATen/ATen.h>
#include <doctest/doctest.h>
#include <fcntl.h>

#include "pare/algebra/operations.h"
#include "pare/arch/count.h"
#include "pare/support/error.h"
#include "pare/support/sha256.h"
#include "tests/model/helpers.h"
#include "tests/support/helpers.h"

using namespace pare;
namespace fs = std::filesystem;

namespace {

constexpr uint64_t no_limit = UINT64_MAX;

// A skip around attention, none around the MLP, biases everywhere: every pass but one has something to do.
Architecture biased() {
  return test::parse(R"({"width": 8, "vocab": 20, "context": 9, "embedding": {"position": "learned"},
    "blocks": [{"repeat": 2, "attention": {"heads": 2, "head_width": 4, "bias": {"key": true, "value": true, "output": true}},
                "mlp": {"width": 12, "activation": "gelu", "skip": false}}], "head": {"tied": true}})");
}

struct Workplace {
  TemporaryFolder folder;
  fs::path output = folder.path() / "out";
  ModelFolder source;
  explicit Workplace(const Architecture& architecture = biased(), Dtype dtype = Dtype::f64) {
    write_native_model(folder.path() / "model", {architecture, random_weights(architecture, 5, dtype, Draw::generic)},
                       false, no_limit);
    source = open_model(folder.path() / "model");
  }
};

PassCall named(const std::string& id) {
  return call_of(find_pass(id));
}

// A pass that lies: it says that nothing changes, and doubles the token table.
Proposal propose_a_lie(const Model& model, const Options&, const std::optional<Budget>&) {
  Proposal proposal{.after = model, .applies = true};
  if (model.has_weights()) {
    const Weight table = model.weights.at("embed.token.weight");
    proposal.after.weights["embed.token.weight"] = computed(
        table.shape(), "2" * table.formula(), {table}, [](const std::vector<at::Tensor>& in) { return 2 * in[0]; });
  }
  return proposal;
}
const Pass lie = {.id = "lie", .propose = propose_a_lie};

// A pass with an option, which says what it was called with.
Proposal propose_a_note(const Model& model, const Options& options, const std::optional<Budget>&) {
  return {.after = model, .notes = {options.at("word")}, .applies = true};
}
const Pass note = {.id = "note", .options = {{"word", "a|b", "a"}}, .propose = propose_a_note};

// What `action` leaves on both streams that a library has no business with.
template <typename Action>
std::string printed_by(Action&& action) {
  TemporaryFolder folder;
  const fs::path path = folder.write("printed", "");
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND);
  const int saved[] = {::dup(1), ::dup(2)};
  std::fflush(nullptr);  // what the test program itself still holds
  ::dup2(file, 1);
  ::dup2(file, 2);
  action();
  std::fflush(nullptr);
  ::dup2(saved[0], 1);
  ::dup2(saved[1], 2);
  for (const int descriptor : {file, saved[0], saved[1]}) {
    ::close(descriptor);
  }
  return bytes_of_file(path);
}

}  // namespace

TEST_CASE("a rewrite is verified, certified, and as small as it says") {
  Workplace at;
  Rewritten result;
  CHECK(printed_by([&] { result = rewrite(at.source, at.output, {.passes = {{named("drop_key_bias")}}}); }) == "");
  const ModelFolder written = open_model(at.output);
  // Two blocks, each with a key bias of 2 heads times 4.
  CHECK(count(written.model.architecture).total == count(at.source.model.architecture).total - 2 * 8);
  CHECK_FALSE(written.model.weights.contains("blocks.0.attention.key.bias"));
  REQUIRE(result.verification);
  CHECK(result.verification->verdict == Verdict::proved);
  CHECK(nlohmann::ordered_json::parse(bytes_of_file(at.output / "certificate.json")) == result.certificate);
  CHECK(result.certificate["candidate"]["path"] == at.output.string());
  CHECK(result.certificate["verdict"] == "proved");
  CHECK(result.warnings.empty());
  CHECK(at.folder.entries() == 2);  // the model and the result: nothing temporary stays

  // Against the executor alone, which knows nothing of passes and certificates.
  const Inputs inputs = test::random_inputs(biased(), 2, 7);
  const auto answer = [&](const ModelFolder& model) {
    return Executor(model.model, at::kDouble).forward(inputs).logits;
  };
  CHECK(test::relative_error(answer(written), answer(at.source)) < 1e-12);
}

TEST_CASE("a model's files are opened once, whatever has their names afterwards") {
  TemporaryFolder folder;
  const fs::path path = folder.path() / "model", index = path / weight_index_name;
  write_native_model(path, {biased(), random_weights(biased(), 5, Dtype::f64, Draw::generic)}, false, 2000);
  const ModelFolder source = open_model(path);
  REQUIRE(source.stored.files.size() > 1);
  const std::string read = bytes_of_file(index);
  std::ofstream(index) << "nobody's index";
  const Rewritten result = rewrite(source, folder.path() / "out", {.passes = {{named("drop_key_bias")}}});
  CHECK(result.plan.companions.files.empty());
  CHECK(left_behind_lines(result.plan.companions).empty());
  CHECK(result.certificate["reference"]["files"][weight_index_name] == sha256_of(read));
}

TEST_CASE("auto takes whatever saves") {
  Workplace at;
  const Rewritten result = rewrite(at.source, at.output);
  REQUIRE(result.pipeline.steps.size() >= 3);
  int64_t saved = 0;
  for (const StoredChange& change : result.plan.changes) {
    saved += change.saved;
  }
  CHECK(saved == count(at.source.model.architecture).total - count(open_model(at.output).model.architecture).total);
}

TEST_CASE("what is not the same function never appears") {
  Workplace at;
  const std::string message = message_of<VerificationFailed>([&] {
    rewrite(at.source, at.output, {.passes = {{{&lie, {}}}}});
  });
  CHECK(contains(message, "not the same function"));
  CHECK(contains(message, "Nothing was written"));
  CHECK(at.folder.entries() == 1);

  // Nor does it take the place of what stands there.
  rewrite(at.source, at.output, {.passes = {{named("drop_key_bias")}}});
  const std::string before = bytes_of_file(at.output / "certificate.json");
  CHECK_THROWS_AS(rewrite(at.source, at.output, {.passes = {{{&lie, {}}}}, .force = true}), VerificationFailed);
  CHECK(bytes_of_file(at.output / "certificate.json") == before);
  CHECK_THROWS_AS(rewrite(at.source, at.output), InputError);  // without force

  // Whoever asks for no verification gets it, and the certificate says so.
  const Rewritten unseen = rewrite(at.source, at.output, {.passes = {{{&lie, {}}}}, .force = true, .verify = false});
  CHECK_FALSE(unseen.verification);
  CHECK(unseen.certificate["verdict"].is_null());
}

TEST_CASE("what is approximate is written only within an error that was asked for, and never called the same") {
  Workplace at;  // its MLPs are GELU
  const PassCall gelu = call_of(find_pass("lower_mlp_to_heads"), {{"approximate", "gelu"}});
  const RewriteOptions unasked{.passes = {{gelu}}, .allow_growth = true};
  const std::string message = message_of<Refused>([&] { rewrite(at.source, at.output, unasked); });
  CHECK(contains(message, "is approximate (GELU(z) ≈ SiLU(1.702 z) / 1.702"));
  CHECK(contains(message, "--max-error says how large the relative error may be"));

  RewriteOptions options = unasked;
  options.max_error = 0.5;
  options.verify = false;
  CHECK(contains(message_of<Refused>([&] { rewrite(at.source, at.output, options); }), "not with --no-verify"));

  options.verify = true;
  options.max_error = 1e-7;
  const std::string too_far = message_of<VerificationFailed>([&] { rewrite(at.source, at.output, options); });
  CHECK(contains(too_far, "the relative error of an approximate rewrite is "));
  CHECK(contains(too_far, "--max-error allows 1e-07. Nothing was written"));
  CHECK(at.folder.entries() == 1);

  options.max_error = 0.5;
  const Rewritten result = rewrite(at.source, at.output, options);
  const double error = result.verification->metrics.max_relative_logit_error;
  CHECK(error > 1e-6);
  CHECK(error < 0.5);
  CHECK(result.verification->verdict == Verdict::different);
  CHECK(result.certificate["verdict"] == "different");
  CHECK(result.certificate["self_test"].empty());
  CHECK(result.certificate["approximate"]["max_error"] == 0.5);
  CHECK(result.certificate["approximate"]["measured_error"] == error);
  CHECK(result.certificate["approximate"]["passes"][0]["id"] == "lower_mlp_to_heads");
  CHECK(open_model(at.output).model.weights.contains("blocks.1.mlp.query.weight"));
  const Inputs inputs = test::random_inputs(biased(), 2, 7);
  const auto answer = [&](const ModelFolder& model) {
    return Executor(model.model, at::kDouble).forward(inputs).logits;
  };
  CHECK(test::relative_error(answer(open_model(at.output)), answer(at.source)) > 1e-6);

  // One that is exact beside it has no such entry.
  const Rewritten exact = rewrite(at.source, at.output, {.passes = {{named("drop_key_bias")}}, .force = true});
  CHECK(exact.certificate["approximate"].is_null());
  CHECK_FALSE(exact.allowed_error);
}

// Where the MLP writes nothing, an approximate one is not off at all on any input. It is still not called the same: a
// pass that says it is approximate is believed.
TEST_CASE("an approximation that nobody can tell apart is still one") {
  const Architecture architecture = biased();
  TemporaryFolder folder;
  test::Tensors tensors = test::generic_tensors(architecture);
  for (const char* name : {"blocks.0.mlp.down.weight", "blocks.1.mlp.down.weight"}) {
    tensors[name].zero_();
  }
  write_native_model(folder.path() / "model", {architecture, test::as_weights(tensors)}, false, no_limit);
  const PassCall gelu = call_of(find_pass("lower_mlp_to_heads"), {{"approximate", "gelu"}});
  const Rewritten result = rewrite(open_model(folder.path() / "model"), folder.path() / "out",
                                   {.passes = {{gelu}}, .max_error = 1e-3, .allow_growth = true});
  CHECK(result.verification->metrics.max_relative_logit_error < 1e-12);
  CHECK(result.certificate["verdict"] == "different");
  CHECK(result.certificate["approximate"]["measured_error"].get<double>() < 1e-12);
}

TEST_CASE("the model after each pass is written beside the output, for who asks") {
  Workplace at;
  RewriteOptions options{.passes = {{named("drop_key_bias"), named("fold_value_bias")}}, .dump_after = "all"};
  const Rewritten result = rewrite(at.source, at.output, options);
  const fs::path first = at.folder.path() / "out.after-1-drop_key_bias",
                 last = at.folder.path() / "out.after-2-fold_value_bias";
  REQUIRE(result.dumps == std::vector<fs::path>{first, last});
  CHECK(at.folder.entries() == 4);
  CHECK(bytes_of_file(last / "model.safetensors") == bytes_of_file(at.output / "model.safetensors"));
  CHECK(bytes_of_file(last / "config.json") == bytes_of_file(at.output / "config.json"));
  const ModelFolder between = open_model(first);
  CHECK_FALSE(between.model.weights.contains("blocks.0.attention.key.bias"));
  CHECK(between.model.weights.contains("blocks.0.attention.value.bias"));
  const Inputs inputs = test::random_inputs(biased(), 2, 7);
  const at::Tensor expected = Executor(at.source.model, at::kDouble).forward(inputs).logits;
  CHECK(test::relative_error(Executor(between.model, at::kDouble).forward(inputs).logits, expected) < 1e-12);
  const auto certificate = nlohmann::json::parse(bytes_of_file(first / "certificate.json"));
  CHECK(certificate["verdict"].is_null());  // it claims nothing
  CHECK(certificate["passes"].size() == 1);
  CHECK(certificate["candidate"]["path"] == first.string());

  // One of them; nothing that stands there is replaced unasked, and nothing is written before that is known.
  fs::remove_all(at.output);
  options.dump_after = "fold_value_bias";
  CHECK(contains(message_of<InputError>([&] { rewrite(at.source, at.output, options); }), "after-2-fold_value_bias"));
  CHECK_FALSE(fs::exists(at.output));
  fs::remove_all(first);
  options.force = true;
  CHECK(rewrite(at.source, at.output, options).dumps == std::vector<fs::path>{last});
  CHECK_FALSE(fs::exists(first));
  std::ofstream(last / "notes") << "somebody's own";
  CHECK(contains(message_of<InputError>([&] { rewrite(at.source, at.output, options); }), "notes"));
  // The source is never replaced, whatever it is called.
  fs::remove_all(last);
  fs::rename(at.folder.path() / "model", last);
  CHECK_THROWS_AS(rewrite(open_model(last), at.output, options), InputError);
  CHECK(open_model(last).model.weights.contains("blocks.0.attention.key.bias"));
}

TEST_CASE("what auto takes can be looked at too, and what is not the same function above all") {
  Workplace at;
  const Rewritten result = rewrite(at.source, at.output / "", {.dump_after = "all"});
  REQUIRE(result.dumps.size() == result.pipeline.steps.size());
  CHECK(bytes_of_file(result.dumps.back() / "model.safetensors") == bytes_of_file(at.output / "model.safetensors"));
  const Rewritten none = rewrite(at.source, at.folder.path() / "none", {.dump_after = "precompute_first_layer"});
  CHECK(none.dumps.empty());
  REQUIRE_FALSE(none.warnings.empty());
  CHECK(contains(none.warnings.back(), "--dump-after precompute_first_layer: auto does not take it"));

  const fs::path lies = at.folder.path() / "lies";
  const std::string message = message_of<VerificationFailed>([&] {
    rewrite(at.source, lies, {.passes = {{named("drop_key_bias"), {&lie, {}}}}, .dump_after = "all"});
  });
  CHECK(contains(message, "Only what --dump-after asks for was written"));
  CHECK_FALSE(fs::exists(lies));
  CHECK(fs::exists(at.folder.path() / "lies.after-1-drop_key_bias"));
  CHECK(fs::exists(at.folder.path() / "lies.after-2-lie"));

  const auto refusal = [&](const std::string& word) {
    return message_of<InputError>([&] {
      rewrite(at.source, at.folder.path() / "no", {.passes = {{named("drop_key_bias")}}, .dump_after = word});
    });
  };
  CHECK(contains(refusal("drop_key_bais"), "did you mean drop_key_bias"));
  CHECK(contains(refusal("fold_value_bias"), "none of the passes that were asked for"));
}

TEST_CASE("a refusal brings every reason and leaves nothing") {
  Workplace at;
  try {
    rewrite(at.source, at.output, {.passes = {{named("fold_norm_gain"), named("merge_skipless")}}});
    FAIL("it was not refused");
  } catch (const Refused& refusal) {
    CHECK(contains(refusal.what(), "fold_norm_gain:\n"));
    CHECK(contains(refusal.what(), "merge_skipless:\n"));
    CHECK(refusal.reasons.size() >= 2);
  }
  CHECK(at.folder.entries() == 1);
  CHECK_THROWS_AS(rewrite(at.source, at.source.path / "inside"), InputError);
  CHECK(contains(message_of<InputError>([&] { rewrite(at.source, at.output, {.passes = std::vector<PassCall>()}); }),
                 "the list of passes is empty"));
}

TEST_CASE("options of a call that names none have their defaults") {
  Workplace at;
  const auto said = [&](const Options& options) {
    return run_passes(at.source.model, {{&note, options}}).steps.front().proposal.notes.front();
  };
  CHECK(said({}) == "a");
  CHECK(said({{"word", "b"}}) == "b");
}

TEST_CASE("warnings come back, also with an error") {
  Architecture skipless = biased();
  for (Block& block : skipless.blocks) {
    block.attention.skip = false;
  }
  skipless.head.tied = false;
  Workplace at(skipless);
  // The value bias has to be folded first, while there is an output bias to fold it into.
  const std::vector<PassCall> losing = {named("merge_skipless"), named("fold_value_bias")};
  const Rewritten result = rewrite(at.source, at.output, {.passes = losing, .allow_growth = true, .verify = false});
  REQUIRE(result.warnings.size() == 1);
  CHECK(contains(result.warnings.front(), "this order saves 16 parameters less"));
  try {
    rewrite(at.source, at.folder.path() / "other",
            {.passes = {{losing[0], losing[1], {&lie, {}}}}, .allow_growth = true});
    FAIL("a lie was kept");
  } catch (const VerificationFailed& error) {
    CHECK(error.warnings.size() == 1);
  }
}

TEST_CASE("what is odd about a model comes back with it, or with the error") {
  Workplace at;
  const fs::path model = at.folder.path() / "model";
  nlohmann::json config = nlohmann::json::parse(bytes_of_file(model / "config.json"));
  config["surprise"] = 1;
  at.folder.write("model/config.json", config.dump());
  const ModelFolder opened = open_model(model, UnknownKeys::ignore);
  REQUIRE(opened.warnings.size() == 1);
  CHECK(contains(opened.warnings.front(), "'surprise'"));
  fs::remove(model / "model.safetensors");
  write_weights(model, {{"stranger", opened.model.weights.begin()->second}}, no_limit);
  try {
    open_model(model, UnknownKeys::ignore);
    FAIL("it was opened");
  } catch (const InputError& error) {
    CHECK(error.warnings == opened.warnings);
  }
}
