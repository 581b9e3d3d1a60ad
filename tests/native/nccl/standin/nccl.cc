// Ranks meet in a file of shared memory that the unique id names. An operation is work of the CUDA stand-in's stream:
// each rank writes what it brings into its slot, waits for the others, and reads theirs. Ranks that ask for different
// things wait forever, as with NCCL, until the communicator is aborted.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/nccl/nccl_api.h"
#include "per_thread.h"
#include "standin.h"

using tfc::CUstream;
using tfc::ncclComm_t;
using tfc::ncclConfig_t;
using tfc::ncclDataType_t;
using tfc::ncclRedOp_t;
using tfc::ncclResult_t;
using tfc::ncclUniqueId;

namespace {

constexpr size_t kSlotBytes = size_t{8} << 20;
constexpr int kMaxRanks = 16;
constexpr int kFirstOwnOp = 100;
constexpr long kUsualBlocks = 32;
constexpr ncclResult_t kSystemError = 2;
constexpr ncclResult_t kInvalidUsage = 5;

struct Meta {
  int kind = 0;
  uint64_t count = 0;
  int type = 0;
  int op = 0;
  int root = 0;
  bool operator==(const Meta& other) const {
    return kind == other.kind && count == other.count && type == other.type && op == other.op && root == other.root;
  }
};

struct Slot {
  std::atomic<uint64_t> posted;
  std::atomic<uint64_t> done;
  Meta meta;
  uint64_t offsets[kMaxRanks + 1];  // of an exchange: what goes to whom
  alignas(64) std::byte data[kSlotBytes];
};

struct Shared {
  std::atomic<int> attached;
  std::atomic<int> launched;  // ranks that have given their first operation
  Slot slots[kMaxRanks];
};

enum Kind { kAllReduce = 1, kReduce, kReduceScatter, kAllGather, kBroadcast, kExchange };

struct Part {
  int peer = 0;
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  size_t bytes = 0;
};

struct Call {
  ncclComm_t comm = nullptr;
  CUstream stream = nullptr;
  Meta meta;
  double factor = 1.0;
  const std::byte* send = nullptr;
  std::byte* receive = nullptr;
  std::vector<Part> parts;  // of an exchange
};

struct Group {
  int depth = 0;
  std::vector<Call> calls;
};

Group& MyGroup() { return OfThisThread<Group>(); }

}  // namespace

namespace tfc {
struct ncclComm {
  int rank = 0;
  int size = 1;
  long blocks = 0;  // of its kernels
  Shared* shared = nullptr;
  uint64_t sequence = 0;
  std::atomic<bool> aborted{false};
  std::atomic<int> queued{0};
  std::atomic<long> busy{0};
  bool connected = false;
  bool launched = false;
  std::vector<std::function<void()>> in_background;  // comes to the streams when it is no longer busy
  std::vector<double> factors;
};
}  // namespace tfc

namespace {

ncclResult_t Result(const char* symbol) {
  standin_hangs(symbol);
  return standin_fails(symbol) ? static_cast<ncclResult_t>(standin_get("nccl_fail_with", kSystemError))
                               : tfc::kNcclSuccess;
}

size_t SizeOf(ncclDataType_t type) {
  static constexpr size_t kSizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kSizes[type];
}

float FromHalf(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const float value = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                      : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                      : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

uint16_t ToHalf(float value) {
  // Good for what tests use: numbers that a half can hold, and rounding towards zero of others.
  if (value == 0) return std::signbit(value) ? 0x8000 : 0;
  int exponent = 0;
  const float mantissa = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const uint16_t sign = value < 0 ? 0x8000 : 0;
  if (exponent > 16) return static_cast<uint16_t>(sign | 0x7c00);
  if (exponent < -13) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(mantissa, exponent + 24)));
  return static_cast<uint16_t>(sign | (exponent + 14) << 10 | (static_cast<int>(mantissa * 2048) & 1023));
}

