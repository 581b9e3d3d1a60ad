// One collective on tensors of a GPU, from the kernel that begins it to the one that gives its results.
#ifndef TFCOLLECTIVE_TF_GPU_OPERATION_H_
#define TFCOLLECTIVE_TF_GPU_OPERATION_H_

#include <tensorflow/core/framework/op_kernel.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tfcollective/tfcollective.h"

namespace tfc_gpu {

using tensorflow::AsyncOpKernel;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// What is asked for; fixed when the kernel is made.
struct Wish {
  int32_t collective = TFC_ALLREDUCE;
  int32_t op = TFC_SUM;
  int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  float timeout_s = 0.0f;
  int32_t process_set_id = 0;
  std::string name;
  uint64_t agreement = 0;  // what else the ranks must agree on, as a number
};

struct TensorPair {
  Tensor input;
  Tensor output;
};

// Who wants the results: a kernel that TensorFlow has not been told the end of.
struct Waiter {
  OpKernelContext* context = nullptr;
  AsyncOpKernel::DoneCallback done;
  bool gives_outputs = true;  // false: the outputs are the context's own already
};

// The library launches it and a kernel awaits it, in either order and from different threads; whoever comes second
// makes TensorFlow's stream wait for it (not the host) and gives the results.
class Operation : public std::enable_shared_from_this<Operation> {
 public:
  explicit Operation(std::vector<TensorPair> pairs) : pairs_(std::move(pairs)) {}

  // Hands the operation over, after what `stream` holds so far. `agreement` (may be NULL) is that for people.
  absl::Status Start(const Wish& wish, const char* agreement, void* stream);
  // Once. Never blocks.
  void Await(Waiter waiter);
  // On the GPU, or given up.
  bool launched() const;
  // Nobody will await it: what is given to `stream` from now on may use its memory again.
  void Abandon(void* stream);

 private:
  struct Release {
    void operator()(tfc_communicator* communicator) const { tfc_communicator_release(communicator); }
  };

  static void OnLaunched(void* user, const tfc_error* error);
  void Finish(absl::Status status);
  absl::Status Join(void* stream) const;
  void Deliver(const Waiter& waiter);
  absl::Status GiveOutputs(OpKernelContext* context) const;

  mutable std::mutex mutex_;
  bool launched_ = false;
  absl::Status status_;
  std::optional<Waiter> waiter_;
  // The allocator of a GPU goes by its stream: what a tensor had may be given away as soon as the tensor is gone, for
  // work that comes later on that stream. So the tensors stay until the stream waits for the operation.
  std::vector<TensorPair> pairs_;
  std::unique_ptr<tfc_communicator, Release> communicator_;  // the one that the ticket is of
  uint64_t ticket_ = 0;
};

absl::Status ToStatus(const tfc_error& error);
// The tfc_dtype; -1: none that is reduced on GPUs.
int32_t TfcDtypeOf(tensorflow::DataType type);

}  // namespace tfc_gpu

#endif  // TFCOLLECTIVE_TF_GPU_OPERATION_H_
