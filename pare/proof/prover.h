#pragma once
// The verdict on two models: settings match, every tensor is the same or obeys its relation under a witness, every map
// is one that may stand where it does, and what forms rest on holds. It takes a witness from whoever has one, and looks
// for none.

#include <optional>

#include "pare/proof/relations.h"

namespace pare {

class Prover {
 public:
  // Compares what both store, and settings. Reads every tensor of both once.
  Prover(const Model& reference, const Model& candidate, at::Device device);

  // Built alike and not the same as they are: a witness may help.
  bool is_open() const { return !proof_.identical && alike_; }
  const ModelView& reference() const { return a_; }
  const ModelView& candidate() const { return b_; }
  // The candidate's units in the reference's order, and the relations between the two then, whose witness is to be set.
  Relations& in_order(const std::vector<BlockOrder>& orders);

  // Once.
  Proof verdict();

 private:
  Prover(const Model& reference, const Model& candidate, const PlainForms& forms, at::Device device);

  void compare_stored(const Architecture& reference, const Architecture& candidate);
  void share();
  void report();
  void report_port(const ProofPort& port, const Finding& finding, How how);
  void report_heads(size_t block);
  void check_premises();
  void note_changes(const Finding& finding);
  void explain(const std::vector<TensorId>& parts, const std::string& name, How how, double residual);
  void fail(const std::vector<TensorId>& parts, const std::string& name, const Finding& finding);
  void leave_unexplained(const std::string& reason);

  ModelView a_, b_;
  std::vector<Premise> premises_;
  bool alike_ = false;
  Proof proof_;
  std::set<TensorId> same_sources_, same_;  // as they are stored, and in the form that is compared
  std::optional<Relations> relations_;
  std::map<std::string, Relation> told_;
  double moved_roundings_ = 0;
};

}  // namespace pare
