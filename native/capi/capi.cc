// The C interface: one function each, between arguments.h (what comes in) and errors.h (what goes out).
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/callers.h"
#include "base/dtype.h"
#include "capi/arguments.h"
#include "capi/communicator_impl.h"
#include "capi/errors.h"
#include "capi/process_sets.h"
#include "executor/plan.h"
#include "tfcollective/tfcollective.h"

#ifndef TFC_VERSION
#define TFC_VERSION "0.0.0"
#endif

struct tfc_listener {
  std::unique_ptr<tfc::ListenerBundle> bundle;
};

// What can be known of an operation before it has memory: `prepared` where direct calls run on the caller's thread.
struct tfc_call {
  std::weak_ptr<tfc::CommunicatorImpl> impl;
  tfc::Operation operation;
  std::unique_ptr<tfc::Prepared> prepared;
};

namespace {

using tfc::Code;
using tfc::Guarded;
using tfc::PortsOf;
using tfc::Read;
using tfc::Status;
using tfc::Text;

}  // namespace

extern "C" {

int32_t tfc_abi_version(void) { return TFC_ABI_VERSION; }
const char* tfc_version(void) { return TFC_VERSION; }
const char* tfc_code_name(int32_t code) { return tfc::CodeName(code); }
void* tfc_allocate_result(void* result, const int64_t* rows, int32_t size) {
  auto* given = static_cast<tfc_result*>(result);
  given->rows = rows;
  given->size = size;
  given->memory = nullptr;
  given->provide(given);
  return given->memory;
}
size_t tfc_dtype_size(int32_t dtype) {
  return tfc::IsDtype(dtype) ? tfc::DtypeSize(static_cast<tfc::Dtype>(dtype)) : 0;
}
void tfc_note_unordered_calls(void) { tfc::NoteUnorderedCalls(); }

tfc_code tfc_listener_create(const tfc_listener_options* options, tfc_listener** listener, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    auto given = Read(options, "tfc_listener_options");
    if (!given.ok()) return given.status();
    if (listener == nullptr) return Status(Code::kInvalidArgument, "there is no place for the listener");
    auto ports = PortsOf(given.value());
    if (!ports.ok()) return ports.status();
    auto bundle =
        tfc::ListenerBundle::Create(Text(given.value().bind_host), Text(given.value().node_id), ports.value());
    if (!bundle.ok()) return bundle.status();
    *listener = new tfc_listener{bundle.Take()};
    return Status::Ok();
  });
}

tfc_code tfc_listener_address(const tfc_listener* listener, char* buffer, size_t capacity, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (listener == nullptr || listener->bundle == nullptr)
      return Status(Code::kInvalidArgument, "the listener is missing or used up");
    const std::string address = listener->bundle->Address();
    if (buffer == nullptr || capacity <= address.size())
      return Status(Code::kInvalidArgument, "the buffer needs " + std::to_string(address.size() + 1) + " bytes");
    std::memcpy(buffer, address.c_str(), address.size() + 1);
    return Status::Ok();
  });
}

void tfc_listener_destroy(tfc_listener* listener) { delete listener; }

tfc_code tfc_cancellation_create(tfc_cancellation** cancellation, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (cancellation == nullptr) return Status(Code::kInvalidArgument, "there is no place for the cancellation");
    *cancellation = new tfc_cancellation();
    return Status::Ok();
  });
}

void tfc_cancellation_request(tfc_cancellation* cancellation, const char* cause) {
  if (cancellation != nullptr) cancellation->cancellation.Request(Text(cause));
}

void tfc_cancellation_release(tfc_cancellation* cancellation) { delete cancellation; }

tfc_code tfc_communicator_create(tfc_listener* listener, const tfc_communicator_options* options,
                                 tfc_communicator** communicator, tfc_error* error) {
  const std::unique_ptr<tfc_listener> owned(listener);
  return Guarded(error, [&]() -> Status {
    auto given = Read(options, "tfc_communicator_options");
    if (!given.ok()) return given.status();
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "there is no place for the communicator");
    auto communicator_options = tfc::CommunicatorOptionsOf(given.value());
    if (!communicator_options.ok()) return communicator_options.status();
    auto impl = tfc::CommunicatorImpl::Create(owned == nullptr ? nullptr : std::move(owned->bundle),
                                              communicator_options.value());
    if (!impl.ok()) return communicator_options.value().world_ranks.Translate(impl.status());
    *communicator = new tfc_communicator{impl.Take()};
    return Status::Ok();
  });
}

void tfc_communicator_abort(tfc_communicator* communicator, const char* cause) {
  if (communicator != nullptr) communicator->impl->engine().Abort(Text(cause));
}

