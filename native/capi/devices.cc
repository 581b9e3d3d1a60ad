// The C interface to GPUs.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "capi/arguments.h"
#include "capi/errors.h"
#include "device/nccl/device_communicator.h"
#include "device/nccl/gpu.h"
#include "device/nccl/libraries.h"
#include "tfcollective/tfcollective.h"

namespace {

using tfc::Code;
using tfc::Guarded;
using tfc::Read;
using tfc::Result;
using tfc::Status;
using tfc::Text;

Result<tfc::DeviceOptions> DeviceOptionsOf(const tfc_device_options* options) {
  auto given = Read(options, "tfc_device_options");
  if (!given.ok()) return given.status();
  const tfc_device_options& values = given.value();
  if (values.num_nccl_candidates > 0 && values.nccl_candidates == nullptr)
    return Status(Code::kInvalidArgument, "the candidates for NCCL are missing");
  tfc::DeviceOptions result;
  result.cuda_library = Text(values.cuda_library);
  result.nccl_library = Text(values.nccl_library);
  for (size_t i = 0; i < values.num_nccl_candidates; ++i)
    result.nccl_candidates.push_back(Text(values.nccl_candidates[i]));
  result.share_gpus = values.share_gpus != 0;
  result.max_ctas = values.max_ctas;
  return result;
}

template <size_t Size>
void PutText(const std::string& text, char (&place)[Size]) {
  const size_t length = std::min(text.size(), Size - 1);
  std::memcpy(place, text.data(), length);
  place[length] = '\0';
}

// As much of `full` as the caller has room for.
template <typename Struct>
Status PutStruct(Struct* full, Struct* place) {
  if (place == nullptr || place->struct_size < sizeof(size_t))
    return Status(Code::kInvalidArgument, "the place for the result is missing or its struct_size is not set");
  full->struct_size = place->struct_size;
  std::memcpy(place, full, std::min(place->struct_size, sizeof(*full)));
  return Status::Ok();
}

Status Find(const tfc::DeviceOptions& options, tfc_device_libraries* found) {
  std::string problem;
  const auto cuda = tfc::LoadCuda(options);
  if (cuda.ok()) {
    found->cuda_version = cuda.value()->version;
    PutText(cuda.value()->path, found->cuda_path);
    const auto count = tfc::CountGpus(*cuda.value());
    if (count.ok()) found->num_devices = count.value();
    if (!count.ok()) problem = count.status().message();
  } else {
    problem = cuda.status().message();
  }
  const auto nccl = tfc::LoadNccl(options);
  if (nccl.ok()) {
    found->nccl_version = nccl.value()->version;
    PutText(nccl.value()->path, found->nccl_path);
  } else {
    problem += (problem.empty() ? "" : "; ") + nccl.status().message();
  }
  PutText(problem, found->problem);
  return Status::Ok();
}

Status Describe(const tfc::DeviceOptions& options, int32_t ordinal, tfc_device_info* full) {
  const auto cuda = tfc::LoadCuda(options);
  if (!cuda.ok()) return cuda.status();
  const auto info = tfc::DescribeGpu(*cuda.value(), ordinal);
  if (!info.ok()) return info.status();
  const auto count = tfc::CountGpus(*cuda.value());
  full->ordinal = ordinal;
  full->major = info.value().major;
  full->minor = info.value().minor;
  full->memory = info.value().memory;
  PutText(info.value().name, full->name);
  PutText(info.value().bus_id, full->bus_id);
  PutText(info.value().uuid, full->uuid);
  for (int other = 0; count.ok() && other < count.value(); ++other) {
    int can = 0;
    if (other != ordinal && cuda.value()->cuDeviceCanAccessPeer(&can, ordinal, other) == tfc::kCudaSuccess)
      full->num_peers += can != 0 ? 1 : 0;
  }
  return Status::Ok();
}

Status Run(tfc::CommunicatorImpl* impl, const tfc_request& request, const tfc_device_call& call, uint64_t* ticket) {
  auto operation = tfc::OperationOf(request, impl->engine().topology());
  if (!operation.ok()) return operation.status();
  tfc::DeviceCall where;
  where.device = call.device;
  where.stream = static_cast<tfc::CUstream>(call.stream);
  where.by_name = call.by_name != 0;
  where.through_host = call.through_host != 0;
  if (where.by_name && call.launched == nullptr)
    return Status(Code::kInvalidArgument, "an operation that is matched by name needs a callback");
  if (call.plan != nullptr) {
    if (!where.by_name || call.bucket < 0)
      return Status(Code::kInvalidArgument, "a bucket of a plan is a call by name, and its number is not negative");
    if (call.plan->impl.get() != impl) return Status(Code::kInvalidArgument, "the plan is one of another communicator");
    where.plan = call.plan->plan;
    where.bucket = static_cast<size_t>(call.bucket);
  }
  if (where.by_name) where.launched = tfc::DoneOf(call.launched, call.user, impl->world_ranks());
  auto given =
      where.by_name ? impl->devices().Submit(operation.Take(), where) : impl->devices().Run(operation.Take(), where);
  if (!given.ok()) return impl->world_ranks().Translate(given.status());
  if (ticket != nullptr) *ticket = given.value();
  return Status::Ok();
}

Status NoCommunicator() { return Status(Code::kInvalidArgument, "the communicator is missing"); }

}  // namespace

