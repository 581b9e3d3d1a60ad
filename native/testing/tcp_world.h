// A world over TCP on the loopback interface. A thread for each rank lets the peers in, as the
// monitor thread of a communicator does.
#ifndef TFCOLLECTIVE_TESTING_TCP_WORLD_H_
#define TFCOLLECTIVE_TESTING_TCP_WORLD_H_

#include <poll.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_fd.h"
#include "collectives/transport/tcp/acceptor.h"
#include "collectives/transport/tcp/tcp_transport.h"
#include "testing/log_recorder.h"
#include "testing/transport_world.h"

namespace tfc {

// In a test there is nothing better to do about an error while setting up than to say so and stop.
template <typename T>
T TakeOrDie(Result<T> result) {
  if (!result.ok()) {
    std::fprintf(stderr, "test set-up failed: %s\n", result.status().message().c_str());
    std::abort();
  }
  return result.Take();
}

// Accepts, authenticates and hands the data connections of one rank over until it is destroyed.
class AcceptingThread {
 public:
  AcceptingThread(std::unique_ptr<Acceptor> acceptor, TcpTransport* transport)
      : acceptor_(std::move(acceptor)),
        transport_(transport),
        stop_(TakeOrDie(EventFd::Create())),
        thread_([this] { Run(); }) {}
  ~AcceptingThread() {
    stop_.Signal();
    thread_.join();
  }

 private:
  void Run() {
    while (true) {
      pollfd fds[2] = {{acceptor_->fd(), POLLIN, 0}, {stop_.fd(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0) continue;  // interrupted; the destructor ends the loop
      if (fds[1].revents != 0) return;
      for (Accepted& accepted : TakeOrDie(acceptor_->Advance())) {
        // A refusal closes the connection; the test sees that from the other side.
        (void)transport_->AddConnection(accepted.hello.sender, std::move(accepted.fd));
      }
    }
  }

  std::unique_ptr<Acceptor> acceptor_;
  TcpTransport* transport_;
  EventFd stop_;
  std::thread thread_;
};

struct TcpWorldOptions {
  int spin_us = 0;
  double connect_seconds = 30;
  size_t max_unexpected_bytes = size_t{64} << 20;
};

class TcpWorld final : public TransportWorld {
 public:
  explicit TcpWorld(int size, const TcpWorldOptions& options = TcpWorldOptions()) {
    std::vector<TcpListener> listeners;
    for (int rank = 0; rank < size; ++rank) {
      listeners.push_back(TakeOrDie(TcpListener::Create("127.0.0.1")));
      addresses_.push_back(listeners.back().address());
    }
    for (int rank = 0; rank < size; ++rank) Add(rank, std::move(listeners[static_cast<size_t>(rank)]), options);
  }
  ~TcpWorld() override { accepting_.clear(); }

  int size() const override { return static_cast<int>(addresses_.size()); }
  Transport& At(int rank) override { return Tcp(rank); }
  TcpTransport& Tcp(int rank) { return *transports_[static_cast<size_t>(rank)]; }
  void Kill(int rank) override {
    accepting_[static_cast<size_t>(rank)].reset();
    transports_[static_cast<size_t>(rank)].reset();
  }

  const SocketAddress& AddressOf(int rank) const { return addresses_[static_cast<size_t>(rank)]; }
  static JobKey Key() { return JobKey(32, 0x5a); }
  static uint64_t Generation() { return 7; }
  const LogRecorder& log() const { return log_; }

 private:
  void Add(int rank, TcpListener listener, const TcpWorldOptions& options) {
    const Identity self = {rank, size(), Generation()};
    TcpTransportOptions transport;
    transport.self = self;
    transport.key = Key();
    transport.addresses = addresses_;
    transport.connect_seconds = options.connect_seconds;
    transport.spin_us = options.spin_us;
    transport.max_unexpected_bytes = options.max_unexpected_bytes;
    transports_.push_back(TakeOrDie(TcpTransport::Create(transport)));
    AcceptorOptions acceptor;
    acceptor.key = Key();
    acceptor.self = self;
    acceptor.log = log_.log();
    accepting_.push_back(std::make_unique<AcceptingThread>(TakeOrDie(Acceptor::Create(std::move(listener), acceptor)),
                                                           transports_.back().get()));
  }

  LogRecorder log_;
  std::vector<SocketAddress> addresses_;
  std::vector<std::unique_ptr<TcpTransport>> transports_;
  std::vector<std::unique_ptr<AcceptingThread>> accepting_;
};

}  // namespace tfc

#endif  // TFCOLLECTIVE_TESTING_TCP_WORLD_H_
