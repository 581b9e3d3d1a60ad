#include "tf_gpu/operation.h"

#include <utility>

#include "tf_common/canonical_codes.h"
#include "tf_common/dtypes.h"
#include "tf_common/plan.h"
#include "tf_gpu/device.h"

namespace tfc_tf::gpu {
namespace {

// Never NULL, also for an empty tensor.
void* DataOf(const Tensor& tensor) {
  static char nothing;
  return tensor.NumElements() == 0 ? &nothing : tensor.data();
}

}  // namespace

absl::Status ToStatus(const tfc_error& error) {
  const auto code = static_cast<absl::StatusCode>(CanonicalCodeOf(error.code));
  absl::Status status(code, std::string(tfc_code_name(error.code)) + ": " + error.message);
  const std::string code_text = std::to_string(error.code);
  const std::string peer_text = std::to_string(error.peer);
  status.SetPayload("tfcollective/code", absl::Cord(absl::string_view(code_text)));
  status.SetPayload("tfcollective/peer", absl::Cord(absl::string_view(peer_text)));
  return status;
}

absl::Status Operation::Start(const Request& asked, void* stream) {
  tfc_error error = EmptyError();
  communicator_ = AcquireCommunicator(asked.process_set_id, &error);
  if (communicator_ == nullptr) return ToStatus(error);
  Plan plan;
  if (asked.bucket) {
    plan = AcquirePlan(communicator_, *asked.bucket, &error);
    if (plan == nullptr) return ToStatus(error);
  }
  std::vector<tfc_span> spans;
  for (const TensorPair& pair : pairs_)
    spans.push_back(tfc_span{DataOf(pair.input), DataOf(pair.output), pair.input.NumElements()});
  std::vector<int64_t> shape;
  if (pairs_.size() == 1)
    for (int i = 0; i < pairs_[0].input.dims(); ++i) shape.push_back(pairs_[0].input.dim_size(i));
  tfc_request request{};
  request.struct_size = sizeof(request);
  request.collective = asked.collective;
  request.dtype = TfcDtypeOf(pairs_[0].input.dtype());
  request.op = asked.reduction.op;
  request.root = asked.root;
  request.prescale = asked.reduction.prescale;
  request.postscale = asked.reduction.postscale;
  request.timeout_s = asked.timeout_s;
  request.name = asked.name.c_str();
  request.spans = spans.data();
  request.num_spans = spans.size();
  request.shape = shape.data();
  request.ndim = static_cast<int32_t>(shape.size());
  tfc_device_call call{};
  call.struct_size = sizeof(call);
  call.device = -1;
  call.by_name = 1;
  call.stream = stream;
  call.launched = &Operation::OnLaunched;
  call.user = new std::shared_ptr<Operation>(shared_from_this());
  call.through_host = 1;
  call.plan = plan.get();
  call.bucket = asked.bucket ? asked.bucket->number : 0;
  if (tfc_device_run(communicator_.get(), &request, &call, &ticket_, &error) == TFC_OK) return absl::OkStatus();
  delete static_cast<std::shared_ptr<Operation>*>(call.user);
  return ToStatus(error);
}

// On a thread of the library; the ticket is not looked at before the start has returned.
void Operation::OnLaunched(void* user, const tfc_error* error) {
  const std::unique_ptr<std::shared_ptr<Operation>> operation(static_cast<std::shared_ptr<Operation>*>(user));
  (*operation)->Finish(error == nullptr ? absl::OkStatus() : ToStatus(*error));
}

void Operation::Finish(absl::Status status) {
  status_ = std::move(status);
  if (const std::optional<Waiter> waiter = rendezvous_.Finish()) Deliver(*waiter);
}

void Operation::Await(Waiter waiter) {
  if (const std::optional<Waiter> now = rendezvous_.Await(std::move(waiter))) Deliver(*now);
}

absl::Status Operation::Join(void* stream) const {
  tfc_error error = EmptyError();
  if (tfc_device_join(communicator_.get(), ticket_, stream, &error) != TFC_OK) return ToStatus(error);
  return absl::OkStatus();
}

void Operation::Abandon(void* stream) {
  if (status_.ok() && communicator_ != nullptr) (void)Join(stream);
  pairs_.clear();
}

void Operation::Deliver(const Waiter& waiter) {
  absl::Status status = status_;
  if (status.ok()) status = Join(StreamOf(waiter.context));
  if (status.ok() && waiter.gives_outputs) status = GiveOutputs(waiter.context);
  pairs_.clear();
  communicator_.reset();
  if (!status.ok()) waiter.context->SetStatus(status);
  waiter.done();
}

absl::Status Operation::GiveOutputs(OpKernelContext* context) const {
  if (context->num_outputs() != static_cast<int>(pairs_.size()))
    return absl::InvalidArgumentError("the bucket was started with " + std::to_string(pairs_.size()) +
                                      " tensors, but " + std::to_string(context->num_outputs()) + " are asked for");
  for (size_t i = 0; i < pairs_.size(); ++i) {
    const auto index = static_cast<int>(i);
    if (context->expected_output_dtype(index) != pairs_[i].output.dtype())
      return absl::InvalidArgumentError("the bucket was started with tensors of another type than is asked for");
    context->set_output(index, pairs_[i].output);
  }
  return absl::OkStatus();
}

}  // namespace tfc_tf::gpu
