// One operation as NCCL calls: which types and reductions NCCL has for it, and the calls themselves.
#ifndef TFCOLLECTIVE_DEVICE_NCCL_LAUNCH_H_
#define TFCOLLECTIVE_DEVICE_NCCL_LAUNCH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "communicator/operation.h"
#include "device/nccl/gpu.h"
#include "device/nccl/nccl_api.h"

namespace tfc {

// The way in which NCCL computes the result. Pure.
struct NcclReduction {
  ncclDataType_t type = kNcclUint8;
  ncclRedOp_t op = kNcclSum;
  bool premultiplied = false;  // by `factor`: an operation of its own has to be made
  double factor = 1.0;
};

// UNIMPLEMENTED where NCCL has no such type or reduction, or would average integers wrongly. Scales before and after
// are one factor, which NCCL applies to the inputs: sums and averages are linear.
Result<NcclReduction> ReductionOf(const Operation& operation, int world_size);

// The most blocks that each of `queues` NCCL communicators may take of this GPU, so that kernels of all of them find
// room at the same time: a kernel waits on the GPU for the other ranks, whose kernels may come in another order. 0: as
// many as NCCL takes. `most` (0: not set) is what the user allows. Pure.
int MaxBlocks(const GpuInfo& gpu, size_t queues, int most);

// The number of bytes that one rank scales at a time. NCCL before 2.29.7 deals the elements to one block for each 16
// KiB, at most 32, and leaves out what remains of that division (NVIDIA/nccl, issue 1950): of these parts nothing
// remains. Pure.
std::array<size_t, 3> PartsOfOneRank(size_t bytes);

// A factor in the form that NCCL takes: an element of that type in host memory, at most 8 bytes.
uint64_t ScalarOf(ncclDataType_t type, double factor);

// Memory on the GPU in which small tensors travel together. Made once, of one size: the driver may wait for all that
// the GPU does while it makes or frees memory, and what the GPU does may wait for peers that wait for us.
class PackedBuffer {
 public:
  static constexpr size_t kBytes = size_t{8} << 20;

  // RESOURCE_EXHAUSTED where the GPU has no memory left. The GPU current.
  static Result<std::unique_ptr<PackedBuffer>> Make(std::shared_ptr<Gpu> gpu);
  ~PackedBuffer();
  PackedBuffer(const PackedBuffer&) = delete;
  PackedBuffer& operator=(const PackedBuffer&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(memory_)); }

 private:
  PackedBuffer(std::shared_ptr<Gpu> gpu, CUdeviceptr memory) : gpu_(std::move(gpu)), memory_(memory) {}

  const std::shared_ptr<Gpu> gpu_;
  const CUdeviceptr memory_;
};

// One NCCL communicator and the stream that it works on. One thread only.
struct NcclStream {
  const NcclApi* api = nullptr;
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  int rank = 0;
  int size = 1;
};

// One operation on its way to an NCCL stream. NCCL goes on in the background with what it is asked for; until it
// has settled nothing else may be asked of the communicator, and what is given to the stream could overtake it. Waits
// for nothing. What it is made of must outlive it.
class StreamLaunch {
 public:
  // `rows` as tells the allocation of the result: rows from each rank, where ranks bring their own number.
  StreamLaunch(const NcclStream& stream, const Operation& operation, const std::vector<int64_t>& rows, Gpu* gpu,
               PackedBuffer* packed);
  ~StreamLaunch();
  StreamLaunch(const StreamLaunch&) = delete;
  StreamLaunch& operator=(const StreamLaunch&) = delete;

  Status Begin();
  // After NCCL has settled. False: the stream holds all of it; true: there was more, call again after that.
  Result<bool> Continue();

 private:
  class Parts;
  const std::unique_ptr<Parts> parts_;
};

// DEVICE (PEER_LOST where it is a peer's fault) with NCCL's own words. In progress is fine.
Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm, const std::string& what);

}  // namespace tfc

#endif  // TFCOLLECTIVE_DEVICE_NCCL_LAUNCH_H_
