#include "device/nccl/launch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

namespace tfc {
namespace {

// Below it a copy on the GPU costs less than a part of its own in the group.
constexpr size_t kSmallBytes = size_t{256} << 10;

Status Unsupported(const Operation& operation, const std::string& what) {
  return Status(Code::kUnimplemented, operation.Title() + " on GPUs: " + what);
}

// -1: NCCL has none.
ncclDataType_t TypeOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat16:
      return kNcclFloat16;
    case Dtype::kBfloat16:
      return kNcclBfloat16;
    case Dtype::kFloat32:
      return kNcclFloat32;
    case Dtype::kFloat64:
      return kNcclFloat64;
    case Dtype::kInt8:
      return kNcclInt8;
    case Dtype::kInt32:
      return kNcclInt32;
    case Dtype::kInt64:
      return kNcclInt64;
    case Dtype::kUint8:
    case Dtype::kBool:
      return kNcclUint8;
    case Dtype::kUint32:
      return kNcclUint32;
    case Dtype::kUint64:
      return kNcclUint64;
    default:
      return -1;
  }
}

Result<ncclRedOp_t> RedOpOf(const Operation& operation) {
  const bool is_bool = operation.dtype == Dtype::kBool;
  switch (operation.op) {
    case Op::kSum:
      return is_bool ? kNcclMax : kNcclSum;
    case Op::kProduct:
      return is_bool ? kNcclMin : kNcclProd;
    case Op::kMin:
      return kNcclMin;
    case Op::kMax:
      return kNcclMax;
    case Op::kAverage:
      if (is_bool) return Unsupported(operation, "bool values cannot be averaged");
      if (!IsFloating(operation.dtype) && DtypeSize(operation.dtype) < sizeof(int64_t))
        return Unsupported(operation, std::string("NCCL adds ") + DtypeName(operation.dtype) +
                                          " up in that type, which may wrap: average 64-bit integers or floats");
      return kNcclAvg;
  }
  return Unsupported(operation, "unknown reduction");
}

// The upper bits of a float, rounded to the nearest even: bfloat16.
uint16_t Bfloat16Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// IEEE 754 binary16, rounded to the nearest even.
uint16_t Float16Bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);  // 65536 and more: infinite
  if (magnitude < 0x38800000) {  // below the smallest normal number: in units of 2^-24
    float positive = 0;
    std::memcpy(&positive, &magnitude, sizeof(positive));
    const float shifted = positive * 16777216.0f + 8388608.0f;  // adding 2^23 rounds to whole units
    uint32_t rounded = 0;
    std::memcpy(&rounded, &shifted, sizeof(rounded));
    return static_cast<uint16_t>(sign | (rounded & 0x7fff));
  }
  const uint32_t rounded = magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

std::string Named(const char* call, const Operation& operation) { return operation.Title() + ": " + call; }

// Calls inside become one launch. What is begun is ended, whatever happens in between.
template <typename Body>
Status Grouped(const NcclStream& stream, const Operation& operation, Body body) {
  TFC_RETURN_IF_ERROR(NcclStatus(*stream.api, stream.api->ncclGroupStart(), stream.comm, "ncclGroupStart"));
  const Status inside = body();
  const ncclResult_t ended = stream.api->ncclGroupEnd();
  if (!inside.ok()) return inside;
  return NcclStatus(*stream.api, ended, stream.comm, Named("ncclGroupEnd", operation));
}

// The operation that NCCL is asked for, made where it is none of its own.
class ReductionHandle {
 public:
  explicit ReductionHandle(const NcclStream& stream) : stream_(stream) {}
  ~ReductionHandle() {
    if (made_) stream_.api->ncclRedOpDestroy(op_, stream_.comm);
  }
  ReductionHandle(const ReductionHandle&) = delete;
  ReductionHandle& operator=(const ReductionHandle&) = delete;

  Status Make(const NcclReduction& reduction) {
    op_ = reduction.op;
    if (!reduction.premultiplied) return Status::Ok();
    uint64_t scalar = ScalarOf(reduction.type, reduction.factor);
    TFC_RETURN_IF_ERROR(NcclStatus(
        *stream_.api,
        stream_.api->ncclRedOpCreatePreMulSum(&op_, &scalar, reduction.type, kNcclScalarHostImmediate, stream_.comm),
        stream_.comm, "ncclRedOpCreatePreMulSum"));
    made_ = true;
    return Status::Ok();
  }
  ncclRedOp_t op() const { return op_; }

 private:
  const NcclStream& stream_;
  ncclRedOp_t op_ = kNcclSum;
  bool made_ = false;
};

// Small tensors that travel together: their places in the operation.
struct Batch {
  std::vector<size_t> pieces;
  size_t bytes = 0;
};