tfc_code tfc_communicator_shutdown(tfc_communicator* communicator, double timeout_s, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    if (communicator->impl->OnOwnThread())
      return Status(Code::kFailedPrecondition, "a callback must not shut its communicator down");
    TFC_RETURN_IF_ERROR(tfc::CheckSeconds(timeout_s, "the timeout of the shutdown"));
    communicator->impl->Shutdown(timeout_s);
    return Status::Ok();
  });
}

void tfc_communicator_release(tfc_communicator* communicator) { delete communicator; }

tfc_code tfc_communicator_get_info(const tfc_communicator* communicator, tfc_communicator_info* info,
                                   tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || info == nullptr || info->struct_size < sizeof(size_t))
      return Status(Code::kInvalidArgument, "the communicator or the info is missing");
    const tfc::CommunicatorImpl& impl = *communicator->impl;
    const tfc::Topology& topology = impl.engine().topology();
    const tfc::EngineCounters counters = impl.engine().counters();
    tfc_communicator_info full{};
    full.struct_size = info->struct_size;
    full.rank = topology.rank;
    full.size = topology.size;
    full.local_rank = topology.local_rank;
    full.local_size = topology.local_size();
    full.cross_rank = topology.cross_rank;
    full.cross_size = topology.cross_size();
    full.uses_shared_memory = impl.uses_shared_memory() ? 1 : 0;
    full.broken = impl.engine().failure().failed() ? 1 : 0;
    full.completed = counters.completed;
    full.pending = counters.pending;
    const tfc::Link& link = impl.engine().link();
    if (link.measured) {
      full.link_latency_s = link.latency_s;
      full.link_bandwidth = 1 / link.seconds_per_byte;
    }
    std::memcpy(info, &full, std::min(info->struct_size, sizeof(full)));
    return Status::Ok();
  });
}

tfc_code tfc_run(tfc_communicator* communicator, const tfc_request* request, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    const auto impl = communicator->impl;  // a concurrent release must not take it away
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    auto operation = tfc::OperationOf(given.value(), impl->engine().topology());
    if (!operation.ok()) return operation.status();
    return impl->world_ranks().Translate(impl->engine().Run(&operation.value()));
  });
}

tfc_code tfc_call_prepare(tfc_communicator* communicator, const tfc_request* request, tfc_call** call,
                          tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || call == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the place for the call is missing");
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    tfc::Engine& engine = communicator->impl->engine();
    auto checked = tfc::OperationOf(given.value(), engine.topology());
    if (!checked.ok()) return checked.status();
    const tfc::Operation& operation = checked.value();
    const bool barrier = operation.collective == tfc::Collective::kBarrier && operation.input.empty();
    const bool all_reduce = operation.collective == tfc::Collective::kAllReduce && operation.input.size() == 1;
    if (!barrier && !all_reduce)
      return Status(Code::kInvalidArgument,
                    operation.Title() + ": only an all-reduce of one span and a barrier without any can be prepared");
    TFC_RETURN_IF_ERROR(operation.Check(engine.topology().size));
    checked.value().allocate = nullptr;  // what can be prepared has its output; run after run it would be wrapped again
    auto prepared = engine.Prepare(operation);
    *call = new tfc_call{communicator->impl, checked.Take(), std::move(prepared)};
    return Status::Ok();
  });
}

tfc_code tfc_call_run(tfc_call* call, const void* input, void* output, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (call == nullptr) return Status(Code::kInvalidArgument, "the call is missing");
    const auto impl = call->impl.lock();  // a concurrent release must not take it away
    if (impl == nullptr) return Status(Code::kFailedPrecondition, "the call's communicator has been released");
    tfc::Operation& operation = call->prepared != nullptr ? call->prepared->operation : call->operation;
    if (!operation.input.empty()) {
      if (operation.input[0].size > 0 && (input == nullptr || output == nullptr))
        return Status(Code::kInvalidArgument, operation.Title() + ": the input or the output is missing");
      operation.input[0].data = static_cast<const std::byte*>(input);
      operation.output[0].data = static_cast<std::byte*>(output);
    }
    tfc::Engine& engine = impl->engine();
    const Status status = call->prepared != nullptr ? engine.RunPrepared(*call->prepared) : engine.Run(&operation);
    return status.ok() ? status : impl->world_ranks().Translate(status);
  });
}

void tfc_call_release(tfc_call* call) { delete call; }

tfc_code tfc_submit(tfc_communicator* communicator, const tfc_request* request, tfc_done_fn done, void* user,
                    tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || done == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the callback is missing");
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    const auto impl = communicator->impl;  // `done` may drop the caller's reference meanwhile
    auto operation = tfc::OperationOf(given.value(), impl->engine().topology());
    if (!operation.ok()) return operation.status();
    return impl->world_ranks().Translate(
        impl->engine().Submit(operation.Take(), tfc::DoneOf(done, user, impl->world_ranks())));
  });
}

