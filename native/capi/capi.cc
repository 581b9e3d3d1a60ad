// The C interface: checks arguments, calls the engine, turns Status into code and message.
#include <cstring>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "base/dtype.h"
#include "capi/session.h"
#include "communicator/operation.h"
#include "engine/plan.h"
#include "tfcollective/tfcollective.h"

#ifndef TFC_VERSION
#define TFC_VERSION "0.0.0"
#endif

struct tfc_listener {
  std::unique_ptr<tfc::Meeting> meeting;
};

struct tfc_communicator {
  std::shared_ptr<tfc::Session> session;
};

struct tfc_plan {
  std::shared_ptr<tfc::Session> session;
  std::shared_ptr<tfc::Plan> plan;
};

namespace {

using tfc::Code;
using tfc::Result;
using tfc::Status;

void FillError(const Status& status, tfc_error* error) {
  if (error == nullptr || error->struct_size < sizeof(tfc_error)) return;
  error->code = static_cast<int32_t>(status.code());
  error->peer = status.peer();
  error->sys_errno = status.sys_errno();
  const size_t size = std::min(status.message().size(), sizeof(error->message) - 1);
  std::memcpy(error->message, status.message().data(), size);
  error->message[size] = '\0';
}

tfc_code Return(const Status& status, tfc_error* error) {
  FillError(status, error);
  return static_cast<tfc_code>(status.code());
}

// No exception crosses the C border.
template <typename Body>
tfc_code Guarded(tfc_error* error, Body body) {
  try {
    return Return(body(), error);
  } catch (const std::bad_alloc&) {
    return Return(Status(Code::kResourceExhausted, "out of memory"), error);
  } catch (const std::exception& exception) {
    return Return(Status(Code::kInternal, exception.what()), error);
  }
}

// The caller's struct as ours: what it does not know about is zero.
template <typename Struct>
Result<Struct> Read(const Struct* given, const char* what) {
  if (given == nullptr || given->struct_size < sizeof(size_t))
    return Status(Code::kInvalidArgument, std::string(what) + " is missing or its struct_size is not set");
  Struct copy;
  std::memset(&copy, 0, sizeof(copy));
  std::memcpy(&copy, given, std::min(given->struct_size, sizeof(Struct)));
  return copy;
}

std::string Text(const char* text) { return text == nullptr ? "" : text; }

Result<tfc::SessionOptions> SessionOptionsOf(const tfc_communicator_options& given) {
  if (given.size < 1)
    return Status(Code::kInvalidArgument, "the world size must be at least 1, not " + std::to_string(given.size));
  if (given.rank < 0 || given.rank >= given.size)
    return Status(Code::kInvalidArgument,
                  "rank " + std::to_string(given.rank) + " is not in a world of " + std::to_string(given.size));
  tfc::SessionOptions options;
  options.rank = given.rank;
  options.addresses.resize(static_cast<size_t>(given.size));
  if (given.size > 1) {
    if (given.addresses == nullptr) return Status(Code::kInvalidArgument, "the addresses are missing");
    if (given.key == nullptr || given.key_size < 16 || given.key_size > 64)
      return Status(Code::kInvalidArgument, "the job key must have 16 to 64 bytes");
    for (int32_t rank = 0; rank < given.size; ++rank)
      options.addresses[static_cast<size_t>(rank)] = Text(given.addresses[rank]);
    options.key.assign(given.key, given.key + given.key_size);
  }
  if (given.transport != TFC_TRANSPORT_AUTO && given.transport != TFC_TRANSPORT_TCP)
    return Status(Code::kInvalidArgument, "unknown transport " + std::to_string(given.transport));
  options.generation = given.generation;
  if (given.connect_timeout_s > 0) options.connect_timeout_s = given.connect_timeout_s;
  if (given.op_timeout_s > 0) options.op_timeout_s = given.op_timeout_s;
  options.stall_warning_s = given.stall_warning_s;
  options.shared_memory = given.transport == TFC_TRANSPORT_AUTO;
  options.spin_us = given.spin_us;
  options.log = tfc::Log(given.log, given.log_user);
  return options;
}

Status AddSpans(const tfc_span* spans, size_t num_spans, size_t element, tfc::Operation* operation) {
  if (num_spans != 0 && spans == nullptr) return Status(Code::kInvalidArgument, "the spans are missing");
  operation->input.reserve(num_spans);
  operation->output.reserve(num_spans);
  for (size_t i = 0; i < num_spans; ++i) {
    const tfc_span& span = spans[i];
    if (span.count < 0 || (span.count > 0 && span.input == nullptr))
      return Status(Code::kInvalidArgument, "span " + std::to_string(i) + " has no input or a negative count");
    if (span.count > std::numeric_limits<int64_t>::max() / static_cast<int64_t>(element))
      return Status(Code::kInvalidArgument, "span " + std::to_string(i) + " has more elements than memory can hold");
    const size_t bytes = static_cast<size_t>(span.count) * element;
    operation->input.push_back({static_cast<const std::byte*>(span.input), bytes});
    operation->output.push_back({static_cast<std::byte*>(span.output), bytes});
  }
  return Status::Ok();
}

// The output of a reduce-scatter is this rank's rows only; of a gather it is not known yet.
void FitOutput(int rank, int size, tfc::Operation* operation) {
  if (operation->collective == tfc::Collective::kAllGather || operation->collective == tfc::Collective::kAllToAll) {
    operation->output.clear();
  } else if (operation->collective == tfc::Collective::kReduceScatter && !operation->output.empty()) {
    const auto rows = tfc::DealRows(operation->rows(), size);
    const int64_t mine = rows[static_cast<size_t>(rank) + 1] - rows[static_cast<size_t>(rank)];
    operation->output.resize(1);
    operation->output[0].size = static_cast<size_t>(mine) * operation->RowBytes();
  }
}

Status CheckOutput(const tfc::Operation& operation) {
  for (const tfc::MutableSpan& piece : operation.output)
    if (piece.size > 0 && piece.data == nullptr)
      return Status(Code::kInvalidArgument, operation.Title() + ": an output is missing");
  return Status::Ok();
}

Result<tfc::Operation> OperationOf(const tfc_request& given, const tfc::Topology& topology) {
  if (given.collective < TFC_ALLREDUCE || given.collective > TFC_BARRIER)
    return Status(Code::kInvalidArgument, "unknown collective " + std::to_string(given.collective));
  if (!tfc::IsDtype(given.dtype)) return Status(Code::kInvalidArgument, "unknown dtype " + std::to_string(given.dtype));
  if (!tfc::IsOp(given.op)) return Status(Code::kInvalidArgument, "unknown operation " + std::to_string(given.op));
  tfc::Operation operation;
  operation.collective = static_cast<tfc::Collective>(given.collective);
  operation.dtype = static_cast<tfc::Dtype>(given.dtype);
  operation.op = static_cast<tfc::Op>(given.op);
  operation.root = given.root;
  operation.prescale = given.prescale;
  operation.postscale = given.postscale;
  operation.timeout_s = given.timeout_s;
  operation.name = Text(given.name);
  if (given.ndim < 0) return Status(Code::kInvalidArgument, "the number of dimensions is negative");
  if (given.ndim > 0 && given.shape == nullptr) return Status(Code::kInvalidArgument, "the shape is missing");
  if (given.shape != nullptr) operation.shape.assign(given.shape, given.shape + given.ndim);
  if (given.splits != nullptr) operation.splits.assign(given.splits, given.splits + topology.size);
  if (given.allocate != nullptr) {
    operation.allocate = [allocate = given.allocate, user = given.allocate_user](const std::vector<int64_t>& rows) {
      return static_cast<std::byte*>(allocate(user, rows.data(), static_cast<int32_t>(rows.size())));
    };
  }
  TFC_RETURN_IF_ERROR(AddSpans(given.spans, given.num_spans, tfc::DtypeSize(operation.dtype), &operation));
  FitOutput(topology.rank, topology.size, &operation);
  TFC_RETURN_IF_ERROR(CheckOutput(operation));
  return operation;
}

tfc::Done DoneOf(tfc_done_fn done, void* user) {
  return [done, user](const Status& status) {
    if (status.ok()) return done(user, nullptr);
    auto error = std::make_unique<tfc_error>();  // too large for a fiber's stack
    error->struct_size = sizeof(tfc_error);
    error->reserved = 0;
    FillError(status, error.get());
    done(user, error.get());
  };
}

// TensorFlow's kernels have no way to be given a communicator but by number; see docs/adr/0003.
class Worlds {
 public:
  static Worlds& Get() {
    static auto* worlds = new Worlds();  // never destroyed: kernels may still run at exit
    return *worlds;
  }
  void Set(int32_t id, std::shared_ptr<tfc::Session> session) {
    std::shared_ptr<tfc::Session> previous;  // released outside the lock: it may shut down
    {
      std::lock_guard<std::mutex> lock(mutex_);
      previous = std::exchange(sessions_[id], std::move(session));
    }
  }
  std::shared_ptr<tfc::Session> Find(int32_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<int32_t, std::shared_ptr<tfc::Session>> sessions_;
};

}  // namespace

extern "C" {

int32_t tfc_abi_version(void) { return TFC_ABI_VERSION; }
const char* tfc_version(void) { return TFC_VERSION; }
const char* tfc_code_name(int32_t code) { return tfc::CodeName(code); }
size_t tfc_dtype_size(int32_t dtype) {
  return tfc::IsDtype(dtype) ? tfc::DtypeSize(static_cast<tfc::Dtype>(dtype)) : 0;
}

tfc_code tfc_listener_create(const tfc_listener_options* options, tfc_listener** listener, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    auto given = Read(options, "tfc_listener_options");
    if (!given.ok()) return given.status();
    if (listener == nullptr) return Status(Code::kInvalidArgument, "there is no place for the listener");
    auto meeting = tfc::Meeting::Create(Text(given.value().bind_host), Text(given.value().node_id));
    if (!meeting.ok()) return meeting.status();
    *listener = new tfc_listener{meeting.Take()};
    return Status::Ok();
  });
}

