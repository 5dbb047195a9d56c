#include "pare/checkpoint/dtype.h"

#include <doctest/doctest.h>

using namespace pare;

TEST_CASE("names of dtypes go both ways") {
  CHECK(dtype_names().size() == 22);
  for (const std::string& name : dtype_names()) {
    CAPTURE(name);
    REQUIRE(dtype_from_name(name));
    CHECK(dtype_name(*dtype_from_name(name)) == name);
  }
  CHECK_FALSE(dtype_from_name("f32"));
  CHECK_FALSE(dtype_from_name(""));
}

TEST_CASE("the floats we compute with have words") {
  for (Dtype dtype : {Dtype::f16, Dtype::bf16, Dtype::f32, Dtype::f64}) {
    CHECK(float_dtype_from_word(word(dtype)) == dtype);
  }
  CHECK(float_dtype_from_word("bfloat16") == Dtype::bf16);
  CHECK(float_dtype_from_word("bf16") == Dtype::bf16);
  for (const char* word : {"fp16", "half"}) {
    CHECK(float_dtype_from_word(word) == Dtype::f16);
  }
  CHECK(float_dtype_from_word("fp32") == Dtype::f32);
  for (const char* word : {"fp64", "double"}) {
    CHECK(float_dtype_from_word(word) == Dtype::f64);
  }
  CHECK(word(Dtype::i32).empty());
  CHECK_FALSE(float_dtype_from_word(""));
  CHECK_FALSE(float_dtype_from_word("int8"));
}

TEST_CASE("sizes are in bits") {
  CHECK(dtype_bits(Dtype::f4) == 4);
  CHECK(dtype_bits(Dtype::f6_e2m3) == 6);
  CHECK(dtype_bits(Dtype::boolean) == 8);
  CHECK(dtype_bits(Dtype::bf16) == 16);
  CHECK(dtype_bits(Dtype::c64) == 64);
}
