// One collective on tensors of a GPU, from the kernel that begins it to the one that gives its results.
#ifndef TFCOLLECTIVE_TF_GPU_OPERATION_H_
#define TFCOLLECTIVE_TF_GPU_OPERATION_H_

#include <tensorflow/core/framework/op_kernel.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tf_common/attributes.h"
#include "tf_common/buckets.h"
#include "tf_common/communicator.h"
#include "tfcollective/tfcollective.h"

namespace tfc_tf::gpu {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// The request; fixed when the kernel is made.
struct Request : CommonAttributes {
  int32_t collective = TFC_ALLREDUCE;
  int32_t root = 0;
  ReductionAttributes reduction;
  std::optional<BucketAttributes> bucket;  // what its plan says is not looked for elsewhere
};

struct TensorPair {
  Tensor input;
  Tensor output;
};

// The kernel that waits for the results.
struct Waiter {
  OpKernelContext* context = nullptr;
  AsyncOpKernel::DoneCallback done;
  bool gives_outputs = true;  // false: the outputs are the context's own already
};

// The library launches it and a kernel awaits it, in either order and from different threads; the second one makes
// TensorFlow's stream wait for it (not the host) and gives the results.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  explicit Operation(std::vector<TensorPair> pairs) : pairs_(std::move(pairs)) {}

  // Hands the operation over, after what `stream` holds so far.
  absl::Status Start(const Request& asked, void* stream);
  // Once. Never blocks.
  void Await(Waiter waiter);
  // On the GPU, or given up.
  bool finished() const { return rendezvous_.finished(); }
  // No kernel will await it: what is given to `stream` from now on may use its memory again.
  void Abandon(void* stream);

 private:
  static void OnLaunched(void* user, const tfc_error* error);
  void Finish(absl::Status status);
  absl::Status Join(void* stream) const;
  void Deliver(const Waiter& waiter);
  absl::Status GiveOutputs(OpKernelContext* context) const;

  Rendezvous<Waiter> rendezvous_;
  absl::Status status_;
  // The allocator of a GPU goes by its stream: what a tensor had may be given away as soon as the tensor is gone, for
  // work that comes later on that stream. So the tensors stay until the stream waits for the operation.
  std::vector<TensorPair> pairs_;
  Communicator communicator_;  // the one that the ticket is of
  uint64_t ticket_ = 0;
};

absl::Status ToStatus(const tfc_error& error);

}  // namespace tfc_tf::gpu

#endif  // TFCOLLECTIVE_TF_GPU_OPERATION_H_
