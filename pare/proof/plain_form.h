#pragma once
// One form for both. A function may be stored in several ways: a matrix without its identity block, a value computed
// from the key, two factors or their product, an MLP as heads, a skip inside the MLP, a first layer as a table, a norm
// that is an affine map inside its readers. Where the two models differ in that, both are seen in the same form, with
// tensors made of what is stored; where they do not, tensor is held against tensor, which is the closer comparison.

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "pare/checkpoint/model.h"
#include "pare/proof/rounded.h"

namespace pare {

class ModelView;

// A tensor of the written form.
struct MadeTensor {
  std::vector<TensorId> sources;  // what is stored of it
  std::function<Rounded(const ModelView& side)> load;
  std::function<Rounded(const ModelView& side, int64_t begin, int64_t count)> rows = {};  // where few can be had
};

struct PlainForm {
  Architecture architecture;
  std::map<TensorId, MadeTensor> made;
  // Streams whose norms take the mean off, in this model alone: here it is taken off by what writes them.
  std::set<size_t> centred;
};

// Numbers of the reference that a form rests on, and what they have to be: what one rounding of them does is in
// `expected`.
struct Premise {
  TensorId tensor;
  std::vector<TensorId> sources;
  Rounded found, expected;
  double unit;  // one rounding of a number near one, in the coarsest type that they are stored in
};

struct PlainForms {
  PlainForm reference, candidate;
  std::vector<Premise> premises;
  // Of norms that were seen as affine maps: how far they are from that at most, of what they write; and those that
  // nothing says it of.
  double moved = 0;
  std::vector<std::string> gaps;
};

PlainForms written_out(const Model& reference, const Model& candidate, at::Device device);

// Its steps, each with a kind of form. plain_form_norms.cpp, plain_form_mlp.cpp, plain_form_table.cpp
void write_out_norms(PlainForms& forms, const Model& reference, const Model& candidate);
void write_out_mlps(PlainForms& forms, const Model& reference, const Model& candidate, at::Device device);
void write_out_table(PlainForms& forms);

bool holds_same(const Model& a, const Model& b, const TensorId& id);  // numbers, or none

// What a maker may ask for, whether it is stored or was made before.
using LoadRounded = std::function<Rounded(const ModelView& side)>;
LoadRounded current(const PlainForm& form, const TensorId& id);
std::vector<TensorId> sources_of(const PlainForm& form, const TensorId& id);
// What of some tensors the form has.
std::vector<TensorId> those_there(const PlainForm& form, const std::vector<TensorId>& ids);
// `id` becomes what `load` makes of the tensors `of`, as they are before.
void make(PlainForm& form, const TensorId& id, const std::vector<TensorId>& of, LoadRounded load);

}  // namespace pare
