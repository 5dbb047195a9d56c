#pragma once
// What BERT and its descendants share: learned positions and token types, LayerNorm after each sublayer, full
// attention, and one of three ends: a pooler, a masked-LM head, a classifier. A family file says what it does
// otherwise.

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "pare/checkpoint/config.h"
#include "pare/checkpoint/family.h"

namespace pare {

struct BertLike {
  std::string_view name;     // the model_type; also the module that all but the heads are in
  std::string_view classes;  // what the names of its classes begin with
  std::string_view pooler;   // the module that pools
  // Where the file says nothing:
  int64_t vocab = 0, width = 0, heads = 0, mlp_width = 0;
  std::string_view activation;
};

Architecture read_bert_like(Config& config, const BertLike& family);
nlohmann::ordered_json write_bert_like(const Architecture& architecture, const BertLike& family);

void bind_bert_embeddings(Binder& binder, const BertLike& family);
void bind_bert_layers(Binder& binder, const Architecture& architecture, const BertLike& family);
// `head` has a `decoder`, and a bias of its own that a tied decoder shares and an untied one leaves unread.
void bind_predictions(Binder& binder, const Architecture& architecture, const std::string& head,
                      const std::string& dense, const std::string& norm);

}  // namespace pare
