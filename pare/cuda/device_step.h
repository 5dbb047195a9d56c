#pragma once
// One step of decoding on a GPU as a list of pieces of work: plain values and addresses on the device, for kernels that
// know neither libtorch nor an Architecture. pare/decode/device_engine.h makes the list, pare/cuda/step.cu runs it.
//
// Vectors, sums and the stream are float32; matrices, the token table and the cache are of one type. A vector of
// float32 is read four numbers at a time: it begins at a multiple of 16 bytes, and has as many more as make a multiple
// of four.

namespace pare::device_step {

enum class Number { float32, bfloat16 };
enum class StepNormKind { none, rms, layer, dyt };
enum class StepCurve { none, gelu, gelu_tanh, gelu_bloom, quick_gelu, relu, relu_squared, silu, sigmoid, tanh };

// Where the text stands. Each step leaves here what is read next if always the most likely is.
struct State {
  int token = 0, length = 0;  // read now, and how many before it
  float most = 0;             // the logit of the most likely one
  int tickets = 0;            // of blocks that are done; 0 between steps
};

struct StepNorm {
  StepNormKind kind = StepNormKind::none;
  float epsilon = 0, alpha = 1;
  const float *gain = nullptr, *bias = nullptr;  // null: none
};

// What a sublayer wrote, on its way into the stream x: after(skip x + before(y)).
struct Added {
  const float* y = nullptr;  // null: nothing is added
  StepNorm before, after;
  bool skip = true;
};

// How the vector comes about that a matrix is multiplied with: every block makes it for itself.
struct Input {
  const float* stream = nullptr;  // null: it begins with the token
  const void *tokens = nullptr, *positions = nullptr;
  float token_scale = 1;
  int position_offset = 0;
  StepNorm embedding_norm;
  Added added[2];
  float* stream_out = nullptr;  // where the stream is left, with what was added: not where it came from
  StepNorm norm;
  int width = 0;
};

struct Piece {
  const void* matrix = nullptr;  // [rows, columns]; null: what comes in itself
  const float* bias = nullptr;   // null: none
  float* out = nullptr;
  int rows = 0;
};

enum class Then { nothing, curve, gate, logits };

// out = W in + b for up to three matrices, one after another. gate: the rows of one matrix are gates, then as many ups,
// and out = curve(gate) up, `rows` of them.
struct StepProduct {
  Input input;
  Piece pieces[3];
  int columns = 0, rows = 0;  // rows: of all pieces
  bool vectored = false;      // rows begin and end at multiples of 16 bytes
  Then then = Then::nothing;
  StepCurve curve = StepCurve::none;
  float softcap = 0;  // of logits; 0: none
  State* state = nullptr;
  float* best_logits = nullptr;  // [most_blocks], of logits
  int* best_ids = nullptr;
};

// Attention of one token, behind norms and angles, with keys and values remembered.
struct Attend {
  const float *query = nullptr, *key = nullptr, *value = nullptr;  // of this token
  void *keys = nullptr, *values = nullptr;                         // [kv_heads, capacity, width]
  float* mixed = nullptr;                                          // [heads, width]
  int heads = 0, kv_heads = 0, width = 0, capacity = 0;
  int window = 0;  // 0: all that was read
  float scale = 1, softcap = 0;
  const float* slopes = nullptr;  // of ALiBi, [heads]: times what is to be added per token of distance
  StepNorm query_norm, key_norm;
  const float *cosine = nullptr, *sine = nullptr;  // [capacity, planes]; null: nothing turns
  int planes = 0;
  bool halves = true;                         // plane i is dimensions i and planes + i, else 2i and 2i + 1
  bool vectored = false;                      // as in StepProduct
  int splits = 1;                             // of the text, at most
  float *parts = nullptr, *shares = nullptr;  // [splits, heads, width], and [splits, heads, 2]: largest score and sum
  int* tickets = nullptr;                     // one for each block of heads; 0 between steps
  const State* state = nullptr;
};

struct Piecework {  // one or the other
  bool attends = false;
  StepProduct product;
  Attend attend;
};

struct StepList {
  const Piecework* work = nullptr;
  int count = 0;
  Number number = Number::bfloat16;
  State* state = nullptr;
  const float* logits = nullptr;
  int vocab = 0;
};

constexpr int most_blocks = 1024;      // of a product
constexpr int queries_at_once = 8;     // heads that read a key together
constexpr int fewest_of_a_split = 64;  // tokens

}  // namespace pare::device_step
