#include "testing/world.h"

#include <optional>
#include <thread>

#include "base/mutex.h"

namespace tfc::testing {
namespace {

constexpr uint8_t kKey[32] = {7, 1, 4, 2, 8, 5, 7};

CallResult ResultOf(int code, const tfc_error& error) {
  CallResult result;
  result.code = code;
  if (code == TFC_OK) return result;
  result.peer = error.peer;
  result.message = error.message;
  return result;
}

// The end of a submitted call, which has a deadline of its own.
class Waiting {
 public:
  static void OnDone(void* user, const tfc_error* error) {
    auto* waiting = static_cast<Waiting*>(user);
    const MutexLock lock(waiting->mutex_);
    waiting->result_ = error == nullptr ? CallResult{} : ResultOf(error->code, *error);
    waiting->changed_.NotifyAll();
  }
  CallResult Wait() {
    const MutexLock lock(mutex_);
    changed_.WaitUntil(mutex_, Deadline::Never(), [this]() TFC_REQUIRES(mutex_) { return result_.has_value(); });
    return *result_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::optional<CallResult> result_ TFC_GUARDED_BY(mutex_);
};

// Lets no rank through until all have come. Connecting has a deadline, so all come.
class Latch {
 public:
  explicit Latch(size_t missing) : missing_(missing) {}
  void ArriveAndWait() {
    const MutexLock lock(mutex_);
    if (--missing_ == 0) changed_.NotifyAll();
    changed_.WaitUntil(mutex_, Deadline::Never(), [this]() TFC_REQUIRES(mutex_) { return missing_ == 0; });
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  size_t missing_ TFC_GUARDED_BY(mutex_);
};

}  // namespace

std::vector<int> RunWorld(const WorldOptions& options, const std::function<void(int, tfc_communicator*)>& body) {
  const auto size = static_cast<size_t>(options.size);
  std::vector<tfc_listener*> listeners(size, nullptr);
  std::vector<std::string> addresses(size);
  for (size_t rank = 0; rank < size; ++rank) {
    const std::string node = options.nodes.empty() ? "node" : options.nodes[rank];
    const tfc_listener_options listen{sizeof(tfc_listener_options), "127.0.0.1", node.c_str(), 0, 0};
    char buffer[512];
    tfc_listener_create(&listen, &listeners[rank], nullptr);
    tfc_listener_address(listeners[rank], buffer, sizeof(buffer), nullptr);
    addresses[rank] = buffer;
  }
  if (options.on_listening) options.on_listening(addresses);
  std::vector<const char*> pointers;
  for (const auto& address : addresses) pointers.push_back(address.c_str());
  std::vector<int> codes(size, TFC_OK);
  // What one rank does next may end the world, which would reach a slower one that still connects.
  Latch all_have_connected(size);
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      tfc_communicator_options connect{};
      connect.struct_size = sizeof(connect);
      connect.rank = static_cast<int32_t>(rank);
      connect.size = options.size;
      connect.addresses = pointers.data();
      connect.key = kKey;
      connect.key_size = sizeof(kKey);
      connect.generation = 1;
      connect.connect_timeout_s = options.connect_timeout_s;
      connect.op_timeout_s = options.op_timeout_s;
      connect.stall_warning_s = options.stall_warning_s;
      connect.transport = options.transport;
      connect.spin_us = options.spin_us;
      if (!options.skip_link_probe.empty())
        connect.skip_link_probe = options.skip_link_probe[static_cast<size_t>(rank)];
      connect.log = options.log;
      connect.log_user = options.log_user;
      if (options.before_connect) options.before_connect(static_cast<int>(rank));
      tfc_communicator* communicator = nullptr;
      codes[rank] = tfc_communicator_create(listeners[rank], &connect, &communicator, nullptr);
      all_have_connected.ArriveAndWait();
      if (codes[rank] != TFC_OK) return;
      body(static_cast<int>(rank), communicator);
      tfc_communicator_shutdown(communicator, 5, nullptr);
      tfc_communicator_release(communicator);
    });
  }
  for (auto& thread : threads) thread.join();
  return codes;
}

tfc_request MakeRequest(int32_t collective, int32_t dtype, int32_t op, const char* name) {
  tfc_request request{};
  request.struct_size = sizeof(request);
  request.collective = collective;
  request.dtype = dtype;
  request.op = op;
  request.prescale = 1;
  request.postscale = 1;
  request.name = name;
  return request;
}

CallResult RunNow(tfc_communicator* communicator, const tfc_request& request) {
  tfc_error error{};
  error.struct_size = sizeof(error);
  const int code = tfc_run(communicator, &request, &error);
  return ResultOf(code, error);
}

CallResult SubmitAndWait(tfc_communicator* communicator, const tfc_request& request) {
  Waiting waiting;
  tfc_error error{};
  error.struct_size = sizeof(error);
  const int code = tfc_submit(communicator, &request, &Waiting::OnDone, &waiting, &error);
  return code == TFC_OK ? waiting.Wait() : ResultOf(code, error);
}

CallResult AllReduce(tfc_communicator* communicator, std::vector<float>* values, int32_t op, const char* name) {
  tfc_request request = MakeRequest(TFC_ALLREDUCE, TFC_FLOAT32, op, name);
  const tfc_span span{values->data(), values->data(), static_cast<int64_t>(values->size())};
  request.spans = &span;
  request.num_spans = 1;
  return RunNow(communicator, request);
}

}  // namespace tfc::testing
