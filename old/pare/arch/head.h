#pragma once
// What a model says in the end: of each token or of a sequence, how much, and from which width.

#include "pare/arch/architecture.h"

namespace pare {

bool is_language_model(const Architecture& architecture);  // logits over the vocabulary
bool has_classes(const Architecture& architecture);        // logits over classes
bool answers_sequences(const Architecture& architecture);  // one row of logits for a sequence, not for each token
bool has_pooler(const Architecture& architecture);         // an encoder that also gives one vector for a sequence
bool is_choice(const Architecture& architecture);          // a softmax over a row of logits is what they are for

int64_t hidden_width(const Architecture& architecture);      // of an answer that is hidden states
int64_t head_size(const Architecture& architecture);         // rows of the head's matrix; 0 for an encoder
int64_t head_input_width(const Architecture& architecture);  // what the head's matrix reads, or what a pooler gives
int64_t sequence_head_input_width(const Architecture& architecture);

}  // namespace pare
