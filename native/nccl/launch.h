// One operation as NCCL calls: which types and reductions NCCL has for it, and the calls themselves.
#ifndef TFCOLLECTIVE_NCCL_LAUNCH_H_
#define TFCOLLECTIVE_NCCL_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "communicator/operation.h"
#include "nccl/gpu.h"
#include "nccl/nccl_api.h"

namespace tfc {

// How NCCL is to compute. Pure.
struct NcclReduction {
  ncclDataType_t type = kNcclUint8;
  ncclRedOp_t op = kNcclSum;
  bool premultiplied = false;  // by `factor`: an operation of its own has to be made
  double factor = 1.0;
};

// UNIMPLEMENTED where NCCL has no such type or reduction. Scales before and after are one factor, which NCCL applies
// to the inputs: sums and averages are linear.
Result<NcclReduction> ReductionOf(const Operation& operation, int world_size);

// What NCCL wants to be given for a factor: an element of that type in host memory, at most 8 bytes.
uint64_t ScalarOf(ncclDataType_t type, double factor);

// Returns when no collective of this process is under way any more, or why it gave up waiting.
using Drain = std::function<Status()>;

// Memory on the GPU in which small tensors travel together.
class PackedBuffer {
 public:
  explicit PackedBuffer(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {}
  ~PackedBuffer();
  PackedBuffer(const PackedBuffer&) = delete;
  PackedBuffer& operator=(const PackedBuffer&) = delete;

  // At least `bytes`. RESOURCE_EXHAUSTED where the GPU has none left. The GPU current. The driver may wait for all
  // that the GPU does while it makes or frees memory, so nothing that waits for a peer may be under way then:
  // `drain` is called before and sees to it.
  Result<std::byte*> Reserve(size_t bytes, const Drain& drain);

 private:
  const std::shared_ptr<Gpu> gpu_;
  CUdeviceptr memory_ = 0;
  size_t size_ = 0;
};

// One NCCL communicator and the stream that it works on. One thread only.
struct NcclChannel {
  const NcclApi* nccl = nullptr;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  int rank = 0;
  int size = 1;
};

// Puts the operation on the stream. `rows` as tells the allocation of the result: rows from each rank, where ranks
// bring their own number. Does not wait; what NCCL still has to do in the background its caller waits for.
Status Launch(const NcclChannel& channel, const Operation& operation, const std::vector<int64_t>& rows, Gpu* gpu,
              PackedBuffer* packed, const Drain& drain);

// DEVICE (PEER_LOST where it is a peer's fault) with NCCL's own words. In progress is fine.
Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm, const std::string& what);

}  // namespace tfc

#endif  // TFCOLLECTIVE_NCCL_LAUNCH_H_
