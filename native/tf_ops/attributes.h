// What is fixed when a kernel is made: its op's attributes.
#ifndef TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_
#define TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_

#include <cstdint>
#include <string>

#include "tf_ops/tensorflow_c_api.h"
#include "tf_ops/tf_status.h"

namespace tfc_ops {

// Reads attributes; keeps the first error.
class AttributeReader {
 public:
  explicit AttributeReader(TF_OpKernelConstruction* construction)
      : construction_(construction), status_(NewTfStatus()) {}

  std::string String(const char* name);
  int32_t Int(const char* name);
  double Float(const char* name);
  double Factor(const char* name);

  // Reports the first error to TensorFlow; true if there was none.
  bool Finish();

 private:
  bool ok() const { return TF_GetCode(status_.get()) == TF_OK; }

  TF_OpKernelConstruction* construction_;
  TfStatus status_;
};

// Of every collective.
struct CommonAttributes {
  std::string name;
  int32_t process_set_id = 0;
  double timeout_s = 0.0;
};
CommonAttributes ReadCommon(AttributeReader& reader);

// Of those that reduce.
struct ReductionAttributes {
  int32_t op = 0;
  double prescale = 1.0;
  double postscale = 1.0;
};
ReductionAttributes ReadReduction(AttributeReader& reader);

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_ATTRIBUTES_H_
