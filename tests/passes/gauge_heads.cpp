// Canonical heads against the products that they must keep, every member of an orbit against every other, and the
// heads that are not free.

#include <ATen/ATen.h>
#include <doctest/doctest.h>

#include <cmath>

#include "pare/passes/pass.h"
#include "pare/rewrite/pipeline.h"
#include "tests/passes/helpers.h"

namespace pare::test {

namespace {

constexpr int64_t d = 12, k = 4;
const std::string all_four = R"("bias": {"query": true, "key": true, "value": true, "output": true})";

Architecture headed(const std::string& attention = "{}", const std::string& model = "{}") {
  nlohmann::json block = nlohmann::json::parse(R"({"repeat": 2, "attention": {"heads": 4, "head_width": 4},
      "mlp": {"width": 11, "activation": "gelu"}})");
  block["attention"].merge_patch(nlohmann::json::parse(attention));
  return small_architecture(d, block, model);
}

PassStep gauged(const Model& model) {
  return run_passes(model, {call_of(find_pass("gauge_heads"))}).steps.at(0);
}

Tensors loaded(const Model& model) {
  Tensors tensors;
  for (const auto& [name, weight] : model.weights) {
    tensors[name] = weight.load();
  }
  return tensors;
}

// [x, 1] times this is what head h of a projection computes: [d, k], or [d + 1, k] with the bias.
at::Tensor head_of(const Tensors& tensors, const std::string& projection, int64_t h) {
  const at::Tensor matrix = tensors.at(projection + ".weight").narrow(0, h * k, k).t();
  const auto bias = tensors.find(projection + ".bias");
  return bias == tensors.end() ? matrix : at::cat({matrix, bias->second.narrow(0, h * k, k).unsqueeze(0)});
}

at::Tensor output_of(const Tensors& tensors, const std::string& name, int64_t h) {
  return tensors.at(name + "output.weight").narrow(1, h * k, k).t();  // [k, d]
}

bool near(const at::Tensor& a, const at::Tensor& b, double tolerance = 1e-12) {
  return (a - b).abs().max().item<double>() <= tolerance * (1 + b.abs().max().item<double>());
}

// ---- other members of an orbit

// D as it acts on stored rows, of a head's space that RoPE may turn; `orthogonal` where lengths have to stay.
at::Tensor random_gauge(const Attention& t, bool scores, bool orthogonal) {
  const int64_t turned = scores && t.rope ? t.rope->width : 0, free = k - turned;
  at::Tensor gauge = at::zeros({k, k}, at::kDouble);
  for (int64_t i = 0; i < turned / 2; ++i) {
    const bool halves = t.rope->layout == RopeLayout::half;
    const int64_t a = halves ? i : 2 * i, b = halves ? i + turned / 2 : 2 * i + 1;
    at::Tensor pair = at::randn({2}, at::kDouble);
    pair = orthogonal ? pair / pair.norm() : pair;
    gauge[a][a] = gauge[b][b] = pair[0];
    gauge[b][a] = pair[1];
    gauge[a][b] = -pair[1];
  }
  if (free > 0) {
    const at::Tensor any = at::randn({free, free}, at::kDouble);
    gauge.narrow(0, turned, free).narrow(1, turned, free).copy_(orthogonal ? std::get<0>(at::linalg_qr(any)) : any);
  }
  return gauge;
}

void change_rows(Tensors& tensors, const std::string& projection, int64_t h, const at::Tensor& matrix) {
  for (const char* kind : {".weight", ".bias"}) {
    if (const auto found = tensors.find(projection + kind); found != tensors.end()) {
      at::Tensor rows = found->second.narrow(0, h * k, k);
      rows.copy_(at::matmul(matrix, rows));
    }
  }
}

// The entries of the first axis in parts, as `places` says.
void exchange(Tensors& tensors, const std::string& name, const at::Tensor& places, int64_t axis = 0) {
  if (const auto found = tensors.find(name); found != tensors.end()) {
    found->second =
        found->second.unflatten(axis, {places.size(0), -1}).index_select(axis, places).flatten(axis, axis + 1).clone();
  }
}

Tensors another_member(const Architecture& a, const Tensors& given, bool move_heads) {
  Tensors tensors;
  for (const auto& [name, tensor] : given) {
    tensors[name] = tensor.clone();
  }
  for (int64_t n = 0; n < std::ssize(a.blocks); ++n) {
    const Attention& t = a.blocks[n].attention;
    const std::string name = "blocks." + std::to_string(n) + ".attention.";
    const int64_t share = t.heads / t.kv_heads;
    const bool same = is<SameAsKey>(t.query), orthogonal = same || t.qk_norm;
    for (int64_t g = 0; g < t.kv_heads; ++g) {
      const bool fixed = t.qk_norm && t.qk_norm->gain;  // generic gains
      const at::Tensor values = random_gauge(t, false, false),
                       scores = fixed ? at::eye(k, at::kDouble) : random_gauge(t, true, orthogonal);
      change_rows(tensors, name + "value", g, values);
      change_rows(tensors, name + "key", g, at::linalg_inv(scores));
      for (int64_t h = g * share; h < (g + 1) * share; ++h) {
        at::Tensor columns = tensors[name + "output.weight"].narrow(1, h * k, k);
        columns.copy_(at::matmul(columns, at::linalg_inv(values)));
        if (!same) {
          change_rows(tensors, name + "query", h, scores.t());
        }
      }
    }
    if (!move_heads) {
      continue;
    }
    const at::Tensor groups = at::randperm(t.kv_heads, at::kLong);
    std::vector<at::Tensor> heads;
    for (int64_t g = 0; g < t.kv_heads; ++g) {
      heads.push_back(groups[g] * share + at::randperm(share, at::kLong));
    }
    const at::Tensor order = at::cat(heads);
    for (const char* kind : {"weight", "bias"}) {
      exchange(tensors, name + "query." + kind, order);
      exchange(tensors, name + "key." + kind, groups);
      exchange(tensors, name + "value." + kind, groups);
      exchange(tensors, name + "gate." + kind, order);
    }
    if (t.qk_norm_over != QkNormOver::head) {
      exchange(tensors, name + "query_norm.weight", order);
      exchange(tensors, name + "key_norm.weight", groups);
    }
    exchange(tensors, name + "gate.position", order);
    exchange(tensors, name + "shape.weight", order);
    exchange(tensors, name + "output.weight", order, 1);
  }
  return tensors;
}

}  // namespace