CUdeviceptr Address(const void* pointer) { return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(pointer)); }

}  // namespace

class StreamLaunch::Parts {
 public:
  Parts(const NcclStream& stream, const Operation& operation, const std::vector<int64_t>& rows, Gpu* gpu,
        PackedBuffer* packed)
      : stream_(stream), operation_(operation), rows_(rows), gpu_(gpu), packed_(packed), reduction_(stream) {}

  Status Begin() {
    const bool nothing_in = TotalSize(operation_.input) == 0;
    const bool nothing_out = std::accumulate(rows_.begin(), rows_.end(), int64_t{0}) == 0 || operation_.RowBytes() == 0;
    if (nothing_in && nothing_out) return Status::Ok();
    switch (operation_.collective) {
      case Collective::kAllReduce:
        return AllReduce();
      case Collective::kReduceScatter:
        return ReduceScatter();
      case Collective::kAllGather:
        return AllGather(rows_);
      case Collective::kBroadcast:
        return Broadcast();
      case Collective::kAllToAll:
        return AllToAll(rows_);
      case Collective::kBarrier:
        break;
    }
    return Unsupported(operation_, "a barrier is between processes: call it without a device");
  }

  Result<bool> Continue() {
    if (batch_ >= batches_.size()) return false;
    TFC_RETURN_IF_ERROR(Unpack(batches_[batch_]));
    if (++batch_ == batches_.size()) return false;
    TFC_RETURN_IF_ERROR(Pack(batches_[batch_]));
    TFC_RETURN_IF_ERROR(Grouped(stream_, operation_, [&] { return ReducePacked(); }));
    return true;
  }

 private:
  // The small tensors, as many at a time as there is room for, beside the large ones.
  Status AllReduce() {
    TFC_RETURN_IF_ERROR(Prepare());
    std::vector<size_t> large;
    DealBatches(&large);
    if (!batches_.empty()) TFC_RETURN_IF_ERROR(Pack(batches_[0]));
    return Grouped(stream_, operation_, [&] {
      TFC_RETURN_IF_ERROR(ReducePacked());
      for (const size_t i : large)
        TFC_RETURN_IF_ERROR(ReduceOne(operation_.input[i].data, operation_.output[i].data, operation_.input[i].size));
      return Status::Ok();
    });
  }

  void DealBatches(std::vector<size_t>* large) {
    std::vector<size_t> small;
    for (size_t i = 0; i < operation_.input.size(); ++i)
      if (operation_.input[i].size > 0) (operation_.input[i].size < kSmallBytes ? &small : large)->push_back(i);
    if (small.size() == 1) large->push_back(small[0]);  // nothing to pack it with
    if (small.size() <= 1) return;
    for (const size_t i : small) {
      if (batches_.empty() || batches_.back().bytes + operation_.input[i].size > PackedBuffer::kBytes)
        batches_.emplace_back();
      batches_.back().pieces.push_back(i);
      batches_.back().bytes += operation_.input[i].size;
    }
  }

  Status ReduceScatter() {
    TFC_RETURN_IF_ERROR(Prepare());
    if (stream_.size == 1) {
      const size_t bytes = operation_.input[0].size;
      return Grouped(stream_, operation_, [&] { return ReduceOne(Input(0), Output(), bytes); });
    }
    const auto offsets = DealRows(operation_.rows(), stream_.size);
    const size_t row = operation_.RowBytes();
    if (operation_.rows() % stream_.size == 0) {
      const size_t count = static_cast<size_t>(offsets[1]) * row / element();
      return Check(stream_.api->ncclReduceScatter(Input(0), Output(), count, type_, reduction_.op(), stream_.comm,
                                                  stream_.stream),
                   "ncclReduceScatter");
    }
    return Grouped(stream_, operation_, [&] {
      for (int rank = 0; rank < stream_.size; ++rank) {
        const auto first = static_cast<size_t>(offsets[static_cast<size_t>(rank)]);
        const auto last = static_cast<size_t>(offsets[static_cast<size_t>(rank) + 1]);
        if (last == first) continue;
        TFC_RETURN_IF_ERROR(
            Check(stream_.api->ncclReduce(Input(first * row), Output(), (last - first) * row / element(), type_,
                                          reduction_.op(), rank, stream_.comm, stream_.stream),
                  "ncclReduce"));
      }
      return Status::Ok();
    });
  }

  Status Broadcast() {
    return Grouped(stream_, operation_, [&] {
      for (size_t i = 0; i < operation_.input.size(); ++i)
        TFC_RETURN_IF_ERROR(BroadcastBytes(operation_.input[i].data, operation_.output[i].data,
                                           operation_.input[i].size, operation_.root));
      return Status::Ok();
    });
  }

