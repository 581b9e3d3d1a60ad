#include "testing/memory_transport.h"

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/mutex.h"

namespace tfc {
namespace {

using Key = std::tuple<uint32_t, uint64_t, uint32_t>;  // channel, sequence, step

Key KeyOf(const Tag& tag) { return Key(tag.channel, tag.sequence, tag.step); }

std::string NameOf(int rank) { return "rank " + std::to_string(rank) + " (memory)"; }

struct MemoryRequest {
  int peer = 0;
  Tag tag;
  ConstSpans from;              // of a send
  MutableSpans to;              // of a receive
  std::vector<std::byte> copy;  // of an eager send
  bool is_send = false;
  bool eager = false;
  bool done = false;
  Status failure;  // of a receive: its message came and was another one than expected
};

using RequestPtr = std::shared_ptr<MemoryRequest>;

// Messages and receives of one direction of one pair that have not met yet.
struct Inbox {
  std::map<Key, RequestPtr> sent;
  std::map<Key, RequestPtr> awaited;
};

// Copies all of `from` to all of `to`, which has the same size.
void Copy(const ConstSpans& from, const MutableSpans& to) {
  std::vector<std::byte> bytes(TotalSize(from));
  Gather(from, bytes.data());
  Scatter(bytes.data(), to);
}

Status Compare(const MemoryRequest& send, const MemoryRequest& receive, const std::string& sender) {
  if (send.tag.signature != receive.tag.signature) {
    return Status(Code::kMismatch, sender + ": it runs another operation than this rank", receive.peer);
  }
  const size_t sent = TotalSize(send.from);
  const size_t expected = TotalSize(receive.to);
  if (sent == expected) return Status::Ok();
  return Status(
      Code::kMismatch,
      sender + ": it sent " + std::to_string(sent) + " bytes where this rank expects " + std::to_string(expected),
      receive.peer);
}

struct Member {
  bool closed = false;
  Status interrupted;
  CondVar changed;
};

}  // namespace

struct MemoryHub::State {
  explicit State(const MemoryHubOptions& given) : options(given), members(static_cast<size_t>(given.size)) {}

  Inbox& BoxOf(int from, int to) TFC_REQUIRES(mutex) { return boxes[{from, to}]; }
  Member& MemberOf(int rank) TFC_REQUIRES(mutex) { return members[static_cast<size_t>(rank)]; }

  const MemoryHubOptions options;
  Mutex mutex;
  std::vector<Member> members TFC_GUARDED_BY(mutex);
  std::map<std::pair<int, int>, Inbox> boxes TFC_GUARDED_BY(mutex);
};

namespace {

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(std::shared_ptr<MemoryHub::State> state, int rank) : state_(std::move(state)), rank_(rank) {}
  ~MemoryTransport() override {
    const MutexLock lock(state_->mutex);
    CloseLocked();
  }