TEST_CASE("gauge_heads: the products stay, both sides share the singular values, the longest head is first") {
  const Architecture a = headed("{" + all_four + R"(, "kv_heads": 2})");
  const Tensors old = generic_tensors(a);
  const PassStep step = gauged({a, as_weights(old)});
  REQUIRE(step.proposal.applies);
  CHECK(step.saved_parameters == 0);
  CHECK(step.proposal.after.architecture == a);
  const Tensors now = loaded(step.proposal.after);
  for (const std::string name : {"blocks.0.attention.", "blocks.1.attention."}) {
    std::vector<at::Tensor> products_before, products_now;
    for (int64_t h = 0; h < 4; ++h) {
      for (const auto& [tensors, products] : {std::pair(&old, &products_before), {&now, &products_now}}) {
        const at::Tensor scores =
            at::matmul(head_of(*tensors, name + "query", h), head_of(*tensors, name + "key", h / 2).t());
        const at::Tensor values = at::matmul(head_of(*tensors, name + "value", h / 2), output_of(*tensors, name, h));
        products->push_back(at::cat({scores.flatten(), values.flatten()}));
      }
    }
    std::vector<bool> taken(4, false);
    for (const at::Tensor& product : products_now) {  // each head of before is one of now
      int64_t found = 0;
      for (size_t i = 0; i < 4; ++i) {
        if (!taken[i] && near(product, products_before[i])) {
          taken[i] = true;
          ++found;
        }
      }
      CHECK(found == 1);
    }
    double last_group = 1e300;
    for (int64_t g = 0; g < 2; ++g) {
      const at::Tensor value = head_of(now, name + "value", g), key = head_of(now, name + "key", g);
      const at::Tensor outputs = at::cat({output_of(now, name, 2 * g), output_of(now, name, 2 * g + 1)}, 1).t();
      const at::Tensor queries =
          at::cat({head_of(now, name + "query", 2 * g), head_of(now, name + "query", 2 * g + 1)});
      for (const auto& [left, right] : {std::pair(value, outputs), {queries, key}}) {
        const at::Tensor gram = at::matmul(left.t(), left);
        CHECK(near(gram, at::matmul(right.t(), right)));
        CHECK(near(gram, gram.diagonal().diag()));
        CHECK((gram.diagonal().narrow(0, 0, k - 1) >= gram.diagonal().narrow(0, 1, k - 1)).all().item<bool>());
        CHECK(near(gram.diagonal(), at::linalg_svdvals(at::matmul(left, right.t())).narrow(0, 0, k)));
        for (int64_t j = 0; j < k; ++j) {
          CHECK(left.select(1, j).max().item<double>() == left.select(1, j).abs().max().item<double>());
        }
      }
      const double length = at::matmul(value, outputs.t()).norm().item<double>();
      const double first = at::matmul(value, output_of(now, name, 2 * g)).norm().item<double>();
      const double second = at::matmul(value, output_of(now, name, 2 * g + 1)).norm().item<double>();
      CHECK(length <= last_group);
      CHECK(first >= second);
      last_group = length;
    }
  }
  CHECK(difference({a, as_weights(old)}, step.proposal.after) < 1e-13);
  CHECK(step.proposal.notes.at(0).starts_with("8 head gauges are canonical, and heads are sorted in 2 of 2 blocks"));
}

