#include <vector>

#include "tf_ops/registration.h"
#include "tf_ops/shape_functions.h"
#include "tf_ops/tensors.h"
#include "tf_ops/tf_status.h"

namespace tfc_tf::ops {
namespace {

using Specs = std::vector<std::string>;

struct OpDefinition {
  const char* name;
  Specs inputs;
  Specs outputs;
  Specs attributes;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
};

Specs operator+(Specs left, const Specs& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::vector<OpDefinition> AllOps() {
  const Specs type{kTypeAttr};
  const Specs types{"N: int >= 1", kTypeAttr};
  // `tensor_name` is what the ranks are matched by; a timeout of 0 means the communicator's default.
  const Specs common{"tensor_name: string", "process_set_id: int = 0", "timeout: float = 0.0"};
  // `op` is a tfc_op; the factors are numbers as text: see ReadFactor.
  const Specs reduction{"op: int", "prescale: string = '1.0'", "postscale: string = '1.0'"};
  const Specs plan{"plan: string",     "signature: string",       "num_buckets: int >= 1",
                   "bucket: int >= 0", "process_set_id: int = 0", "timeout: float = 0.0"};
  return {
      {"TfcollectiveAllreduce", {"tensor: T"}, {"reduced: T"}, type + common + reduction, SameShapes},
      {"TfcollectiveGroupedAllreduce", {"tensors: N * T"}, {"reduced: N * T"}, types + common + reduction, SameShapes},
      {"TfcollectiveBroadcast", {"tensor: T"}, {"value: T"}, type + common + Specs{"root_rank: int >= 0"}, SameShapes},
      {"TfcollectiveAllgather", {"tensor: T"}, {"gathered: T"}, type + common, UnknownRows},
      {"TfcollectiveReducescatter", {"tensor: T"}, {"reduced: T"}, type + common + reduction, UnknownRows},
      {"TfcollectiveAlltoall",
       {"tensor: T", "splits: int64"},
       {"received: T", "received_splits: int64"},
       type + common,
       UnknownRowsAndSplits},
      {"TfcollectiveBarrier", {}, {}, common, Unknown},
      {"TfcollectiveJoin", {}, {"last_rank: int32"}, {"process_set_id: int = 0", "timeout: float = 0.0"}, Scalar},
      {"TfcollectiveBucketStart", {"tensors: N * T"}, {"handle: int64"}, types + plan + reduction, Scalar},
      {"TfcollectiveBucketDone", {"handle: int64"}, {"reduced: N * T"}, types, Unknown},
  };
}

std::string Register(const OpDefinition& op) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op.name);
  for (const std::string& spec : op.attributes) TF_OpDefinitionBuilderAddAttr(builder, spec.c_str());
  for (const std::string& spec : op.inputs) TF_OpDefinitionBuilderAddInput(builder, spec.c_str());
  for (const std::string& spec : op.outputs) TF_OpDefinitionBuilderAddOutput(builder, spec.c_str());
  // A stateless op is folded on constants and pruned when its result is not used: the other ranks would wait for it.
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  const TfStatus status = NewTfStatus();
  TF_RegisterOpDefinition(builder, status.get());
  const OpError error = FromTfStatus(status);
  return error.ok() ? "" : std::string(op.name) + ": " + error.message;
}

}  // namespace

std::string RegisterOps() {
  for (const OpDefinition& op : AllOps()) {
    const std::string error = Register(op);
    if (!error.empty()) return error;
  }
  return "";
}

}  // namespace tfc_tf::ops
