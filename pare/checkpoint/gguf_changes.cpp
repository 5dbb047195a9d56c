#include "pare/checkpoint/gguf_changes.h"

#include <ATen/ATen.h>

#include <functional>

#include "pare/support/error.h"
#include "pare/support/names.h"

namespace pare {

namespace {

using Reordered = std::function<at::Tensor(const at::Tensor& rows, int64_t heads)>;

// In a file, rows that turn together lie side by side within each head; the family has all first ones and then all
// second ones.
at::Tensor by_halves(const at::Tensor& rows, int64_t heads) {
  return rows.unflatten(0, {heads, rows.size(0) / heads / 2, 2}).transpose(1, 2).flatten(0, 2).contiguous();
}

at::Tensor by_pairs(const at::Tensor& rows, int64_t heads) {
  return rows.unflatten(0, {heads, 2, rows.size(0) / heads / 2}).transpose(1, 2).flatten(0, 2).contiguous();
}

// Some rows are those of some heads, so they can be had alone.
Weight within_heads(const std::string& name, const Weight& given, int64_t heads, const Reordered& reordered) {
  const int64_t rows = given.shape().front();
  if (heads < 1 || rows % (2 * heads) != 0) {
    return given;
  }
  const int64_t width = rows / heads;
  Weight::LoadRows load_rows = nullptr;
  if (given.can_load_rows()) {
    load_rows = [given, width, reordered](int64_t begin, int64_t count) {
      const int64_t first = begin / width, last = (begin + count + width - 1) / width;
      const at::Tensor whole = reordered(given.load_rows(first * width, (last - first) * width), last - first);
      return whole.narrow(0, begin - first * width, count).clone();
    };
  }
  return Weight::leaf(
      name, given.dtype(), given.shape(), [given, heads, reordered] { return reordered(given.load(), heads); },
      load_rows);
}

// A gain is stored as one more than what the family has. What that rounded is lost already; taking the one away again
// is exact for every sum that it can have been.
Weight without_one(const std::string& name, const std::string& theirs, const Weight& stored) {
  return Weight::made(
      name, stored.dtype(), stored.shape(), {stored},
      [theirs](std::vector<at::Tensor>& in) {
        const at::Tensor gain = in[0].to(at::kDouble), less = (gain - 1).to(in[0].scalar_type());
        refuse_if(!at::equal(less.to(at::kDouble) + 1, gain),
                  "tensor {} has gains that are not one more than a number of its type, as Gemma's are: was this file "
                  "converted by llama.cpp?",
                  quote(theirs));
        return less;
      },
      Weight::Rows::each);
}

// Of the gain as float32 has it: such a sum is what can be taken back.
Weight with_one(const std::string& name, const Weight& family) {
  return Weight::made(
      name, Dtype::f32, family.shape(), {family}, [](std::vector<at::Tensor>& in) { return in[0].to(at::kFloat) + 1; },
      Weight::Rows::each);
}

Weight turned(const std::string& name, const Weight& given) {
  if (given.shape().size() != 2) {
    return given;
  }
  return Weight::made(name, given.dtype(), {given.shape()[1], given.shape()[0]}, {given},
                      [](std::vector<at::Tensor>& in) { return in[0].t().contiguous(); });
}

// Between [all queries; all keys; all values] and queries, key and value of each key head in turn.
Weight regrouped(const std::string& name, const Weight& given, const GgufHeads& heads, bool to_groups) {
  const int64_t rows = given.shape().front(), all = heads.all + 2 * heads.kv;
  if (heads.all < 1 || heads.kv < 1 || heads.all % heads.kv != 0 || rows % all != 0) {
    return given;
  }
  return Weight::made(name, given.dtype(), given.shape(), {given}, [=](std::vector<at::Tensor>& in) {
    const int64_t width = rows / all, queries = heads.all / heads.kv * width;
    if (to_groups) {
      std::vector<at::Tensor> parts = in[0].split_with_sizes({heads.kv * queries, heads.kv * width, heads.kv * width});
      for (at::Tensor& part : parts) {
        part = part.unflatten(0, {heads.kv, part.size(0) / heads.kv});
      }
      return at::cat(parts, 1).flatten(0, 1).contiguous();
    }
    std::vector<at::Tensor> parts =
        in[0].unflatten(0, {heads.kv, queries + 2 * width}).split_with_sizes({queries, width, width}, 1);
    for (at::Tensor& part : parts) {
      part = part.flatten(0, 1);
    }
    return at::cat(parts).contiguous();
  });
}

}  // namespace

Weight gguf_undone(GgufChange change, const std::string& name, const std::string& theirs, const Weight& stored,
                   const GgufHeads& heads) {
  switch (change) {
    case GgufChange::none:
      return stored;
    case GgufChange::query_rows:
      return within_heads(name, stored, heads.all, by_halves);
    case GgufChange::key_rows:
      return within_heads(name, stored, heads.kv, by_halves);
    case GgufChange::plus_one:
      return without_one(name, theirs, stored);
    case GgufChange::transposed:
      return turned(name, stored);
    case GgufChange::stacked:
      return regrouped(name, stored, heads, true);
  }
  PARE_UNREACHABLE("a change that nobody undoes");
}

Weight gguf_done(GgufChange change, const std::string& name, const Weight& family, const GgufHeads& heads) {
  switch (change) {
    case GgufChange::none:
      return family;
    case GgufChange::query_rows:
      return within_heads(name, family, heads.all, by_pairs);
    case GgufChange::key_rows:
      return within_heads(name, family, heads.kv, by_pairs);
    case GgufChange::plus_one:
      return with_one(name, family);
    case GgufChange::transposed:
      return turned(name, family);
    case GgufChange::stacked:
      return regrouped(name, family, heads, false);
  }
  PARE_UNREACHABLE("a change that nobody does");
}

}  // namespace pare