  int rank() const override { return rank_; }
  int size() const override { return state_->options.size; }

  Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) override {
    const MutexLock lock(state_->mutex);
    TFC_RETURN_IF_ERROR(CheckPost(peer));
    if (state_->MemberOf(peer).closed) return Fail(Lost(peer));
    auto request = std::make_shared<MemoryRequest>();
    request->is_send = true;
    request->peer = peer;
    request->tag = tag;
    request->from = spans;
    return Post(request, &state_->BoxOf(rank_, peer));
  }

  Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) override {
    const MutexLock lock(state_->mutex);
    TFC_RETURN_IF_ERROR(CheckPost(peer));
    Inbox& box = state_->BoxOf(peer, rank_);
    if (state_->MemberOf(peer).closed && box.sent.count(KeyOf(tag)) == 0) return Fail(Lost(peer));
    if (box.awaited.count(KeyOf(tag)) != 0) {
      return Status(Code::kInvalidArgument, "a receive with the same tag is posted already");
    }
    auto request = std::make_shared<MemoryRequest>();
    request->peer = peer;
    request->tag = tag;
    request->to = spans;
    return Post(request, &box);
  }

  Status Wait(Ticket ticket, Deadline deadline) override {
    const MutexLock lock(state_->mutex);
    TFC_RETURN_IF_ERROR(CheckAlive());
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return Status(Code::kInvalidArgument, "no such ticket");
    const RequestPtr request = found->second;
    bool in_time = true;
    while (true) {
      TFC_RETURN_IF_ERROR(CheckAlive());
      if (request->done) break;
      const Status failure = FirstFailure();
      if (!failure.ok()) return Fail(failure);
      if (!in_time) return Fail(TimedOut(*request));
      in_time = state_->MemberOf(rank_).changed.WaitUntil(state_->mutex, deadline);
    }
    requests_.erase(ticket);
    return Status::Ok();
  }

  Result<bool> Test(Ticket ticket) override {
    const MutexLock lock(state_->mutex);
    TFC_RETURN_IF_ERROR(CheckAlive());
    const auto found = requests_.find(ticket);
    if (found == requests_.end()) return Status(Code::kInvalidArgument, "no such ticket");
    if (found->second->done) return true;
    const Status failure = FirstFailure();
    if (!failure.ok()) return Fail(failure);
    return false;
  }

  void Interrupt(const Status& status) override {
    const MutexLock lock(state_->mutex);
    Member& self = state_->MemberOf(rank_);
    if (self.interrupted.ok()) self.interrupted = status;
    (void)Fail(self.interrupted);  // at once: a thread that saw the error elsewhere may free the memory
    self.changed.NotifyAll();
  }

 private:
  static Status Lost(int peer) { return Status(Code::kPeerLost, NameOf(peer) + " closed the connection", peer); }

  Status CheckAlive() TFC_REQUIRES(state_->mutex) {
    if (!dead_.ok()) return dead_;
    const Member& self = state_->MemberOf(rank_);
    if (!self.interrupted.ok()) return Fail(self.interrupted);
    if (self.closed) return Fail(Status(Code::kCancelled, NameOf(rank_) + " is closed", rank_));
    return Status::Ok();
  }

  Status CheckPost(int peer) TFC_REQUIRES(state_->mutex) {
    TFC_RETURN_IF_ERROR(CheckAlive());
    if (peer >= 0 && peer < size() && peer != rank_) {
      const Status failure = FirstFailure();
      return failure.ok() ? failure : Fail(failure);
    }
    return Status(Code::kInvalidArgument, "rank " + std::to_string(rank_) + " of " + std::to_string(size()) +
                                              " cannot exchange messages with rank " + std::to_string(peer));
  }

  // Why some posted request can never be done.
  Status FirstFailure() const TFC_REQUIRES(state_->mutex) {
    for (const auto& [ticket, request] : requests_) {
      if (request->done) continue;
      if (!request->failure.ok()) return request->failure;
      if (state_->MemberOf(request->peer).closed) return Lost(request->peer);
    }
    return Status::Ok();
  }

  static Status TimedOut(const MemoryRequest& request) {
    const char* what = request.is_send ? " has not taken this rank's message" : " has sent nothing";
    return Status(Code::kDeadlineExceeded, NameOf(request.peer) + what, request.peer);
  }

  // Withdraws whatever points to memory of this rank: its owner may free it now.
  Status Fail(const Status& status) TFC_REQUIRES(state_->mutex) {
    if (!dead_.ok()) return dead_;
    dead_ = status;
    for (auto& [key, box] : state_->boxes) {
      if (key.first == rank_) DropRendezvous(&box.sent);
      if (key.second == rank_) box.awaited.clear();
    }
    requests_.clear();
    return dead_;
  }

  static void DropRendezvous(std::map<Key, RequestPtr>* sent) {
    for (auto at = sent->begin(); at != sent->end();) at = at->second->eager ? std::next(at) : sent->erase(at);
  }

  void CloseLocked() TFC_REQUIRES(state_->mutex) {
    (void)Fail(Status(Code::kCancelled, NameOf(rank_) + " is closed", rank_));
    state_->MemberOf(rank_).closed = true;
    for (Member& member : state_->members) member.changed.NotifyAll();
  }

  Result<Ticket> Post(const RequestPtr& request, Inbox* box) TFC_REQUIRES(state_->mutex) {
    if (request->is_send) KeepIfSmall(request.get());
    auto& others = request->is_send ? box->awaited : box->sent;
    const auto other = others.find(KeyOf(request->tag));
    if (other != others.end()) {
      Meet(request, other->second);
      others.erase(other);
    } else if (!(request->is_send ? box->sent : box->awaited).emplace(KeyOf(request->tag), request).second) {
      return Fail(Status(Code::kProtocol, NameOf(rank_) + " sent two messages with one tag", rank_));
    }
    if (!request->failure.ok()) return Fail(request->failure);
    requests_[++last_ticket_] = request;
    return last_ticket_;
  }

  void KeepIfSmall(MemoryRequest* send) const {
    const size_t size = TotalSize(send->from);
    if (size > state_->options.eager_bytes) return;
    send->copy.resize(size);
    Gather(send->from, send->copy.data());
    send->from = {ConstSpan{send->copy.data(), size}};
    send->eager = true;
    send->done = true;
  }

  // A message and its receive have found each other; a mismatch is the receiver's to report.
  void Meet(const RequestPtr& mine, const RequestPtr& other) TFC_REQUIRES(state_->mutex) {
    MemoryRequest& send = mine->is_send ? *mine : *other;
    MemoryRequest& receive = mine->is_send ? *other : *mine;
    receive.failure = Compare(send, receive, NameOf(receive.peer));
    if (receive.failure.ok()) {
      Copy(send.from, receive.to);
      send.done = true;
      receive.done = true;
    }
    state_->MemberOf(mine->peer).changed.NotifyAll();
  }

  const std::shared_ptr<MemoryHub::State> state_;
  const int rank_;
  Status dead_ TFC_GUARDED_BY(state_->mutex);
  Ticket last_ticket_ TFC_GUARDED_BY(state_->mutex) = 0;
  std::map<Ticket, RequestPtr> requests_ TFC_GUARDED_BY(state_->mutex);
};

}  // namespace

MemoryHub::MemoryHub(const MemoryHubOptions& options) : state_(std::make_shared<State>(options)) {}
MemoryHub::~MemoryHub() = default;

std::unique_ptr<Transport> MemoryHub::MakeTransport(int rank) {
  return std::make_unique<MemoryTransport>(state_, rank);
}

std::vector<std::unique_ptr<Transport>> MemoryHub::MakeAll() {
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < state_->options.size; ++rank) transports.push_back(MakeTransport(rank));
  return transports;
}

void MemoryHub::Close(int rank) {
  const MutexLock lock(state_->mutex);
  state_->MemberOf(rank).closed = true;
  for (Member& member : state_->members) member.changed.NotifyAll();
}

}  // namespace tfc