  Status AllGather(const std::vector<int64_t>& rows) {
    const size_t row = operation_.RowBytes();
    if (std::all_of(rows.begin(), rows.end(), [&](int64_t count) { return count == rows[0]; })) {
      return Check(stream_.api->ncclAllGather(Input(0), Output(), static_cast<size_t>(rows[0]) * row, kNcclUint8,
                                              stream_.comm, stream_.stream),
                   "ncclAllGather");
    }
    return Grouped(stream_, operation_, [&] {
      std::byte* to = Output();
      for (int rank = 0; rank < stream_.size; ++rank) {
        const size_t bytes = static_cast<size_t>(rows[static_cast<size_t>(rank)]) * row;
        TFC_RETURN_IF_ERROR(BroadcastBytes(Input(0), to, bytes, rank));
        to += bytes;
      }
      return Status::Ok();
    });
  }

  Status AllToAll(const std::vector<int64_t>& rows) {
    const size_t row = operation_.RowBytes();
    return Grouped(stream_, operation_, [&] {
      size_t sent = 0;
      size_t received = 0;
      for (int rank = 0; rank < stream_.size; ++rank) {
        const size_t out = RowsFor(rank) * row;
        const size_t in = static_cast<size_t>(rows[static_cast<size_t>(rank)]) * row;
        if (out > 0)
          TFC_RETURN_IF_ERROR(Check(
              stream_.api->ncclSend(Input(sent), out, kNcclUint8, rank, stream_.comm, stream_.stream), "ncclSend"));
        if (in > 0)
          TFC_RETURN_IF_ERROR(
              Check(stream_.api->ncclRecv(Output() + received, in, kNcclUint8, rank, stream_.comm, stream_.stream),
                    "ncclRecv"));
        sent += out;
        received += in;
      }
      return Status::Ok();
    });
  }

  Status Prepare() {
    auto reduction = ReductionOf(operation_, stream_.size);
    if (!reduction.ok()) return reduction.status();
    type_ = reduction.value().type;
    scaled_alone_ = stream_.size == 1 && reduction.value().premultiplied;
    return reduction_.Make(reduction.value());
  }

  Status ReducePacked() {
    if (batches_.empty()) return Status::Ok();
    return ReduceOne(packed_->data(), packed_->data(), batches_[batch_].bytes);
  }

  Status ReduceOne(const std::byte* from, std::byte* to, size_t bytes) {
    if (!scaled_alone_) return CallAllReduce(from, to, bytes);
    for (const size_t part : PartsOfOneRank(bytes)) {
      if (part > 0) TFC_RETURN_IF_ERROR(CallAllReduce(from, to, part));
      from += part;
      to += part;
    }
    return Status::Ok();
  }

  Status CallAllReduce(const std::byte* from, std::byte* to, size_t bytes) {
    return Check(
        stream_.api->ncclAllReduce(from, to, bytes / element(), type_, reduction_.op(), stream_.comm, stream_.stream),
        "ncclAllReduce");
  }

  Status BroadcastBytes(const std::byte* from, std::byte* to, size_t bytes, int root) {
    if (bytes == 0) return Status::Ok();
    // Only the root's input counts, and NCCL wants an address from everybody.
    return Check(stream_.api->ncclBroadcast(stream_.rank == root ? from : to, to, bytes, kNcclUint8, root, stream_.comm,
                                            stream_.stream),
                 "ncclBroadcast");
  }

  Status Pack(const Batch& batch) {
    std::byte* at = packed_->data();
    for (const size_t i : batch.pieces) {
      TFC_RETURN_IF_ERROR(Copy(operation_.input[i].data, at, operation_.input[i].size));
      at += operation_.input[i].size;
    }
    return Status::Ok();
  }

  Status Unpack(const Batch& batch) {
    const std::byte* at = packed_->data();
    for (const size_t i : batch.pieces) {
      TFC_RETURN_IF_ERROR(Copy(at, operation_.output[i].data, operation_.output[i].size));
      at += operation_.output[i].size;
    }
    return Status::Ok();
  }

  Status Copy(const std::byte* from, std::byte* to, size_t bytes) {
    return gpu_->Check(gpu_->api().cuMemcpyDtoDAsync(Address(to), Address(from), bytes, stream_.stream),
                       operation_.Title() + ": cuMemcpyDtoDAsync");
  }

  size_t RowsFor(int rank) const {
    if (operation_.splits.empty()) return static_cast<size_t>(operation_.rows() / stream_.size);
    return static_cast<size_t>(operation_.splits[static_cast<size_t>(rank)]);
  }

