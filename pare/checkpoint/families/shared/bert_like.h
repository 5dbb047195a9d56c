#pragma once
// What BERT and its descendants share beside their keys: learned positions and token types, LayerNorm after each
// sublayer, full attention, and how they end: in a pooler, a masked-LM head, a classifier of sequences or tokens, the
// start and end of an answer, or, as they were pre-trained, a masked-LM head and a second one on the pooler.

#include <string_view>

#include "pare/checkpoint/family_table.h"
#include "pare/checkpoint/fields.h"

namespace pare {

struct BertHeads {
  std::string_view pooler;  // the module that pools, behind the base prefix
  // The masked-LM head: within it a `decoder`, the layer and the norm before that; and a bias that a tied decoder
  // shares and an untied one leaves unread.
  std::string_view predictions, predictions_dense, predictions_norm, tied_bias;
  // The second head of pre-training; empty: the family has no such class. Where it stands alone too, in
  // ForNextSentencePrediction, it has two classes, else as many as there are labels.
  std::string_view sequence_head = {};
  bool next_sentence = false;
  // Classification of sequences: the matrix, and the layer before it where that is not the pooler.
  std::string_view classifier = "classifier", classifier_dense = {};
};

// Adds the heads to a table, the model, the tensors where it has none, and what they all refuse and ignore.
FamilyTable bert_like(FamilyTable table, const BertHeads& heads);

// The layer before the decoder of a masked LM has the activation of the MLPs.
void share_activation(Config& config, Draft& draft);

}  // namespace pare
