// One execution of an asynchronous collective kernel, from compute to done.
#ifndef TFCOLLECTIVE_TF_OPS_CALL_H_
#define TFCOLLECTIVE_TF_OPS_CALL_H_

#include <memory>
#include <vector>

#include "tf_common/attributes.h"
#include "tf_ops/async_done.h"
#include "tf_ops/tensors.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::ops {

// Lives from compute until it has reported the end to TensorFlow; everything that the request points to
// lives in it. Never blocks.
class Call {
 public:
  Call(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) : context_(context), done_(done) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Prepares and submits `call`; ends it at once where that fails.
  static void Start(std::unique_ptr<Call> call, const CommonAttributes& attributes);

 protected:
  TF_OpKernelContext* context() const { return context_; }
  // Fills in request() and gets the tensors.
  virtual OpError Prepare(const tfc_communicator_info& info) = 0;
  // Runs after the collective has succeeded, before TensorFlow hears of it.
  virtual OpError Complete() { return OpError(); }
  // Drops the references of all tensors, so that later ops may reuse their memory.
  virtual void DropTensors() { pairs_.clear(); }

  // `collective` on pairs()[...], which hold the input (and where it has one, the output) tensors.
  void Describe(int32_t collective, TF_DataType type);
  void UseReduction(const ReductionAttributes& reduction);
  void UseShape(std::vector<int64_t> shape);  // of the one input, where rows matter

  tfc_request& request() { return request_; }
  std::vector<TensorPair>& pairs() { return pairs_; }
  std::vector<tfc_span>& spans() { return spans_; }

 private:
  static void OnDone(void* user, const tfc_error* error);
  OpError Submit(const CommonAttributes& attributes, std::unique_ptr<Call>* self);
  void End(OpError error);

  TF_OpKernelContext* const context_;
  const AsyncDone done_;
  tfc_request request_{};
  std::vector<TensorPair> pairs_;
  std::vector<tfc_span> spans_;
  std::vector<int64_t> shape_;
};

}  // namespace tfc_tf::ops

#endif  // TFCOLLECTIVE_TF_OPS_CALL_H_