template <typename T>
T Load(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void Store(std::byte* to, size_t i, T value) {
  std::memcpy(to + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
T Combine(int op, T a, T b) {
  if (op == tfc::kNcclProd) return static_cast<T>(a * b);
  if (op == tfc::kNcclMax) return std::max(a, b);
  if (op == tfc::kNcclMin) return std::min(a, b);
  return static_cast<T>(a + b);
}

// Elements [first, first + count) of all slots, combined, to `to`.
template <typename T, typename Get, typename Put>
void ReduceTyped(const Call& call, size_t first, size_t count, std::byte* to, Get get, Put put) {
  const Shared& shared = *call.comm->shared;
  const int size = call.comm->size;
  const int op = call.meta.op >= kFirstOwnOp ? tfc::kNcclSum : call.meta.op;
  for (size_t i = 0; i < count; ++i) {
    T sum = static_cast<T>(get(shared.slots[0].data, first + i) * static_cast<T>(call.factor));
    for (int rank = 1; rank < size; ++rank)
      sum = Combine(op, sum, static_cast<T>(get(shared.slots[rank].data, first + i) * static_cast<T>(call.factor)));
    put(to, i, op == tfc::kNcclAvg ? static_cast<T>(sum / static_cast<T>(size)) : sum);
  }
}

template <typename T>
void ReduceAs(const Call& call, size_t first, size_t count, std::byte* to) {
  ReduceTyped<T>(call, first, count, to, Load<T>, Store<T>);
}

// How many elements the kernel of one rank scales, as of NCCL before 2.29.7: it gives each block as many whole packs of
// 16 bytes as its share, rounded down, takes, and leaves out the rest.
size_t ScaledAlone(size_t count, size_t element) {
  const size_t blocks = std::min<size_t>(32, (count * element + (16 << 10) - 1) / (16 << 10));
  const size_t pack = 16 / element;
  return blocks == 0 ? 0 : std::min(count, blocks * ((count / blocks + pack - 1) / pack * pack));
}

void Reduce(const Call& call, size_t first, size_t count, std::byte* to) {
  if (call.comm->size == 1 && (call.meta.op >= kFirstOwnOp || call.meta.op == tfc::kNcclAvg))
    count = ScaledAlone(count, SizeOf(call.meta.type));
  switch (call.meta.type) {
    case tfc::kNcclInt8:
      return ReduceAs<int8_t>(call, first, count, to);
    case tfc::kNcclUint8:
      return ReduceAs<uint8_t>(call, first, count, to);
    case tfc::kNcclInt32:
      return ReduceAs<int32_t>(call, first, count, to);
    case tfc::kNcclUint32:
      return ReduceAs<uint32_t>(call, first, count, to);
    case tfc::kNcclInt64:
      return ReduceAs<int64_t>(call, first, count, to);
    case tfc::kNcclUint64:
      return ReduceAs<uint64_t>(call, first, count, to);
    case tfc::kNcclFloat32:
      return ReduceAs<float>(call, first, count, to);
    case tfc::kNcclFloat64:
      return ReduceAs<double>(call, first, count, to);
    case tfc::kNcclFloat16:
      return ReduceTyped<float>(
          call, first, count, to, [](const std::byte* from, size_t i) { return FromHalf(Load<uint16_t>(from, i)); },
          [](std::byte* at, size_t i, float value) { Store<uint16_t>(at, i, ToHalf(value)); });
    default:
      return ReduceTyped<float>(
          call, first, count, to,
          [](const std::byte* from, size_t i) {
            const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(from, i)) << 16;
            float value = 0;
            std::memcpy(&value, &bits, sizeof(value));
            return value;
          },
          [](std::byte* at, size_t i, float value) {
            uint32_t bits = 0;
            std::memcpy(&bits, &value, sizeof(bits));
            Store<uint16_t>(at, i, static_cast<uint16_t>(bits >> 16));
          });
  }
}

// False once the communicator is aborted. Polls: the ranks share no more than memory.
template <typename Condition>
bool WaitFor(const tfc::ncclComm& comm, Condition condition) {
  while (!condition()) {
    if (comm.aborted) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

bool AllAt(const tfc::ncclComm& comm, std::atomic<uint64_t> Slot::* counter, uint64_t sequence) {
  for (int rank = 0; rank < comm.size; ++rank)
    if ((comm.shared->slots[rank].*counter).load() < sequence) return false;
  return true;
}

void Bring(const Call& call, Slot* mine) {
  const size_t element = SizeOf(call.meta.type);
  const auto size = static_cast<size_t>(call.comm->size);
  mine->meta = call.meta;
  size_t bytes = call.meta.count * element;
  if (call.meta.kind == kReduceScatter) bytes *= size;
  if (call.meta.kind == kExchange) {
    bytes = 0;
    for (size_t rank = 0; rank < size; ++rank) {
      mine->offsets[rank] = bytes;
      for (const Part& part : call.parts) {
        if (part.send == nullptr || part.peer != static_cast<int>(rank)) continue;
        std::memcpy(mine->data + bytes, part.send, part.bytes);
        bytes += part.bytes;
      }
    }
    mine->offsets[size] = bytes;
  } else if (call.meta.kind != kBroadcast || call.meta.root == call.comm->rank) {
    std::memcpy(mine->data, call.send, bytes);
  }
}

void Fetch(const Call& call) {
  const tfc::ncclComm& comm = *call.comm;
  const size_t count = call.meta.count;
  const size_t bytes = count * SizeOf(call.meta.type);
  const auto me = static_cast<size_t>(comm.rank);
  switch (call.meta.kind) {
    case kAllReduce:
      return Reduce(call, 0, count, call.receive);
    case kReduce:
      return call.meta.root == comm.rank ? Reduce(call, 0, count, call.receive) : void();
    case kReduceScatter:
      return Reduce(call, me * count, count, call.receive);
    case kBroadcast:
      std::memcpy(call.receive, comm.shared->slots[call.meta.root].data, bytes);
      return;
    case kAllGather:
      for (int rank = 0; rank < comm.size; ++rank)
        std::memcpy(call.receive + static_cast<size_t>(rank) * bytes, comm.shared->slots[rank].data, bytes);
      return;
    default:
      for (const Part& part : call.parts)
        if (part.receive != nullptr) {
          const Slot& from = comm.shared->slots[part.peer];
          std::memcpy(part.receive, from.data + from.offsets[me], part.bytes);
        }
  }
}

// The place of one kernel on the GPU of its rank. It waits there for the other ranks', and so does what finds no room.
class Place {
 public:
  explicit Place(const tfc::ncclComm& comm) : running_(Running(comm.rank)) {
    const long room = standin_get("multiprocessors", 0);
    if (room == 0) return;
    const auto take = [&] {
      long now = running_.load();
      return now + comm.blocks <= room && running_.compare_exchange_strong(now, now + comm.blocks);
    };
    if (WaitFor(comm, take)) blocks_ = comm.blocks;
  }
  ~Place() { running_.fetch_sub(blocks_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  static std::atomic<long>& Running(int rank) {
    static std::atomic<long> running[kMaxRanks];
    return running[rank];
  }

  std::atomic<long>& running_;
  long blocks_ = 0;
};

void Perform(const Call& call) {
  tfc::ncclComm& comm = *call.comm;
  const Place place(comm);
  const uint64_t sequence = ++comm.sequence;
  Slot* mine = &comm.shared->slots[comm.rank];
  const long delay = standin_get("delay_us", 0);
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  if (!WaitFor(comm, [&] { return AllAt(comm, &Slot::done, sequence - 1); })) return;
  Bring(call, mine);
  mine->posted.store(sequence);
  const auto agree = [&] {
    for (int rank = 0; rank < comm.size; ++rank) {
      const Slot& slot = comm.shared->slots[rank];
      if (slot.posted.load() < sequence || !(slot.meta == call.meta)) return false;
    }
    return true;
  };
  if (!WaitFor(comm, agree)) return;
  Fetch(call);
  mine->done.store(sequence);
}

void GiveToStream(const Call& call) {
  call.comm->queued.fetch_add(1);
  cuLaunchHostFunc(
      call.stream,
      [](void* user) {
        const std::unique_ptr<Call> mine(static_cast<Call*>(user));
        if (!mine->comm->aborted) Perform(*mine);
        mine->comm->queued.fetch_sub(1);
      },
      new Call(call));
}

// As NCCL, which goes on in the background: the stream gets the operation once it is said to be settled.
void Enqueue(const Call& call) {
  tfc::ncclComm& comm = *call.comm;
  comm.busy.store(standin_get("busy", 1));
  if (!std::exchange(comm.launched, true)) comm.shared->launched.fetch_add(1);
  comm.in_background.emplace_back([call] { GiveToStream(call); });
}

// Whether it has nothing more to do in the background.
bool Settles(tfc::ncclComm* comm) {
  if (comm->busy.load() > 0) {
    comm->busy.fetch_sub(1);
    return false;
  }
  const bool waits = standin_get("lazy", 0) != 0 && !comm->in_background.empty();
  if (waits && comm->shared->launched.load() < comm->size) return false;
  for (const auto& give : std::exchange(comm->in_background, {})) give();
  return true;
}

ncclResult_t Flush() {
  ncclResult_t result = tfc::kNcclSuccess;
  std::vector<Call> calls = std::exchange(MyGroup().calls, {});
  Call exchange;
  for (Call& call : calls) {
    result = tfc::kNcclInProgress;
    if (call.meta.kind != kExchange) {
      Enqueue(std::move(call));
      continue;
    }
    exchange.comm = call.comm;
    exchange.stream = call.stream;
    exchange.meta.kind = kExchange;
    exchange.parts.push_back(call.parts[0]);
  }
  if (exchange.comm != nullptr) Enqueue(std::move(exchange));
  return result;
}

ncclResult_t Add(const char* symbol, Call call, int kind, size_t count, ncclDataType_t type, int op, int root) {
  const ncclResult_t result = Result(symbol);
  if (result != tfc::kNcclSuccess) return result;
  if (!call.comm->connected || !call.comm->in_background.empty()) return kInvalidUsage;
  call.meta = Meta{kind, count, type, op, root};
  if (op >= kFirstOwnOp) {
    call.factor = call.comm->factors[static_cast<size_t>(op - kFirstOwnOp)];
    call.meta.op = kFirstOwnOp;  // its number is each rank's own affair
  }
  if (count * SizeOf(type) * (kind == kReduceScatter ? static_cast<size_t>(call.comm->size) : 1) > kSlotBytes)
    return kInvalidUsage;
  Group& group = MyGroup();
  group.calls.push_back(call);
  return group.depth > 0 ? tfc::kNcclSuccess : Flush();
}

Call On(ncclComm_t comm, CUstream stream, const void* send, void* receive) {
  Call call;
  call.comm = comm;
  call.stream = stream;
  call.send = static_cast<const std::byte*>(send);
  call.receive = static_cast<std::byte*>(receive);
  return call;
}

void Release(ncclComm_t comm) {
  ::munmap(comm->shared, sizeof(Shared));
  delete comm;
}

}  // namespace

STANDIN_EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = static_cast<int>(standin_get("version", 22703));
  return tfc::kNcclSuccess;
}

// The memory has no name that could outlive its processes: the others open it through its maker's descriptors.
STANDIN_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::mutex mutex;
  static std::deque<int> kept;  // the latest: earlier communicators have long been made, or never will be
  constexpr size_t kKept = 64;
  std::lock_guard<std::mutex> lock(mutex);
  std::memset(id->internal, 0, sizeof(id->internal));
  const int fd = ::memfd_create("standin", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, sizeof(Shared)) != 0) return kSystemError;
  std::snprintf(id->internal, sizeof(id->internal), "/proc/%d/fd/%d", static_cast<int>(::getpid()), fd);
  kept.push_back(fd);
  if (kept.size() > kKept) {
    ::close(kept.front());
    kept.pop_front();
  }
  return Result("ncclGetUniqueId");
}

STANDIN_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case 1:
      return "unhandled cuda error";
    case 2:
      return "unhandled system error";
    case 5:
      return "invalid usage";
    case 6:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

STANDIN_EXPORT const char* ncclGetLastError(ncclComm_t) { return "the stand-in was set to fail"; }

STANDIN_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* out, int size, ncclUniqueId id, int rank,
                                                   ncclConfig_t* config) {
  const ncclResult_t result = Result("ncclCommInitRankConfig");
  if (result != tfc::kNcclSuccess) return result;
  if (config->blocking != 0 || config->magic != 0xcafebeef || size > kMaxRanks) return kInvalidUsage;
  const int fd = ::open(id.internal, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kSystemError;
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) return kSystemError;
  auto* comm = new tfc::ncclComm();
  comm->rank = rank;
  comm->size = size;
  comm->blocks = config->max_ctas == tfc::kNcclConfigUndefined ? kUsualBlocks : config->max_ctas;
  comm->shared = static_cast<Shared*>(memory);
  comm->shared->attached.fetch_add(1);
  *out = comm;
  return tfc::kNcclInProgress;
}

STANDIN_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = static_cast<ncclResult_t>(standin_get("async_error", 0));
  if (*error != tfc::kNcclSuccess) return tfc::kNcclSuccess;
  if (!comm->connected) {
    if (comm->shared->attached.load() < comm->size) {
      *error = tfc::kNcclInProgress;
      return tfc::kNcclSuccess;
    }
    comm->connected = true;
  }
  if (!Settles(comm)) *error = tfc::kNcclInProgress;
  return Result("ncclCommGetAsyncError");
}