tfc_code tfc_listener_address(const tfc_listener* listener, char* buffer, size_t capacity, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (listener == nullptr || listener->meeting == nullptr)
      return Status(Code::kInvalidArgument, "the listener is missing or used up");
    const std::string address = listener->meeting->Address();
    if (buffer == nullptr || capacity <= address.size())
      return Status(Code::kInvalidArgument, "the buffer needs " + std::to_string(address.size() + 1) + " bytes");
    std::memcpy(buffer, address.c_str(), address.size() + 1);
    return Status::Ok();
  });
}

void tfc_listener_destroy(tfc_listener* listener) { delete listener; }

tfc_code tfc_communicator_create(tfc_listener* listener, const tfc_communicator_options* options,
                                 tfc_communicator** communicator, tfc_error* error) {
  const std::unique_ptr<tfc_listener> owned(listener);
  return Guarded(error, [&]() -> Status {
    auto given = Read(options, "tfc_communicator_options");
    if (!given.ok()) return given.status();
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "there is no place for the communicator");
    auto session_options = SessionOptionsOf(given.value());
    if (!session_options.ok()) return session_options.status();
    auto session =
        tfc::Session::Create(owned == nullptr ? nullptr : std::move(owned->meeting), session_options.value());
    if (!session.ok()) return session.status();
    *communicator = new tfc_communicator{session.Take()};
    return Status::Ok();
  });
}

