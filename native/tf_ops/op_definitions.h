// The ops: names, inputs, outputs and attributes.
#ifndef TFCOLLECTIVE_TF_OPS_OP_DEFINITIONS_H_
#define TFCOLLECTIVE_TF_OPS_OP_DEFINITIONS_H_

#include <string>

namespace tfc_ops {

// Registers all ops with TensorFlow. Returns what went wrong, or "".
std::string RegisterOps();

}  // namespace tfc_ops

#endif  // TFCOLLECTIVE_TF_OPS_OP_DEFINITIONS_H_