STANDIN_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return Result("ncclCommFinalize"); }

STANDIN_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  WaitFor(*comm, [&] { return comm->queued.load() == 0; });
  Release(comm);
  return Result("ncclCommDestroy");
}

STANDIN_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const ncclResult_t result = Result("ncclCommAbort");
  comm->aborted = true;
  while (comm->queued.load() > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
  Release(comm);
  return result;
}

STANDIN_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, int,
                                                     ncclComm_t comm) {
  double factor = 0;
  const auto* bytes = static_cast<const std::byte*>(scalar);
  if (type == tfc::kNcclFloat64) factor = Load<double>(bytes, 0);
  if (type == tfc::kNcclFloat32) factor = Load<float>(bytes, 0);
  if (type == tfc::kNcclFloat16) factor = FromHalf(Load<uint16_t>(bytes, 0));
  if (type == tfc::kNcclBfloat16) {
    const uint32_t bits = static_cast<uint32_t>(Load<uint16_t>(bytes, 0)) << 16;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    factor = value;
  }
  comm->factors.push_back(factor);
  *op = kFirstOwnOp + static_cast<int>(comm->factors.size()) - 1;
  return Result("ncclRedOpCreatePreMulSum");
}

STANDIN_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t, ncclComm_t) { return Result("ncclRedOpDestroy"); }

