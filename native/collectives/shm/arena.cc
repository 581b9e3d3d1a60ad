#include "collectives/shm/arena.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "collectives/shm/arena_impl.h"
#include "collectives/shm/futex.h"

#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 0x0001
#define F_SEAL_SHRINK 0x0002
#define F_SEAL_GROW 0x0004
#endif

namespace tfc {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

size_t RoundUp(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

Status CheckShape(const ArenaShape& shape) {
  if (shape.local_size < 1 || shape.local_size > kMaxLocalSize) {
    return Status(Code::kInvalidArgument, "an arena takes 1 to " + std::to_string(kMaxLocalSize) +
                                              " local ranks, not " + std::to_string(shape.local_size));
  }
  if (shape.local_rank < 0 || shape.local_rank >= shape.local_size) {
    return Status(Code::kInvalidArgument, "local rank " + std::to_string(shape.local_rank) + " is not one of " +
                                              std::to_string(shape.local_size));
  }
  if (shape.channels < 1 || shape.channels > kMaxChannels) {
    return Status(Code::kInvalidArgument, "an arena has 1 to " + std::to_string(kMaxChannels) + " channels, not " +
                                              std::to_string(shape.channels));
  }
  return Status::Ok();
}

ArenaHeader HeaderOf(const ArenaShape& shape) {
  const ArenaLayout layout(shape);
  ArenaHeader header = {};
  header.magic = ArenaHeader::kMagic;
  header.local_size = static_cast<uint32_t>(shape.local_size);
  header.channels = shape.channels;
  header.slots = static_cast<uint32_t>(ArenaLayout::kSlots);
  header.segment_size = static_cast<uint32_t>(ArenaLayout::kSegmentSize);
  header.total_size = layout.total_size;
  return header;
}

// A file that can neither shrink nor grow cannot make a peer's access fail (SIGBUS).
Result<UniqueFd> MakeSealedMemory(size_t size) {
  UniqueFd fd(static_cast<int>(syscall(SYS_memfd_create, "tfcollective", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd.valid()) return Status::FromErrno("memfd_create", errno);
  if (ftruncate(fd.get(), static_cast<off_t>(size)) != 0) return Status::FromErrno("ftruncate", errno);
  if (fcntl(fd.get(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return Status::FromErrno("fcntl(F_ADD_SEALS)", errno);
  return fd;
}

// Memory for a part of the file, or an error; a first access without it would be a SIGBUS.
Status Allocate(int fd, size_t begin, size_t end) {
  while (fallocate(fd, 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin)) != 0) {
    if (errno == EINTR) continue;
    if (errno == EOPNOTSUPP || errno == ENOSYS) return Status::Ok();  // it comes with the first access, as it used to
    return Status::FromErrno("allocating " + std::to_string((end - begin) >> 10) + " KiB of shared memory", errno);
  }
  return Status::Ok();
}

Status CheckSealedMemory(int fd, size_t size) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Status::FromErrno("fstat", errno);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return Status(Code::kProtocol, "the shared memory is not sealed against resizing");
  }
  if (info.st_size < 0 || static_cast<size_t>(info.st_size) != size) {
    return Status(Code::kProtocol, "the shared memory has " + std::to_string(info.st_size) + " bytes instead of " +
                                       std::to_string(size));
  }
  return Status::Ok();
}

}  // namespace

ArenaLayout::ArenaLayout(const ArenaShape& shape)
    : ranks(static_cast<size_t>(shape.local_size)),
      slot_stride(RoundUp(sizeof(SlotFlags) + kSegmentSize, kPageSize) + kLinePairSize),
      first_channel(RoundUp(doorbell(static_cast<Arena::Sleeper>(Arena::kNumSleepers), 0), kPageSize)),
      total_size(slot(shape.channels, 0, 0)) {}

Result<std::shared_ptr<ArenaMapping>> ArenaMapping::Map(UniqueFd fd, size_t size) {
  void* base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED) return Status::FromErrno("mmap", errno);
  madvise(base, size, MADV_DONTDUMP);  // staged gradients only make a core file large
  return std::shared_ptr<ArenaMapping>(new ArenaMapping(std::move(fd), static_cast<std::byte*>(base), size));
}

ArenaMapping::~ArenaMapping() { munmap(base_, size_); }

Arena::Arena(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Arena::~Arena() = default;

Result<std::unique_ptr<Arena>> Arena::Create(const ArenaShape& shape) {
  TFC_RETURN_IF_ERROR(CheckShape(shape));
  ArenaHeader header = HeaderOf(shape);
  Result<UniqueFd> fd = MakeSealedMemory(header.total_size);
  if (!fd.ok()) return fd.status();
  TFC_RETURN_IF_ERROR(Allocate(fd.value().get(), 0, ArenaLayout(shape).slot(1, 0, 0)));
  Result<std::shared_ptr<ArenaMapping>> mapping = ArenaMapping::Map(fd.Take(), header.total_size);
  if (!mapping.ok()) return mapping.status();
  header.crowded = shape.crowded;
  std::memcpy(mapping.value()->base(), &header, sizeof(header));
  return std::unique_ptr<Arena>(new Arena(std::make_unique<Impl>(shape, mapping.Take())));
}

Result<std::unique_ptr<Arena>> Arena::Attach(const ArenaShape& shape, UniqueFd fd) {
  TFC_RETURN_IF_ERROR(CheckShape(shape));
  const ArenaHeader expected = HeaderOf(shape);
  TFC_RETURN_IF_ERROR(CheckSealedMemory(fd.get(), expected.total_size));
  Result<std::shared_ptr<ArenaMapping>> mapping = ArenaMapping::Map(std::move(fd), expected.total_size);
  if (!mapping.ok()) return mapping.status();
  ArenaHeader found;
  std::memcpy(&found, mapping.value()->base(), sizeof(found));
  ArenaShape agreed = shape;
  agreed.crowded = found.crowded != 0;
  found.crowded = expected.crowded;
  if (std::memcmp(&found, &expected, sizeof(found)) != 0) {
    return Status(Code::kProtocol, "the shared memory was made for another number of ranks or another version");
  }
  return std::unique_ptr<Arena>(new Arena(std::make_unique<Impl>(agreed, mapping.Take())));
}

Result<std::unique_ptr<Arena>> Arena::Share(const Arena& other, int local_rank) {
  ArenaShape shape = other.shape();
  shape.local_rank = local_rank;
  TFC_RETURN_IF_ERROR(CheckShape(shape));
  auto impl = std::make_unique<Impl>(shape, other.impl_->mapping);
  impl->bells = other.impl_->bells;
  return std::unique_ptr<Arena>(new Arena(std::move(impl)));
}

Status Arena::Reserve(uint32_t channel) {
  std::atomic<bool>& reserved = impl_->reserved[channel];
  if (reserved.load(std::memory_order_relaxed)) return Status::Ok();
  // The peers' slots, too: they are read, and that takes memory as well.
  const ArenaLayout& layout = impl_->layout;
  TFC_RETURN_IF_ERROR(Allocate(fd(), layout.slot(channel, 0, 0), layout.slot(channel + 1, 0, 0)));
  reserved = true;
  return Status::Ok();
}

// Flags stay as they are, and with them their pages: peers compare them with the rounds to come.
void Arena::Release(uint32_t channel) {
  if (!impl_->reserved[channel].exchange(false)) return;
  for (size_t index = 0; index < ArenaLayout::kSlots; ++index) {
    const size_t bytes = impl_->layout.slot(channel, impl_->shape.local_rank, index) + sizeof(SlotFlags);
    const size_t begin = RoundUp(bytes, kPageSize);
    const size_t end = (bytes + ArenaLayout::kSegmentSize) / kPageSize * kPageSize;
    // Best effort: memory that cannot be given back is used again by the next one who reserves the channel.
    (void)fallocate(fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(begin),
                    static_cast<off_t>(end - begin));
  }
}

int Arena::fd() const { return impl_->mapping->fd(); }
const ArenaShape& Arena::shape() const { return impl_->shape; }

void Arena::HangBells(std::vector<EventFd> bells) {
  impl_->bells = std::make_shared<const std::vector<EventFd>>(std::move(bells));
}

const EventFd* Arena::bell() const {
  return impl_->bells == nullptr ? nullptr : &(*impl_->bells)[static_cast<size_t>(impl_->shape.local_rank)];
}

// The bell is counted up even if nothing sleeps: what the caller wrote before is then seen by a sleeper that reads the
// new count, and one that has read the old one does not fall asleep.
void Arena::Ring(Sleeper sleeper) {
  Doorbell& own = impl_->doorbell(sleeper, impl_->shape.local_rank);
  own.bell.fetch_add(1);
  // Even if nothing seems to sleep: a peer may have been killed between taking over the ringing and doing it.
  FutexWakeAll(own.bell);
  if (sleeper == Sleeper::kProgress && bell() != nullptr) bell()->Signal();
}

// The publisher has stored its flag, passed a fence and then loads `sleeping`; the sleeper stores `sleeping` and
// then loads the flag; fence, store and loads are sequentially consistent, so at least one of them sees the other.
void Arena::Impl::RingIfAwaited(Sleeper sleeper, int local_rank) const {
  Doorbell& other = doorbell(sleeper, local_rank);
  uint32_t sleeping = other.sleeping.load();
  if (sleeping == Doorbell::kAwake) return;
  const bool in_poll = sleeping == Doorbell::kInPoll;
  if (!in_poll && sleeping != Doorbell::kForAny && sleeping != static_cast<uint32_t>(shape.local_rank) + 1) return;
  // If it fails, another rank rings, or the sleeper is awake.
  if (!other.sleeping.compare_exchange_strong(sleeping, Doorbell::kAwake)) return;
  if (in_poll && bells != nullptr) return (*bells)[static_cast<size_t>(local_rank)].Signal();
  other.bell.fetch_add(1);
  FutexWakeAll(other.bell);
}

void Arena::SleepUntilRung(Sleeper sleeper, const Condition& ready, Deadline deadline) {
  Doorbell& own = impl_->doorbell(sleeper, impl_->shape.local_rank);
  const uint32_t rung = own.bell.load();
  const int awaited = ready.AwaitedRank();
  own.sleeping.store(awaited == Condition::kAnyRank ? Doorbell::kForAny : static_cast<uint32_t>(awaited) + 1);
  // The awaited rank may have published just before it could see that it is waited for.
  if (!ready.Holds() && ready.AwaitedRank() == awaited) FutexWait(own.bell, rung, deadline);
  own.sleeping.store(Doorbell::kAwake);
}

void Arena::PollUntilRung(const Condition& ready, const std::function<void()>& poll) {
  Doorbell& own = impl_->doorbell(Sleeper::kProgress, impl_->shape.local_rank);
  own.sleeping.store(Doorbell::kInPoll);
  if (!ready.Holds()) poll();
  own.sleeping.store(Doorbell::kAwake);
}

void Arena::Interrupt(const Status& status) {
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->interrupted.load()) return;
    impl_->cause = status;
    impl_->interrupted.store(true);
  }
  Ring(Sleeper::kCaller);
  Ring(Sleeper::kProgress);
}

bool Arena::is_interrupted() const { return impl_->interrupted.load(); }

Status Arena::interrupted() const {
  if (!is_interrupted()) return Status::Ok();
  const MutexLock lock(impl_->mutex);
  return impl_->cause;
}

}  // namespace tfc
