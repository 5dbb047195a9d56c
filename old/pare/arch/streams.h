#pragma once
// Streams: what some matrices write and others read, and what else stands on them.
// A change of basis Θ of a stream is exact when every writer W becomes W Θ, every reader Θ⁻¹ W, and nothing else
// touches it. Points that a skip joins, or that a block run twice reads or writes, are one stream and have one basis.

#include <string>
#include <vector>

#include "pare/arch/architecture.h"
#include "pare/arch/slots.h"

namespace pare {

// One axis of a stored tensor that lies along a stream: entries begin .. begin + width of it.
struct Port {
  TensorId tensor;
  Role role = Role::reader;
  int64_t axis = 0;
  int64_t begin = 0;
};

struct Touch {
  TouchKind kind = TouchKind::identity;
  ModuleId module;  // the norm, projection or table
};

struct Stream {
  int64_t width = 0;
  std::vector<Port> ports;
  std::vector<Touch> touches;
};

// Where the points of one stored block lie, as indices into Streams::all. Without a norm between them, the input of a
// sublayer is the stream itself.
struct BlockStreams {
  size_t input = 0, attention_input = 0, attention_output = 0, middle = 0, mlp_input = 0, mlp_output = 0, output = 0;
};

struct Streams {
  std::vector<Stream> all;
  std::vector<BlockStreams> blocks;  // by distinct block
  size_t embedding = 0;              // what the first layer gets
  size_t head = 0;                   // what the head, or its transform, reads
};

Streams find_streams(const Architecture& architecture);

// "blocks.0.attention.norm reads it": for refusals.
std::string text_of(const Touch& touch);

}  // namespace pare
