// A transport that moves nothing: it records what an algorithm asks of it, and everything is done at once.
//
// What the algorithms send, to whom and in which order depends on sizes alone, never on data, so running one over
// this transport gives the steps that its rank takes in a real world.
#ifndef TFCOLLECTIVE_SIMULATOR_RECORDING_TRANSPORT_H_
#define TFCOLLECTIVE_SIMULATOR_RECORDING_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/span.h"
#include "collectives/transport/transport.h"

namespace tfc {

enum class StepKind { kSend = 0, kReceive = 1, kWait = 2 };

struct RecordedStep {
  StepKind kind = StepKind::kSend;
  int peer = -1;           // of a send or receive
  uint32_t message = 0;    // of a send or receive: Tag::step
  uint64_t bytes = 0;      // of a send or receive
  Ticket ticket = 0;       // of a send or receive; of a wait: what is waited for
  bool elsewhere = false;  // of a receive: whether it lands outside of `home`
};

class RecordingTransport : public Transport {
 public:
  using Visit = std::function<void(const RecordedStep&)>;

  // `home`: the memory where results belong.
  RecordingTransport(int rank, int size, MutableSpan home, Visit visit)
      : rank_(rank), size_(size), home_(home), visit_(std::move(visit)) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) override;
  Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) override;
  Status Wait(Ticket ticket, Deadline deadline) override;
  Result<bool> Test(Ticket ticket) override;
  void Interrupt(const Status& status) override;

 private:
  const int rank_;
  const int size_;
  const MutableSpan home_;
  const Visit visit_;
  Ticket last_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_SIMULATOR_RECORDING_TRANSPORT_H_
