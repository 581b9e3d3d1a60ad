// The ops' attributes, fixed when a kernel is made: read in the same way through TensorFlow's C and C++ interfaces.
#ifndef TFCOLLECTIVE_TF_COMMON_ATTRIBUTES_H_
#define TFCOLLECTIVE_TF_COMMON_ATTRIBUTES_H_

#include <cstdint>
#include <locale>
#include <sstream>
#include <string>

#include "tfcollective/tfcollective.h"

namespace tfc_tf {

// The attributes of every collective.
struct CommonAttributes {
  std::string name;
  int32_t process_set_id = 0;
  double timeout_s = 0.0;
};

// The attributes of collectives that reduce.
struct ReductionAttributes {
  int32_t op = TFC_SUM;
  double prescale = 1.0;
  double postscale = 1.0;
};

// One bucket of a plan.
struct BucketAttributes {
  std::string plan;
  std::string signature;
  int32_t num_buckets = 0;
  int32_t number = 0;
  int32_t process_set_id = 0;
  double timeout_s = 0.0;
  ReductionAttributes reduction;
};

// A Reader has String, Int, Float, and Fail(message); what it gives after a failure does not matter.

// A scale factor is text, because a float attribute of TensorFlow's holds 24 of a double's 53 bits: a finite number, in
// any locale.
template <typename Reader>
double ReadFactor(Reader& reader, const char* name) {
  const std::string text = reader.String(name);
  std::istringstream stream(text);
  stream.imbue(std::locale::classic());
  double factor = 0;
  stream >> factor;
  if (stream.fail() || stream.peek() != std::istringstream::traits_type::eof())
    reader.Fail(std::string(name) + " must be a finite number, not '" + text + "'");
  return factor;
}

template <typename Reader>
CommonAttributes ReadCommon(Reader& reader) {
  return CommonAttributes{reader.String("tensor_name"), reader.Int("process_set_id"), reader.Float("timeout")};
}

template <typename Reader>
ReductionAttributes ReadReduction(Reader& reader) {
  return ReductionAttributes{reader.Int("op"), ReadFactor(reader, "prescale"), ReadFactor(reader, "postscale")};
}

template <typename Reader>
BucketAttributes ReadBucket(Reader& reader) {
  return BucketAttributes{reader.String("plan"), reader.String("signature"),   reader.Int("num_buckets"),
                          reader.Int("bucket"),  reader.Int("process_set_id"), reader.Float("timeout"),
                          ReadReduction(reader)};
}

}  // namespace tfc_tf

#endif  // TFCOLLECTIVE_TF_COMMON_ATTRIBUTES_H_
