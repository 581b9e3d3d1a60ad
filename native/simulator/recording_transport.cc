#include "simulator/recording_transport.h"

#include <functional>

namespace tfc {
namespace {

bool Inside(const MutableSpan& span, const MutableSpan& home) {
  const std::less_equal<const std::byte*> not_after;  // a total order also over unrelated arrays
  return not_after(home.data, span.data) && not_after(span.data + span.size, home.data + home.size);
}

}  // namespace

Result<Ticket> RecordingTransport::PostSend(int peer, const Tag& tag, const ConstSpans& spans) {
  RecordedStep step;
  step.kind = StepKind::kSend;
  step.peer = peer;
  step.message = tag.step;
  for (const ConstSpan& span : spans) step.bytes += span.size;
  step.ticket = ++last_;
  visit_(step);
  return last_;
}

Result<Ticket> RecordingTransport::PostReceive(int peer, const Tag& tag, const MutableSpans& spans) {
  RecordedStep step;
  step.kind = StepKind::kReceive;
  step.peer = peer;
  step.message = tag.step;
  for (const MutableSpan& span : spans) {
    step.bytes += span.size;
    step.elsewhere = step.elsewhere || !Inside(span, home_);
  }
  step.ticket = ++last_;
  visit_(step);
  return last_;
}

Status RecordingTransport::Wait(Ticket ticket, Deadline) {
  RecordedStep step;
  step.kind = StepKind::kWait;
  step.ticket = ticket;
  visit_(step);
  return Status::Ok();
}

Result<bool> RecordingTransport::Test(Ticket) { return true; }

void RecordingTransport::Interrupt(const Status&) {}  // nothing waits here

}  // namespace tfc