TEST_CASE("gauge_heads: every member of an orbit has the same representative, and is the same function") {
  const std::string turns = R"("rope": {"width": 4})", partly = R"("rope": {"width": 2, "layout": "interleaved"})";
  for (const std::string& attention : std::vector<std::string>{
           "{}",
           "{" + all_four + "}",
           R"({"kv_heads": 2, )" + all_four + "}",
           R"({"kv_heads": 1, "gate": "position", "bias": {"key": true}})",
           R"({"shaped": true, "kv_heads": 2, )" + all_four + "}",
           "{" + turns + ", " + all_four + "}",
           R"({"rope": {"width": 4, "layout": "interleaved"}, "kv_heads": 2})",
           "{" + partly + ", " + all_four + "}",
           R"({"query": "key", "bias": {"key": true, "value": true}})",
           R"({"query": "key", "rope": {"width": 2}})",
           R"({"qk_norm": {"kind": "rms", "gain": false}, "kv_heads": 2, )" + all_four + "}",
           R"({"qk_norm": {"kind": "rms", "gain": false}, "rope": {"width": 2}, )" + all_four + "}",
           R"({"qk_norm": {"kind": "rms"}, "qk_norm_over": "each_head", "kv_heads": 2})",
           R"({"qk_norm": {"kind": "rms"}, "qk_norm_over": "layer", "kv_heads": 2, "rope": {"width": 4}})",
           R"({"qk_norm": {"kind": "rms", "gain": false}, "qk_norm_over": "layer", )" + all_four + "}",
           R"({"qk_norm": {"kind": "rms", "gain": false, "place": "post"}, "rope": {"width": 2}, )" + all_four + "}",
           R"({"softcap": 0.7, "window": 3, "cache": "x"})",
       }) {
    INFO(attention);
    const Architecture a = headed(attention);
    const Tensors one = generic_tensors(a);
    at::manual_seed(5);
    const Tensors other = another_member(a, one, true);
    CHECK_FALSE(near(one.at("blocks.0.attention.value.weight"), other.at("blocks.0.attention.value.weight"), 1e-2));
    CHECK(difference({a, as_weights(one)}, {a, as_weights(other)}) < 1e-11);  // the test's own algebra
    const Model first = gauged({a, as_weights(one)}).proposal.after,
                second = gauged({a, as_weights(other)}).proposal.after;
    CHECK(difference({a, as_weights(one)}, first) < 1e-12);
    const Tensors canonical = loaded(first);
    for (const auto& [name, tensor] : loaded(second)) {
      CHECK_MESSAGE(near(tensor, canonical.at(name), 1e-9), name);
    }
    for (const auto& [name, tensor] : loaded(gauged(first).proposal.after)) {  // and it is its own
      CHECK_MESSAGE(near(tensor, canonical.at(name), 1e-12), name);
    }
  }
}

