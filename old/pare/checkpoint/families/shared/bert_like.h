#pragma once
// What BERT and its descendants share: learned positions and token types, LayerNorm after each sublayer, full
// attention, and how they end: in a pooler, a masked-LM head, a classifier of sequences or tokens, the start and end of
// an answer, or, as they were pre-trained, a masked-LM head and a second one on the pooler. A family file says what it
// does otherwise.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

struct BertLike {
  std::string_view name;     // the model_type; also the module that all but the heads are in
  std::string_view classes;  // what the names of its classes begin with
  std::string_view pooler;   // the module that pools, within that module
  // The masked-LM head, and its layer and norm before the decoder, within it.
  std::string_view predictions, predictions_dense, predictions_norm;
  // The second head of pre-training; empty: the family has no such class. Where it stands alone too, in
  // ForNextSentencePrediction, it has two classes, else as many as there are labels.
  std::string_view sequence_head;
  bool next_sentence = false;
  // Classification of sequences: the matrix, and the layer before it where that is not the pooler.
  std::string_view classifier = "classifier", classifier_dense = "";
  // Where the file says nothing:
  int64_t vocab = 0, width = 0, heads = 0, mlp_width = 0;
  std::string_view activation;
};

Architecture read_bert_like(Config& config, const BertLike& family);
nlohmann::ordered_json write_bert_like(const Architecture& architecture, const BertLike& family);

void bind_bert_embeddings(Binder& binder, const BertLike& family);
void bind_bert_layers(Binder& binder, const Architecture& architecture, const BertLike& family);
void bind_bert_head(Binder& binder, const Architecture& architecture, const BertLike& family);

}  // namespace pare
