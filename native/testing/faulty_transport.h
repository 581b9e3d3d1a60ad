// A transport that goes wrong at one chosen call, for fault sweeps.
#ifndef TFCOLLECTIVE_TESTING_FAULTY_TRANSPORT_H_
#define TFCOLLECTIVE_TESTING_FAULTY_TRANSPORT_H_

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>

#include "collectives/transport/transport.h"

namespace tfc {

struct Fault {
  enum class Kind {
    kFail,   // the call returns `status`, and so does every later one
    kDrop,   // a send is reported as done but never leaves; any other call is not affected
    kDelay,  // the call takes `delay_s` longer
  };
  Kind kind = Kind::kFail;
  int64_t call = -1;  // which PostSend, PostReceive or Wait, counted together from 0; -1: none
  Status status;
  double delay_s = 0;
};

// Decorates `inner`, which must outlive it. A kFail also interrupts `inner`.
class FaultyTransport final : public Transport {
 public:
  FaultyTransport(Transport& inner, Fault fault) : inner_(inner), fault_(std::move(fault)) {}

  // Calls so far: run once without a fault to learn how many there are to sweep over.
  int64_t calls() const { return calls_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }

  Result<Ticket> PostSend(int peer, const Tag& tag, const ConstSpans& spans) override {
    if (!Strikes()) return inner_.PostSend(peer, tag, spans);
    if (fault_.kind == Fault::Kind::kDrop) return kDropped;
    TFC_RETURN_IF_ERROR(Strike());
    return inner_.PostSend(peer, tag, spans);
  }

  Result<Ticket> PostReceive(int peer, const Tag& tag, const MutableSpans& spans) override {
    if (Strikes()) TFC_RETURN_IF_ERROR(Strike());
    return inner_.PostReceive(peer, tag, spans);
  }

  Status Wait(Ticket ticket, Deadline deadline) override {
    if (Strikes()) TFC_RETURN_IF_ERROR(Strike());
    return ticket == kDropped ? Status::Ok() : inner_.Wait(ticket, deadline);
  }

  // Not counted: how often it is called depends on timing.
  Result<bool> Test(Ticket ticket) override { return ticket == kDropped ? Result<bool>(true) : inner_.Test(ticket); }

  void Interrupt(const Status& status) override { inner_.Interrupt(status); }

 private:
  static constexpr Ticket kDropped = ~Ticket{0};

  bool Strikes() { return calls_++ == fault_.call; }

  // Fails or delays; a drop of anything but a send does nothing.
  Status Strike() {
    if (fault_.kind == Fault::Kind::kFail) {
      inner_.Interrupt(fault_.status);
      return fault_.status;
    }
    // The delay itself is the fault that the test asked for.
    if (fault_.kind == Fault::Kind::kDelay) std::this_thread::sleep_for(std::chrono::duration<double>(fault_.delay_s));
    return Status::Ok();
  }

  Transport& inner_;
  Fault fault_;
  int64_t calls_ = 0;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_FAULTY_TRANSPORT_H_