// Channels of the stream that a head hardly reads or writes: QR alone would make other numbers of them.
TEST_CASE("gauge_heads: rows of small numbers are as good as large ones") {
  const Architecture a = headed("{" + all_four + "}");
  Tensors old = generic_tensors(a);
  const at::Tensor sizes = at::pow(10.0, at::linspace(-9, 2, d, at::kDouble));
  for (auto& [name, tensor] : old) {
    if (name.ends_with("output.weight")) {
      tensor = tensor * sizes.unsqueeze(1);
    } else if (name.ends_with("query.weight")) {
      tensor = tensor * sizes;
    }
  }
  const Tensors now = loaded(gauged({a, as_weights(old)}).proposal.after);
  const std::string name = "blocks.0.attention.";
  for (int64_t h = 0; h < 4; ++h) {
    double values = 1, scores = 1;
    for (int64_t other = 0; other < 4; ++other) {  // heads changed places
      const auto off = [](const at::Tensor& left, const at::Tensor& right, const at::Tensor& before) {
        return ((at::matmul(left, right) - before).abs() / at::matmul(left.abs(), right.abs())).max().item<double>();
      };
      values = std::min(values, off(head_of(now, name + "value", other), output_of(now, name, other),
                                    at::matmul(head_of(old, name + "value", h), output_of(old, name, h))));
      scores = std::min(scores, off(head_of(now, name + "query", other), head_of(now, name + "key", other).t(),
                                    at::matmul(head_of(old, name + "query", h), head_of(old, name + "key", h).t())));
    }
    CHECK(values < 1e-13);
    CHECK(scores < 1e-13);
  }
}

TEST_CASE(
    "gauge_heads: planes that turn are as long on both sides, and the keys' longest entry lies on the first axis") {
  for (const bool halves : {true, false}) {
    const Architecture a = headed("{" + all_four + R"(, "kv_heads": 2, "rope": {"layout": ")" +
                                  (halves ? "half" : "interleaved") + "\"}}");
    const Tensors now = loaded(gauged({a, as_weights(generic_tensors(a))}).proposal.after);
    const std::string name = "blocks.1.attention.";
    for (int64_t g = 0; g < 2; ++g) {
      const at::Tensor key = head_of(now, name + "key", g);
      const at::Tensor queries =
          at::cat({head_of(now, name + "query", 2 * g), head_of(now, name + "query", 2 * g + 1)});
      for (const auto& [first, second] : {std::pair(0, halves ? 2 : 1), {halves ? 1 : 2, 3}}) {
        const at::Tensor x = key.select(1, first), y = key.select(1, second);
        const at::Tensor squares = x.square() + y.square();
        const double length = squares.sum().item<double>();
        CHECK(length ==
              doctest::Approx(
                  (queries.select(1, first).square() + queries.select(1, second).square()).sum().item<double>())
                  .epsilon(1e-12));
        const at::Tensor longest = squares.argmax();
        CHECK(x[longest.item<int64_t>()].item<double>() > 0);
        CHECK(std::abs(y[longest.item<int64_t>()].item<double>()) < 1e-14);
      }
    }
  }
}

