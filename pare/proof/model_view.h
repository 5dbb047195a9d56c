#pragma once
// One of the two models as the prover sees it: every tensor with all that folds into it, in float64, beside how far one
// rounding of the stored numbers moves each entry. What passes fold vanishes into this: a gain is in its readers, an
// absent bias is zero, no matrix is the identity, and forms are written out.

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>

#include "pare/arch/streams.h"
#include "pare/checkpoint/model.h"
#include "pare/proof/folds.h"
#include "pare/proof/plain_form.h"
#include "pare/proof/rounded.h"

namespace pare {

// Where along an axis the entries of the other side's order are, and the factors that neurons have beside it.
struct Order {
  at::Tensor index;
  int64_t axis = 0;
  at::Tensor factors = {};  // undefined: ones
};

// Whatever type they are stored in.
bool holds_same_numbers(const Weight& a, const Weight& b);

class ModelView {
 public:
  enum class Numbers { exact, rounded };  // a reference is what it is; a candidate was rounded when it was stored

  ModelView(const Model& model, Numbers numbers, at::Device device, PlainForm form);

  const Architecture& architecture() const { return form_.architecture; }
  const Streams& streams() const { return streams_; }
  const TensorTable& table() const { return table_; }
  bool stores(const TensorId& id) const { return table_.contains(id); }
  // What the files hold, whatever form it is seen in.
  const TensorTable& stored() const { return stored_; }
  const Weight& weight(const TensorId& id) const;
  bool is_made(const TensorId& id) const { return form_.made.contains(id); }
  std::vector<TensorId> sources(const TensorId& id) const { return sources_of(form_, id); }
  Dtype dtype_of(const TensorId& id) const { return as_stored(weight(sources(id).front()).dtype()); }
  double roundoff(const TensorId& id) const {
    return unit_roundoff(numbers_ == Numbers::exact ? Dtype::f64 : dtype_of(id));
  }

  // One rounding of a number near one, in the coarsest type that anything of these is stored in.
  struct Unit {
    double coarsest;
    bool mixed;  // with finer ones
  };
  Unit unit(const std::vector<TensorId>& ids) const;
  // The same model, as if all of it were stored in float64: what roundings come to there, others are measured by.
  ModelView in_float64() const;

  Rounded load(const TensorId& id) const;
  // What is stored, for what is made of it; of both sides' same numbers nothing was rounded.
  Rounded load_source(const TensorId& id) const;
  Rounded load_source_rows(const TensorId& id, int64_t begin, int64_t count) const;
  // A factor of what another tensor took in. Where both sides hold the same numbers nobody rounded it.
  Rounded load_factor(const TensorId& id) const;
  Rounded load_rows(const TensorId& id, int64_t begin, int64_t count) const;
  bool is_zero(const TensorId& id) const;  // or not there
  Rounded load_or_zeros(const TensorId& id, at::IntArrayRef shape) const;
  Rounded made(const at::Tensor& value) const;                      // exact numbers, that nobody stored
  Rounded gain(const ModuleId& norm, at::IntArrayRef shape) const;  // with its offset; ones where there is none
  const std::map<ModuleId, Norm>& norms() const { return norms_; }  // of heads, too
  double offset(const ModuleId& norm) const { return norms_.at(norm).offset; }

  // The tensors that the other side holds the same numbers of, as they are stored and in the form that is compared.
  void share(std::set<TensorId> stored, std::set<TensorId> same) {
    same_sources_ = std::move(stored);
    same_ = std::move(same);
  }
  bool shares(const TensorId& id) const { return same_.contains(id); }
  // From now on, tensors are loaded in the other side's order.
  void reorder(std::map<TensorId, Order> orders) { orders_ = std::move(orders); }
  bool is_reordered(const TensorId& id) const { return orders_.contains(id); }
  bool is_scaled(const TensorId& id) const { return is_reordered(id) && orders_.at(id).factors.defined(); }
  // What was asked for to find the folds is not explained by that.
  void fold(Folds folds) {
    folded_ = std::move(folds);
    used_.clear();
  }
  const Folds& folded() const { return folded_; }
  // Rows [..., width] that read a stream, times the gain of the norm before it.
  Rounded with_gain(const Rounded& matrix, size_t stream) const;
  // Rows that write a stream whose mean nobody sees.
  bool centres(size_t stream) const { return form_.centred.contains(stream); }
  Rounded written(const Rounded& rows, size_t stream) const { return centres(stream) ? without_mean(rows) : rows; }
  // What is added to a stream and folds into what reads it. Undefined where there is none.
  Rounded constant_on(size_t stream) const;
  // W c, with W as it is stored: what a constant on the stream adds behind a reader. Undefined where there is none.
  Rounded shift(const TensorId& reader, size_t stream) const;

  // What was asked for so far: a tensor that nobody looked at is not explained.
  const std::set<TensorId>& used() const { return used_; }
  void use(const TensorId& id) const;

 private:
  Dtype as_stored(Dtype dtype) const { return as_float64_ ? Dtype::f64 : dtype; }
  Rounded with_rounding(const at::Tensor& stored, Dtype dtype) const;
  Rounded exact(const at::Tensor& stored) const;

  Rounded unordered(const TensorId& id) const;
  Rounded unordered_rows(const TensorId& id, int64_t begin, int64_t count) const;
  Rounded placed(const Rounded& found, const TensorId& id) const;  // in the other side's order

  const Model* model_;
  PlainForm form_;
  Numbers numbers_;
  bool as_float64_ = false;
  at::Device device_;
  Streams streams_;
  TensorTable table_, stored_;
  std::map<ModuleId, Norm> norms_;
  std::set<TensorId> same_, same_sources_;
  std::map<TensorId, Order> orders_;
  Folds folded_;
  mutable std::set<TensorId> used_;
};

// What one rounding of a number near one comes to at each entry, where types are mixed: each source counts by what it
// adds to the entry, so that one which adds nothing says nothing of the others. `rounding` is what one rounding of
// everything does there, `in_float64` what it would.
at::Tensor mixed_units(const at::Tensor& rounding, const at::Tensor& in_float64, double coarsest);

struct RowRange {
  int64_t begin = 0, count = 0;
};
// Of `rows` rows enough to know a map by, from all over them.
std::vector<RowRange> rows_from_all_over(int64_t rows, int64_t enough);

// Of a table, so that a slice in float64 is never large.
constexpr int64_t rows_at_once(int64_t width) {
  return std::max<int64_t>(1, (int64_t{1} << 23) / width);
}

}  // namespace pare