extern "C" {

tfc_code tfc_device_find(const tfc_device_options* options, tfc_device_libraries* libraries, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    auto given = DeviceOptionsOf(options);
    if (!given.ok()) return given.status();
    tfc_device_libraries full{};
    TFC_RETURN_IF_ERROR(Find(given.value(), &full));
    return PutStruct(&full, libraries);
  });
}

tfc_code tfc_device_describe(const tfc_device_options* options, int32_t ordinal, tfc_device_info* info,
                             tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    auto given = DeviceOptionsOf(options);
    if (!given.ok()) return given.status();
    tfc_device_info full{};
    TFC_RETURN_IF_ERROR(Describe(given.value(), ordinal, &full));
    return PutStruct(&full, info);
  });
}

tfc_code tfc_device_configure(tfc_communicator* communicator, const tfc_device_options* options, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return NoCommunicator();
    auto given = DeviceOptionsOf(options);
    if (!given.ok()) return given.status();
    return communicator->impl->devices().Configure(given.Take());
  });
}

tfc_code tfc_device_run(tfc_communicator* communicator, const tfc_request* request, const tfc_device_call* call,
                        uint64_t* ticket, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return NoCommunicator();
    auto given = Read(request, "tfc_request");
    if (!given.ok()) return given.status();
    auto where = Read(call, "tfc_device_call");
    if (!where.ok()) return where.status();
    const auto impl = communicator->impl;  // a concurrent release must not take it away
    return Run(impl.get(), given.value(), where.value(), ticket);
  });
}

tfc_code tfc_device_join(tfc_communicator* communicator, uint64_t ticket, void* stream, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return NoCommunicator();
    const auto impl = communicator->impl;
    return impl->world_ranks().Translate(impl->devices().Join(ticket, static_cast<tfc::CUstream>(stream)));
  });
}

tfc_code tfc_device_wait(tfc_communicator* communicator, uint64_t ticket, double timeout_s, tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return NoCommunicator();
    const auto impl = communicator->impl;
    TFC_RETURN_IF_ERROR(tfc::CheckSeconds(timeout_s, "the timeout of a wait for the GPU"));
    return impl->world_ranks().Translate(impl->devices().Wait(ticket, timeout_s));
  });
}

tfc_code tfc_device_allocate(tfc_communicator* communicator, const void* like, size_t bytes, void** memory,
                             tfc_error* error) {
  return Guarded(error, [&]() -> Status {
    if (communicator == nullptr) return NoCommunicator();
    if (memory == nullptr) return Status(Code::kInvalidArgument, "there is no place for the memory");
    auto given = communicator->impl->devices().Allocate(like, bytes);
    if (!given.ok()) return given.status();
    *memory = given.value();
    return Status::Ok();
  });
}

void tfc_device_free(tfc_communicator* communicator, void* memory) {
  if (communicator != nullptr) communicator->impl->devices().Free(memory);
}

}  // extern "C"