TEST_CASE("gauge_heads: gains of a norm of queries and keys, where rotations pass them") {
  const auto with = [](const Architecture& a, const std::vector<double>& query, const std::vector<double>& key) {
    Tensors tensors = generic_tensors(a);
    for (const std::string name : {"blocks.0.attention.", "blocks.1.attention."}) {
      if (!query.empty()) {
        tensors[name + "query_norm.weight"] = at::tensor(query, at::kDouble);
        tensors[name + "key_norm.weight"] = at::tensor(key, at::kDouble);
      }
    }
    return Model{a, as_weights(tensors)};
  };
  const Architecture plain = headed(R"({"qk_norm": {"kind": "rms"}})");
  const Architecture turning = headed(R"({"qk_norm": {"kind": "rms"}, "rope": {"width": 4}})");
  const Architecture each = headed(R"({"qk_norm": {"kind": "rms"}, "qk_norm_over": "each_head", "kv_heads": 2})");
  const Architecture all = headed(R"({"qk_norm": {"kind": "rms"}, "qk_norm_over": "layer", "rope": {"width": 4}})");
  struct Case {
    Model model;
    bool free;
  };
  // Of each head its own number: what is the same in all heads' rows is not the same in one.
  const auto of_heads = [&](const Architecture& a, const std::vector<double>& query, const std::vector<double>& key) {
    Model model = with(a, {}, {});
    for (const std::string name : {"blocks.0.attention.", "blocks.1.attention."}) {
      for (const auto& [norm, numbers] : {std::pair("query_norm.weight", query), {"key_norm.weight", key}}) {
        const at::Tensor gains = at::tensor(numbers, at::kDouble);
        const at::Tensor rows = gains.numel() > 4 ? gains : gains.repeat_interleave(4);
        const Shape shape = model.weights.at(name + norm).shape();
        model.weights.at(name + norm) =
            Weight::leaf(name + norm, Dtype::f64, shape, [rows, shape] { return rows.view(shape); });
      }
    }
    return model;
  };
  for (const Case& c : {
           Case{with(plain, {1, 2, 4, 0.5}, {4, 2, 1, 8}), true},     // their product is one number
           Case{with(plain, {1, 2, 4, 0.5}, {4, 2, 1, 7}), false},    //
           Case{with(turning, {1, 2, 1, 2}, {5, 3, 5, 3}), true},     // one number for each plane
           Case{with(turning, {1, 2, 4, 0.5}, {4, 2, 1, 8}), false},  //
           Case{of_heads(each, {1, 2, 3, 4}, {5, 6}), true},
           Case{of_heads(each, {1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4}, {1, 2}), false},
           Case{of_heads(all, {1, 2, 3, 4}, {5, 6, 7, 8}), true},
       }) {
    const PassStep step = gauged(c.model);
    const Precondition& place = step.proposal.preconditions.at(0);
    CHECK(place.where == "blocks.0.attention.query");
    CHECK(place.holds == c.free);
    CHECK(c.free != (place.found == "the gains are not uniform"));
    CHECK(difference(c.model, step.proposal.after) < 1e-13);
    const std::string key = "blocks.0.attention.key.weight";
    // Not free, heads still change places: their rows are the same numbers.
    const at::Tensor before = std::get<0>(c.model.weights.at(key).load().flatten().sort());
    const at::Tensor after = std::get<0>(step.proposal.after.weights.at(key).load().flatten().sort());
    CHECK(near(before, after, 1e-14) != c.free);
  }
}

