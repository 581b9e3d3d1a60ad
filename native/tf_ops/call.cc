#include "tf_ops/call.h"

#include <utility>

#include "tf_common/communicator.h"
#include "tf_common/dtypes.h"

namespace tfc_tf::ops {

void Call::Start(std::unique_ptr<Call> call, const CommonAttributes& attributes) {
  const OpError error = call->Submit(attributes, &call);
  if (!error.ok()) call->End(error);
}

// Where the submission succeeds, the call belongs to OnDone (and may be gone already): `self` is empty then.
OpError Call::Submit(const CommonAttributes& attributes, std::unique_ptr<Call>* self) {
  tfc_error error = EmptyError();
  const Communicator communicator = AcquireCommunicator(attributes.process_set_id, &error);
  tfc_communicator_info info;
  if (communicator == nullptr || !GetInfo(communicator, &info, &error)) return OpError::From(error);
  request_.struct_size = sizeof(request_);
  request_.prescale = request_.postscale = 1.0;
  OpError failure = Prepare(info);
  if (!failure.ok()) {
    failure.message = "'" + attributes.name + "': " + failure.message;
    return failure;
  }
  request_.name = attributes.name.c_str();
  request_.timeout_s = attributes.timeout_s;
  request_.spans = spans_.data();
  request_.num_spans = spans_.size();
  Call* raw = self->release();
  if (tfc_submit(communicator.get(), &request_, &Call::OnDone, raw, &error) == TFC_OK) return OpError();
  self->reset(raw);
  return OpError::From(error);
}

void Call::OnDone(void* user, const tfc_error* error) {
  const std::unique_ptr<Call> call(static_cast<Call*>(user));
  call->End(error == nullptr ? call->Complete() : OpError::From(*error));
}

void Call::End(OpError error) {
  DropTensors();
  if (!error.ok()) TF_OpKernelContext_Failure(context_, ToTfStatus(error).get());
  done_();
}

void Call::Describe(int32_t collective, TF_DataType type) {
  request_.collective = collective;
  request_.dtype = TfcDtypeOf(type);
}

void Call::UseReduction(const ReductionAttributes& reduction) {
  request_.op = reduction.op;
  request_.prescale = reduction.prescale;
  request_.postscale = reduction.postscale;
}

void Call::UseShape(std::vector<int64_t> shape) {
  shape_ = std::move(shape);
  request_.shape = shape_.data();
  request_.ndim = static_cast<int32_t>(shape_.size());
}

}  // namespace tfc_tf::ops
