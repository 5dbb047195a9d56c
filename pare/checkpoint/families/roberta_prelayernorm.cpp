// RoBERTa-PreLayerNorm: RoBERTa with the LayerNorms before the sublayers, and one after the last.

#include "pare/checkpoint/families/shared/roberta_like.h"

namespace pare {

static FamilyTable make_table() {
  FamilyTable table = roberta_like(
      {.model_type = "roberta-prelayernorm",
       .classes = "RobertaPreLayerNorm",
       .base_prefix = "roberta_prelayernorm.",
       .tensors =
           {
               {"encoder.layer.{}.attention.LayerNorm", "attention.norm"},
               {"encoder.layer.{}.attention.self.query", "attention.query"},
               {"encoder.layer.{}.attention.self.key", "attention.key"},
               {"encoder.layer.{}.attention.self.value", "attention.value"},
               {"encoder.layer.{}.attention.output.dense", "attention.output"},
               {"encoder.layer.{}.intermediate.LayerNorm", "mlp.norm"},
               {"encoder.layer.{}.intermediate.dense", "mlp.up"},
               {"encoder.layer.{}.output.dense", "mlp.down"},
               {"LayerNorm", "norm"},
           },
       .ignored = {"roberta_prelayernorm.embeddings.position_ids", "roberta_prelayernorm.embeddings.token_type_ids",
                   "roberta_prelayernorm.pooler.*", "lm_head.bias"}},
      /*vocabulary=*/50265);
  Block& block = table.model.blocks.front();
  block.attention.norm = block.mlp->norm = table.model.final_norm = layer_norm();
  return table;
}

const Family& family_roberta_prelayernorm() {
  static const Family family = make_family(make_table());
  return family;
}

}  // namespace pare