STANDIN_EXPORT ncclResult_t ncclGroupStart() {
  ++MyGroup().depth;
  return Result("ncclGroupStart");
}

STANDIN_EXPORT ncclResult_t ncclGroupEnd() {
  const ncclResult_t result = Result("ncclGroupEnd");
  if (--MyGroup().depth > 0) return result;
  const ncclResult_t flushed = Flush();
  return result == tfc::kNcclSuccess ? flushed : result;
}

STANDIN_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                          ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  return Add("ncclAllReduce", On(comm, stream, send, receive), kAllReduce, count, type, op, 0);
}

STANDIN_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type,
                                       ncclRedOp_t op, int root, ncclComm_t comm, CUstream stream) {
  return Add("ncclReduce", On(comm, stream, send, receive), kReduce, count, type, op, root);
}

STANDIN_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type,
                                              ncclRedOp_t op, ncclComm_t comm, CUstream stream) {
  return Add("ncclReduceScatter", On(comm, stream, send, receive), kReduceScatter, count, type, op, 0);
}

STANDIN_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type,
                                          ncclComm_t comm, CUstream stream) {
  return Add("ncclAllGather", On(comm, stream, send, receive), kAllGather, count, type, 0, 0);
}

STANDIN_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                                          ncclComm_t comm, CUstream stream) {
  return Add("ncclBroadcast", On(comm, stream, send, receive), kBroadcast, count, type, 0, root);
}

STANDIN_EXPORT ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                     CUstream stream) {
  Call call = On(comm, stream, nullptr, nullptr);
  call.parts.push_back(Part{peer, static_cast<const std::byte*>(send), nullptr, count * SizeOf(type)});
  return Add("ncclSend", call, kExchange, 0, tfc::kNcclUint8, 0, 0);
}

STANDIN_EXPORT ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                     CUstream stream) {
  Call call = On(comm, stream, nullptr, nullptr);
  call.parts.push_back(Part{peer, nullptr, static_cast<std::byte*>(receive), count * SizeOf(type)});
  return Add("ncclRecv", call, kExchange, 0, tfc::kNcclUint8, 0, 0);
}