tfc_code tfc_join(tfc_communicator* communicator, double timeout_s, int32_t* last_rank, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    TFC_RETURN_IF_ERROR(tfc::CheckSeconds(timeout_s, "join: the timeout"));
    const auto impl = communicator->impl;  // a concurrent release must not take it away
    auto last = impl->engine().Join(timeout_s);
    if (!last.ok()) return impl->world_ranks().Translate(last.status());
    if (last_rank != nullptr) *last_rank = static_cast<int32_t>(last.value());
    return Status::Ok();
  });
}

tfc_code tfc_plan_acquire(tfc_communicator* communicator, const tfc_plan_options* options, tfc_plan** plan,
                          tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || plan == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the place for the plan is missing");
    auto given = Read(options, "tfc_plan_options");
    if (!given.ok()) return given.status();
    auto spec = tfc::PlanSpecOf(given.value());
    if (!spec.ok()) return spec.status();
    auto found = communicator->impl->engine().AcquirePlan(spec.value());
    if (!found.ok()) return found.status();
    *plan = new tfc_plan{communicator->impl, found.Take()};
    return Status::Ok();
  });
}

tfc_code tfc_plan_start(tfc_plan* plan, int32_t bucket, int32_t dtype, const tfc_span* spans, size_t num_spans,
                        tfc_done_fn done, void* user, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr || done == nullptr)
      return Status(Code::kInvalidArgument, "the plan or the callback is missing");
    if (bucket < 0) return Status(Code::kInvalidArgument, "bucket " + std::to_string(bucket) + " is negative");
    auto operation = tfc::BucketOf(dtype, spans, num_spans);
    if (!operation.ok()) return operation.status();
    const tfc_plan held = *plan;  // `done` may drop the caller's reference meanwhile
    const tfc::WorldRanks& world_ranks = held.impl->world_ranks();
    return world_ranks.Translate(held.impl->engine().StartBucket(
        held.plan, static_cast<size_t>(bucket), operation.Take(), tfc::DoneOf(done, user, world_ranks)));
  });
}

tfc_code tfc_plan_run(tfc_plan* plan, const tfc_bucket* buckets, size_t num_buckets, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (plan == nullptr || (buckets == nullptr && num_buckets > 0))
      return Status(Code::kInvalidArgument, "the plan or its buckets are missing");
    std::vector<tfc::Operation> operations;
    for (size_t i = 0; i < num_buckets; ++i) {
      auto operation = tfc::BucketOf(buckets[i].dtype, buckets[i].spans, buckets[i].num_spans);
      if (!operation.ok()) return operation.status();
      operations.push_back(operation.Take());
    }
    const tfc_plan held = *plan;  // the caller's reference may be dropped meanwhile
    return held.impl->world_ranks().Translate(held.impl->engine().RunPlan(held.plan, std::move(operations)));
  });
}

void tfc_plan_release(tfc_plan* plan) { delete plan; }

tfc_code tfc_plan_forget(tfc_communicator* communicator, const char* name, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr || name == nullptr)
      return Status(Code::kInvalidArgument, "the communicator or the name of the plan is missing");
    communicator->impl->engine().ForgetPlan(name);
    return Status::Ok();
  });
}

tfc_code tfc_timeline_start(tfc_communicator* communicator, size_t capacity, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    if (capacity == 0) return Status(Code::kInvalidArgument, "a timeline needs room for at least one event");
    communicator->impl->engine().timeline().Start(capacity);
    return Status::Ok();
  });
}

tfc_code tfc_timeline_add(tfc_communicator* communicator, const tfc_timeline_event* event, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "the communicator is missing");
    tfc::Timeline& timeline = communicator->impl->engine().timeline();
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
    const tfc::Timeline::Recorded recorded = communicator->impl->engine().timeline().Stop();
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

tfc_code tfc_process_set_publish(int32_t process_set_id, tfc_communicator* communicator, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    tfc::ProcessSets::Get().Set(process_set_id, communicator == nullptr ? nullptr : communicator->impl);
    return Status::Ok();
  });
}

tfc_code tfc_process_set_acquire(int32_t process_set_id, tfc_communicator** communicator, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return Status(Code::kInvalidArgument, "there is no place for the communicator");
    auto impl = tfc::ProcessSets::Get().Find(process_set_id);
    if (impl == nullptr && process_set_id != 0)
      return Status(Code::kInvalidArgument, "there is no process set with the number " +
                                                std::to_string(process_set_id) +
                                                " (any more), or this process is not one of its members");
    if (impl == nullptr)
      return Status(Code::kFailedPrecondition,
                    "tfcollective is not initialised in this process (or was shut down): call tfcollective.init()");
    *communicator = new tfc_communicator{std::move(impl)};
    return Status::Ok();
  });
}

}  // extern "C"
