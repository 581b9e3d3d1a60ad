// The op by which a rank says that it has no more data.
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "tf_common/communicator.h"
#include "tf_ops/async_done.h"
#include "tf_ops/kernel_registration.h"
#include "tf_ops/registration.h"
#include "tf_ops/tensors.h"

namespace tfc_tf::ops {
namespace {

class JoinKernel {
 public:
  explicit JoinKernel(AttributeReader& reader)
      : process_set_id_(reader.Int("process_set_id")), timeout_s_(reader.Float("timeout")) {}

  // tfc_join blocks for as long as the others have data, and works meanwhile: on a thread of its own, so that
  // TensorFlow's stay free.
  void Compute(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) const {
    const AsyncDone ended(done);
    tfc_error failure = EmptyError();
    Communicator communicator = AcquireCommunicator(process_set_id_, &failure);
    OpError error = OpError::From(failure);
    if (communicator != nullptr) {
      try {
        std::thread(&JoinKernel::Run, std::move(communicator), timeout_s_, context, ended).detach();
        return;
      } catch (const std::exception& exception) {
        error = OpError{TFC_RESOURCE_EXHAUSTED, -1, std::string("no thread for join: ") + exception.what()};
      }
    }
    End(error, context, ended);
  }

 private:
  static void Run(Communicator communicator, double timeout_s, TF_OpKernelContext* context, const AsyncDone& ended) {
    tfc_error failure = EmptyError();
    int32_t last = 0;
    OpError error;
    if (tfc_join(communicator.get(), timeout_s, &last, &failure) != TFC_OK) error = OpError::From(failure);
    communicator.reset();
    Tensor output;
    if (error.ok()) error = AllocateOutput(context, 0, TF_INT32, {}, &output);
    if (error.ok()) *static_cast<int32_t*>(DataOf(output.get())) = last;
    output.reset();
    End(error, context, ended);
  }

  static void End(const OpError& error, TF_OpKernelContext* context, const AsyncDone& ended) {
    if (!error.ok()) TF_OpKernelContext_Failure(context, ToTfStatus(error).get());
    ended();
  }

  const int32_t process_set_id_;
  const double timeout_s_;
};

}  // namespace

std::string RegisterJoinKernel() { return RegisterAsyncKernel<JoinKernel>("TfcollectiveJoin"); }

}  // namespace tfc_tf::ops