void tfc_communicator_abort(tfc_communicator* communicator, const char* cause) {
  if (communicator != nullptr) communicator->session->engine().Abort(Text(cause));
}

tfc_code tfc_communicator_shutdown(tfc_communicator* communicator, double timeout_s, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    if (communicator->session->engine().OnOwnThread())
      return Status(Code::kFailedPrecondition, "a callback must not shut its communicator down");
    communicator->session->engine().Shutdown(timeout_s);
    return Status::Ok();
  });
}

void tfc_communicator_release(tfc_communicator* communicator) { delete communicator; }

tfc_code tfc_communicator_get_info(const tfc_communicator* communicator, tfc_communicator_info* info,
                                   tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || info == nullptr || info->struct_size < sizeof(size_t))
      return Status(Code::kInvalidArgument, "the communicator or the info is missing");
    const tfc::Session& session = *communicator->session;
    const tfc::Topology& topology = session.engine().topology();
    const tfc::EngineCounters counters = session.engine().counters();
    tfc_communicator_info full{};
    full.struct_size = info->struct_size;
    full.rank = topology.rank;
    full.size = topology.size;
    full.local_rank = topology.local_rank;
    full.local_size = topology.local_size();
    full.cross_rank = topology.cross_rank;
    full.cross_size = topology.cross_size();
    full.uses_shared_memory = session.uses_shared_memory() ? 1 : 0;
    full.broken = session.engine().failure().failed() ? 1 : 0;
    full.completed = counters.completed;
    full.pending = counters.pending;
    std::memcpy(info, &full, std::min(info->struct_size, sizeof(full)));
    return Status::Ok();
  });
}

tfc_code tfc_run(tfc_communicator* communicator, const tfc_request* request, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    const auto session = communicator->session;  // a concurrent release must not take it away
    auto operation = OperationOf(given.value(), session->engine().topology());
    if (!operation.ok()) return operation.status();
    return session->engine().Run(operation.value());
  });
}

tfc_code tfc_submit(tfc_communicator* communicator, const tfc_request* request, tfc_done_fn done, void* user,
                    tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || done == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the callback is missing");
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    const auto session = communicator->session;  // `done` may drop the caller's reference meanwhile
    auto operation = OperationOf(given.value(), session->engine().topology());
    if (!operation.ok()) return operation.status();
    return session->engine().Submit(operation.Take(), DoneOf(done, user));
  });
}