TEST_CASE("gauge_heads: what is not free stays, each for its reason") {
  struct Case {
    std::string attention, where, reason;
  };
  for (const Case& c : std::vector<Case>{
           {R"({"heads": 3, "query": "identity"})", "query", "the query has no matrix"},
           {R"({"heads": 3, "key": "identity"})", "query", "the key has no matrix"},
           {R"({"heads": 3, "query": {"nonlinear": {"width": 5}}})", "query", "the query is nonlinear"},
           {R"({"heads": 3, "value": "identity"})", "value", "the value has no matrix"},
           {R"({"heads": 3, "output": "identity"})", "value", "the output has no matrix"},
           {R"({"heads": 3, "output": "identity"})", "output", "value and output are not free"},
           {R"({"scores": "collapsed"})", "query", "query and key are one matrix, which has no gauge"},
           {R"({"scores": "collapsed"})", "output", "query and key are not matrices of their own"},
           {R"({"values": "collapsed"})", "value", "value and output are one matrix, which has no gauge"},
           {R"({"pairs": {"query_key": "shrunk"}})", "query",
            "an identity block is cut out of the key, which fixes its gauge"},
           {R"({"pairs": {"value_output": "shrunk"}})", "value",
            "an identity block is cut out of the value, which fixes its gauge"},
           {R"({"cache": "k"})", "query", "keys and values are computed from each other"},
           {R"({"cache": "v"})", "value", "keys and values are computed from each other"},
           {R"({"qk_norm": {"kind": "layer"}})", "query", "it is a LayerNorm"},
           {R"({"qk_norm": {"kind": "rms", "bias": true}})", "query", "the norm has a bias"},
           {R"({"alibi": {}})", "output", "ALiBi gives each head its slope by its number"},
           {R"({"heads": 1})", "output", "there is one"},
       }) {
    INFO(c.attention);
    const Architecture a = headed(c.attention);
    const Model before{a, as_weights(generic_tensors(a))};
    const PassStep step = gauged(before);
    bool found = false;
    for (const Precondition& p : step.proposal.preconditions) {
      if (p.where == "blocks.1.attention." + c.where) {
        CHECK(p.found == c.reason);
        CHECK_FALSE(p.holds);
        found = true;
      }
    }
    CHECK(found);
    CHECK(difference(before, step.proposal.after) < 1e-13);
  }
  const PassStep none = gauged({.architecture = headed(R"({"scores": "collapsed", "values": "collapsed"})")});
  CHECK_FALSE(none.proposal.applies);
  const PassStep table = gauged({.architecture = headed("{}", R"({"first_layer": "table",
      "embedding": {"position": "none"}})")});
  CHECK(table.proposal.applies);  // in the second block
  CHECK(table.proposal.preconditions.at(1).found == "they are inside the first-layer table");
}

TEST_CASE("gauge_heads: heads under ALiBi stay where they are, and moving them would show") {
  const Architecture a = headed(R"({"alibi": {}})");
  const Tensors one = generic_tensors(a);
  at::manual_seed(5);
  CHECK(difference({a, as_weights(one)}, {a, as_weights(another_member(a, one, false))}) < 1e-11);
  CHECK(difference({a, as_weights(one)}, {a, as_weights(another_member(a, one, true))}) > 1e-3);
}

TEST_CASE("gauge_heads: heads that are almost, or wholly, of lower rank cost no digits") {
  for (const double last : {1e-6, 1e-12, 1e-15, 0.0}) {
    INFO(last);
    const Architecture a = headed("{" + all_four + "}");
    Tensors tensors = generic_tensors(a);
    for (auto& [name, tensor] : tensors) {
      if (name.ends_with("value.weight") || name.ends_with("key.weight")) {
        tensor[0].copy_(tensor[1] + last * tensor[0]);
      }
      if (name.ends_with("value.bias") || name.ends_with("key.bias")) {
        tensor[0].copy_(tensor[1]);
      }
    }
    const Model before{a, as_weights(tensors)};
    CHECK(difference(before, gauged(before).proposal.after) < 1e-13);
  }
}

TEST_CASE("gauge_heads: what a block's tensors share is computed once") {
  const Architecture a = headed("{" + all_four + "}");
  Loads loads;
  const Model before{a, counted(as_weights(generic_tensors(a)), loads)};
  const Model after = gauged(before).proposal.after;
  CHECK(loads["blocks.0.attention.value.weight"] == 0);  // nothing is computed before somebody asks
  loaded(after);
  for (const char* name : {"query", "key", "value", "output"}) {
    CHECK(loads["blocks.1.attention." + std::string(name) + ".weight"] == 1);
  }
}

}  // namespace pare::test