  size_t element() const { return DtypeSize(operation_.dtype); }
  const std::byte* Input(size_t offset) const {
    return operation_.input.empty() ? nullptr : operation_.input[0].data + offset;
  }
  std::byte* Output() const { return operation_.output.empty() ? nullptr : operation_.output[0].data; }
  Status Check(ncclResult_t result, const char* call) const {
    return result == kNcclSuccess ? Status::Ok()
                                  : NcclStatus(*stream_.api, result, stream_.comm, Named(call, operation_));
  }

  const NcclStream& stream_;
  const Operation& operation_;
  const std::vector<int64_t>& rows_;
  Gpu* gpu_;
  PackedBuffer* packed_;
  ReductionHandle reduction_;
  ncclDataType_t type_ = kNcclUint8;
  bool scaled_alone_ = false;  // by the kernel that NCCL has for one rank
  std::vector<Batch> batches_;
  size_t batch_ = 0;  // the one that is under way
};

StreamLaunch::StreamLaunch(const NcclStream& stream, const Operation& operation, const std::vector<int64_t>& rows,
                           Gpu* gpu, PackedBuffer* packed)
    : parts_(std::make_unique<Parts>(stream, operation, rows, gpu, packed)) {}

StreamLaunch::~StreamLaunch() = default;

Status StreamLaunch::Begin() { return parts_->Begin(); }

Result<bool> StreamLaunch::Continue() { return parts_->Continue(); }

namespace {

bool Integral(Dtype dtype) { return !IsFloating(dtype); }

}  // namespace

Result<NcclReduction> ReductionOf(const Operation& operation, int world_size) {
  NcclReduction reduction;
  reduction.type = TypeOf(operation.dtype);
  if (reduction.type < 0)
    return Unsupported(operation, std::string("NCCL cannot reduce ") + DtypeName(operation.dtype));
  auto op = RedOpOf(operation);
  if (!op.ok()) return op.status();
  reduction.op = op.value();
  if (reduction.op == kNcclAvg && world_size == 1) reduction.op = kNcclSum;  // a copy
  reduction.factor = operation.prescale * operation.postscale;
  if (reduction.factor == 1.0) return reduction;
  if (reduction.op != kNcclSum && reduction.op != kNcclAvg)
    return Unsupported(operation, std::string(OpName(operation.op)) + " with prescale or postscale");
  if (Integral(operation.dtype)) return Unsupported(operation, "integers with prescale or postscale");
  if (reduction.op == kNcclAvg) reduction.factor /= world_size;
  reduction.op = kNcclSum;
  reduction.premultiplied = true;
  return reduction;
}

int MaxBlocks(const GpuInfo& gpu, size_t queues, int most) {
  // A block of NCCL's needs one multiprocessor at most.
  const int share = gpu.multiprocessors > 0 ? std::max(1, gpu.multiprocessors / static_cast<int>(queues)) : 0;
  if (most <= 0 || share == 0) return std::max(most, share);
  return std::min(most, share);
}

std::array<size_t, 3> PartsOfOneRank(size_t bytes) {
  constexpr size_t kBlock = size_t{16} << 10;
  constexpr size_t kAllBlocks = 32 * kBlock;
  return {bytes - bytes % kAllBlocks, bytes % kAllBlocks - bytes % kBlock, bytes % kBlock};
}

uint64_t ScalarOf(ncclDataType_t type, double factor) {
  uint64_t scalar = 0;
  const auto single = static_cast<float>(factor);
  if (type == kNcclFloat64) {
    std::memcpy(&scalar, &factor, sizeof(factor));
  } else if (type == kNcclFloat32) {
    std::memcpy(&scalar, &single, sizeof(single));
  } else {
    const uint16_t half = type == kNcclFloat16 ? Float16Bits(single) : Bfloat16Bits(single);
    std::memcpy(&scalar, &half, sizeof(half));
  }
  return scalar;
}

Result<std::unique_ptr<PackedBuffer>> PackedBuffer::Make(std::shared_ptr<Gpu> gpu) {
  auto memory = gpu->Allocate(kBytes);
  if (!memory.ok()) return memory.status().WithContext("the buffer for small tensors");
  return std::unique_ptr<PackedBuffer>(new PackedBuffer(std::move(gpu), memory.value()));
}

PackedBuffer::~PackedBuffer() {
  const Gpu::Current current(*gpu_);
  gpu_->Free(memory_);
}

Status NcclStatus(const NcclApi& api, ncclResult_t result, ncclComm_t comm, const std::string& what) {
  if (result == kNcclSuccess || result == kNcclInProgress) return Status::Ok();
  std::string message = what + ": NCCL " + NcclVersionText(api.version) + ": " + api.ncclGetErrorString(result);
  const char* last = api.ncclGetLastError(comm);
  if (last != nullptr && *last != '\0') message += ": " + std::string(last);
  return Status(result == kNcclRemoteError ? Code::kPeerLost : Code::kDevice, message);
}

}  // namespace tfc
