// The outgoing half of one connection: which sends leave at once, which wait for their receive, and
// the frames that are written, in order.
#ifndef TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SEND_STREAM_H_
#define TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SEND_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "base/status.h"
#include "collectives/transport/frame.h"
#include "collectives/transport/tcp/request_key.h"
#include "collectives/transport/tcp/request_table.h"
#include "collectives/transport/tcp/room.h"

namespace tfc {

class SendStream {
 public:
  // Announcements take memory at the receiver: sends beyond so many wait here, in order.
  static constexpr size_t kMaxAnnounced = 1 << 14;

  // `room` must outlive the stream.
  SendStream(uint64_t generation, Room* room) : generation_(generation), room_(room) {}

  // The request must stay until it is done; its tag and cursor are set.
  void Queue(Request* request);
  // An answer or a grant for the peer's frame, in front of what has not begun to leave. `completes`, which may be
  // nullptr, is done when it has left.
  void Reply(FrameKind kind, const FrameHeader& to, Request* completes = nullptr);

  // What the peer's frames say. PROTOCOL for what does not fit; error messages speak of the peer as "it".
  Status OnReturned(uint64_t bytes);
  Status OnGrant(const FrameHeader& grant);
  Status OnAnswer(const FrameHeader& answer);

  bool HasFrames() const { return !frames_.empty(); }  // to write
  bool HasUnfinished() const;                          // sends
  // The connection is gone: answers that have not left keep their receives waiting no longer.
  void Abandon();

  struct Outcome {
    size_t bytes = 0;      // written now
    bool blocked = false;  // the kernel takes no more at present
    int error = 0;         // errno of a failed write
  };
  // Writes what the kernel takes without blocking, several messages in one call where possible, and
  // marks what is fully written as done.
  Outcome Pump(int fd);

 private:
  struct Frame {
    FrameHeader header;
    Request* request;  // whose payload follows; of an answer: that it completes; else nullptr
  };

  bool Place(Request* request);
  void PlaceWaiting();
  FrameHeader HeaderOf(FrameKind kind, const Tag& tag, uint64_t length);
  size_t Collect(struct iovec* pieces, size_t capacity) const;
  void Account(size_t sent);
  void EndFrame();

  const uint64_t generation_;
  Room* const room_;
  std::deque<Frame> frames_;
  size_t header_sent_ = 0;  // bytes of the first frame's header
  size_t replies_ = 0;      // frames that Reply has put in front, and that have not left

  Request* asking_ = nullptr;  // the send that waits for an answer
  bool asked_ = false;         // and all of it has left
  std::unordered_map<RequestKey, Request*, RequestKeyHash> announced_;
  std::deque<Request*> waiting_;  // to be announced, or for room
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_COLLECTIVES_TRANSPORT_TCP_SEND_STREAM_H_