tfc_code tfc_plan_acquire(tfc_communicator* communicator, const tfc_plan_options* options, tfc_plan** plan,
                          tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || plan == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the place for the plan is missing");
    auto given = Read(options, "tfc_plan_options");
    if (!given.ok()) return given.status();
    if (!tfc::IsOp(given.value().op))
      return Status(Code::kInvalidArgument, "unknown operation " + std::to_string(given.value().op));
    if (given.value().num_buckets < 1) return Status(Code::kInvalidArgument, "a bucket plan needs at least one bucket");
    tfc::PlanSpec spec;
    spec.name = Text(given.value().name);
    spec.signature = Text(given.value().signature);
    spec.num_buckets = static_cast<size_t>(given.value().num_buckets);
    spec.op = static_cast<tfc::Op>(given.value().op);
    spec.prescale = given.value().prescale;
    spec.postscale = given.value().postscale;
    spec.timeout_s = given.value().timeout_s;
    auto found = communicator->session->engine().AcquirePlan(spec);
    if (!found.ok()) return found.status();
    *plan = new tfc_plan{communicator->session, found.Take()};
    return Status::Ok();
  });
}

tfc_code tfc_plan_start(tfc_plan* plan, int32_t bucket, int32_t dtype, const tfc_span* spans, size_t num_spans,
                        tfc_done_fn done, void* user, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr || done == nullptr)
      return Status(Code::kInvalidArgument, "the plan or the callback is missing");
    if (!tfc::IsDtype(dtype)) return Status(Code::kInvalidArgument, "unknown dtype " + std::to_string(dtype));
    if (bucket < 0) return Status(Code::kInvalidArgument, "bucket " + std::to_string(bucket) + " is negative");
    tfc::Operation operation;
    operation.dtype = static_cast<tfc::Dtype>(dtype);
    TFC_RETURN_IF_ERROR(AddSpans(spans, num_spans, tfc::DtypeSize(operation.dtype), &operation));
    TFC_RETURN_IF_ERROR(CheckOutput(operation));
    const tfc_plan held = *plan;  // `done` may drop the caller's reference meanwhile
    return held.session->engine().StartBucket(held.plan, static_cast<size_t>(bucket), std::move(operation),
                                              DoneOf(done, user));
  });
}

void tfc_plan_release(tfc_plan* plan) { delete plan; }

tfc_code tfc_timeline_start(tfc_communicator* communicator, size_t capacity, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    if (capacity == 0) return Status(Code::kInvalidArgument, "a timeline needs room for at least one event");
    communicator->session->engine().timeline().Start(capacity);
    return Status::Ok();
  });
}

tfc_code tfc_timeline_add(tfc_communicator* communicator, const tfc_timeline_event* event, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    tfc::Timeline& timeline = communicator->session->engine().timeline();
    if (!timeline.on()) return Status::Ok();
    auto given = Read(event, "tfc_timeline_event");
    if (!given.ok()) return given.status();
    tfc::TimelineEvent interval;
    interval.submitted_ns = interval.began_ns = given.value().began_ns;
    interval.ended_ns = given.value().ended_ns;
    interval.name = Text(given.value().name);
    timeline.Add(std::move(interval));
    return Status::Ok();
  });
}

tfc_code tfc_timeline_stop(tfc_communicator* communicator, tfc_timeline_fn visit, void* user, uint64_t* dropped,
                           tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || visit == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the visitor is missing");
    const tfc::Timeline::Recorded recorded = communicator->session->engine().timeline().Stop();
    if (dropped != nullptr) *dropped = recorded.dropped;
    for (const tfc::TimelineEvent& event : recorded.events) {
      const tfc_timeline_event shown{sizeof(shown),  event.collective, event.channel,
                                     event.sequence, event.bytes,      event.submitted_ns,
                                     event.began_ns, event.ended_ns,   event.name.c_str()};
      visit(user, &shown);
    }
    return Status::Ok();
  });
}

tfc_code tfc_world_set(int32_t id, tfc_communicator* communicator, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    Worlds::Get().Set(id, communicator == nullptr ? nullptr : communicator->session);
    return Status::Ok();
  });
}

tfc_code tfc_world_acquire(int32_t id, tfc_communicator** communicator, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "there is no place for the communicator");
    auto session = Worlds::Get().Find(id);
    if (session == nullptr)
      return Status(Code::kFailedPrecondition,
                    "tfcollective is not initialised in this process (or was shut down): call tfcollective.init()");
    *communicator = new tfc_communicator{std::move(session)};
    return Status::Ok();
  });
}

}  // extern "C"
